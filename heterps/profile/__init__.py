"""What each layer of a chain costs on each kind of hardware: measured where it is at hand, else derived.

The package is also the function `heterps.profile(job, ...)`.
"""

from __future__ import annotations

from heterps._callable import make_callable

make_callable(__name__, "heterps.api:profile")
