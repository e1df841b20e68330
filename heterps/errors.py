"""The errors users see. Each states the rule, the value that broke it and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HeterPSError(Exception):
    """Base of every error heterps raises on purpose; `exit_code` is what the command line returns for it."""

    exit_code = 1


class InvalidInput(HeterPSError, ValueError):
    """A file, an argument or an option that breaks a rule."""

    exit_code = 2


class Infeasible(HeterPSError):
    """A goal that no plan meets, with what is reachable and what stops it."""

    exit_code = 3


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`" Did you mean 'x'?"` for the known word nearest to `word`, or an empty string if none is near."""
    near = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.75)
    return f" Did you mean {near[0]!r}?" if near else ""
