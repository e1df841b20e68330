"""Units of measure: conversions and how numbers are shown to people."""

from __future__ import annotations

SECONDS_PER_HOUR = 3600.0
BITS_PER_BYTE = 8.0
GIGA = 1e9
MILLION = 1e6


def format_seconds(seconds: float) -> str:
    """A duration with three significant digits in the unit that suits it: `1.25 ms`, `840 ns`."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def format_usd(dollars: float) -> str:
    """Dollars with cents, or four significant digits below ten cents: `$5.44`, `$0.01863`."""
    return f"${dollars:,.2f}" if dollars >= 10 or dollars == 0 else f"${dollars:.4g}"


def format_rate(per_second: float) -> str:
    """A throughput in samples a second, whole above 100: `81,234/s`."""
    return f"{per_second:,.0f}/s" if per_second >= 100 else f"{per_second:.4g}/s"


def format_share(share: float) -> str:
    """A share as a percentage that never rounds a positive value to zero: `0.3%`, `<0.01%`."""
    if 0 < share < 1e-4:
        return "<0.01%"
    return f"{share:.2%}" if share < 0.1 else f"{share:.1%}"
