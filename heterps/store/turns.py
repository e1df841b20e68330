"""Who may walk over a whole table: one at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from heterps.errors import InvalidInput


class Turns:
    """Saves, loads, scans and shrinks of one table, one after the other.

    A thread waits while another has its turn. Within its own turn it would wait for itself, and is refused.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taker: int | None = None  # a thread

    @contextmanager
    def take(self, what: str) -> Iterator[None]:
        """A turn for `what`, as the error names it.

        Raises:
            InvalidInput: if this thread has a turn already: within the loop over a scan, mostly.
        """
        if self._taker == threading.get_ident():
            raise InvalidInput(
                f"{what} of a table whose scan (or save, or load) is still open in this thread: end or close that first"
            )
        with self._lock:
            self._taker = threading.get_ident()
            try:
                yield
            finally:
                self._taker = None
