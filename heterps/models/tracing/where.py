"""Where in the user's code a call stands, and what to do about one that cannot be cut."""

from __future__ import annotations

import inspect
import traceback
from pathlib import Path

import torch
from torch import fx

REMEDY = (
    "put this part into an nn.Module of its own and name it in leaves=[...], so that it stays whole, "
    "or build the Chain by hand"
)

LINE = "user's line"
"""The entry of a node's `meta` that holds the line of its call."""

_HERE = Path(__file__).parent
_HIDDEN = (str(Path(torch.__file__).parent), str(_HERE), str(_HERE.parent / "chain.py"))
"""Folders and files whose code is not the user's."""


def current_line() -> traceback.FrameSummary | None:
    """The line of the user's code that runs now."""
    for frame, line in traceback.walk_stack(inspect.currentframe()):
        if not frame.f_code.co_filename.startswith(_HIDDEN):
            return traceback.FrameSummary(frame.f_code.co_filename, line, frame.f_code.co_name, lookup_line=False)
    return None


def raising_line(error: Exception) -> traceback.FrameSummary | None:
    """The last line of the user's code that an error came through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_HIDDEN)]
    return frames[-1] if frames else None


def at(line: traceback.FrameSummary | None) -> str:
    """`" at file:number: code"`, or an empty string if there is no line."""
    return f" at {line.filename}:{line.lineno}: {line.line}" if line is not None else ""


def call(node: fx.Node) -> str:
    """What a node calls: the path of a module, or the name of a function or method."""
    return repr(node.target if isinstance(node.target, str) else getattr(node.target, "__name__", node.name))


def at_call(node: fx.Node) -> str:
    """Where the user calls it, as `at` says it."""
    return at(node.meta.get(LINE))


def reason(error: Exception) -> str:
    """The kind of an error and the first line of what it says: some go on with a dump."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
