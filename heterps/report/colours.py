"""The colours of resource types, the same in every section, page and plot."""

from __future__ import annotations

PALETTE: tuple[tuple[str, str], ...] = (
    ("#2563eb", "#7aa8ff"),
    ("#b45309", "#f2a950"),
    ("#0f766e", "#4cc9b0"),
    ("#9333ea", "#c79bff"),
    ("#be185d", "#ff8cbb"),
    ("#4d7c0f", "#a6d354"),
    ("#475569", "#a9b6c8"),
    ("#b91c1c", "#ff9a90"),
)
"""(on light, on dark): white text stands on the first, black text on the second, at 4.5 to 1 or better."""


def light(index: int) -> str:
    """The colour of the type with this number, on a light ground; they repeat after the last."""
    return PALETTE[index % len(PALETTE)][0]


def css() -> str:
    """The palette as custom properties `--type-0` …, for light and dark grounds."""
    rules = [
        ":root{" + "".join(f"--type-{i}:{pair[shade]};" for i, pair in enumerate(PALETTE)) + "}" for shade in (0, 1)
    ]
    return f"{rules[0]}\n@media screen and (prefers-color-scheme: dark){{{rules[1]}}}\n"
