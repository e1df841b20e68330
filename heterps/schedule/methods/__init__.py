"""The search methods by name. A method's module is imported when it is first asked for: some bring torch or Optuna."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module

from heterps.errors import InvalidInput, did_you_mean
from heterps.schedule.methods.limited import Limited, Rationed
from heterps.schedule.objective import Objective
from heterps.schedule.search import Method, Settings

__all__ = ["METHODS", "make_method", "method_names"]

AUTO, ONLY, LOCAL = "auto", "only:", "exact+local"

METHODS: dict[str, str] = {
    "exact": "heterps.schedule.methods.exact:Exact",
    LOCAL: "heterps.schedule.methods.local:ExactLocal",
    "rl": "heterps.schedule.rl.reinforce:rl",
    "rl-rnn": "heterps.schedule.rl.reinforce:rl_rnn",
    "brute-force": "heterps.schedule.methods.brute_force:BruteForce",
    "bayesian": "heterps.schedule.methods.optuna_samplers:bayesian",
    "genetic": "heterps.schedule.methods.optuna_samplers:genetic",
    "greedy": "heterps.schedule.methods.greedy:greedy",
    "heuristic": "heterps.schedule.methods.heuristic:heuristic",
}
"""Name -> where it is made. Beside these there are `only:TYPE`, and `auto`, which chooses."""


def method_names(types: tuple[str, ...]) -> list[str]:
    """Every method worth comparing on the closed form, for a cluster of these types.

    Left out are `auto`, which is one of them, and `exact+local`, which has nothing to improve there.
    """
    return [*(name for name in METHODS if name != LOCAL), *(ONLY + name for name in types)]


def resolve(name: str, objective: Objective) -> str:
    """The method that `auto` stands for: `exact` where the objective has the closed form, else `rl`."""
    if name == AUTO:
        return "exact" if objective.closed_form else "rl"
    return name


def make_method(name: str, objective: Objective, settings: Settings) -> Method:
    """Starts a method; `InvalidInput` if there is none of that name."""
    name = resolve(name, objective)
    make: Callable[[Objective, Settings], Method]
    if name.startswith(ONLY):
        make = partial(_load("heterps.schedule.methods.only:only"), name=name.removeprefix(ONLY))
    elif name in METHODS:
        make = _load(METHODS[name])
    else:
        known = [AUTO, *METHODS, ONLY + "TYPE"]
        raise InvalidInput(f"unknown method {name!r}; the methods are {', '.join(known)}.{did_you_mean(name, known)}")
    method = make(objective, settings)
    return Limited(method, objective) if isinstance(objective, Rationed) else method


def _load(where: str) -> Callable[..., Method]:
    module, _, attribute = where.partition(":")
    made: Callable[..., Method] = getattr(import_module(module), attribute)
    return made
