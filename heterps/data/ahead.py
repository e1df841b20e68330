"""Items made ahead by a thread, at most so many."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_PATIENCE_S = 5.0
"""How long closing waits for an item in the making. Assumed: a stuck network file must not hang the program."""


class _Channel(Generic[T]):
    """What maker and taker share: the items between them, and how it ends."""

    def __init__(self, depth: int) -> None:
        self.changed = threading.Condition()
        self.items: deque[T] = deque()
        self.depth = depth
        self.closed = self.ended = False
        self.error: BaseException | None = None

    def has_room(self) -> bool:
        """Waits for room; False once nobody takes any more."""
        with self.changed:
            self.changed.wait_for(lambda: self.closed or len(self.items) < self.depth)
            return not self.closed

    def put(self, item: T) -> None:
        with self.changed:
            self.items.append(item)
            self.changed.notify_all()

    def end(self, error: BaseException | None = None) -> None:
        with self.changed:
            self.ended, self.error = True, error
            self.changed.notify_all()

    def take(self) -> T:
        with self.changed:
            self.changed.wait_for(lambda: self.items or self.ended or self.closed)
            if self.closed or not self.items:
                error, self.error = self.error, None
                raise error if error is not None and not self.closed else StopIteration
            item = self.items.popleft()
            self.changed.notify_all()
            return item

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.items.clear()
            self.changed.notify_all()


def _make(source: Generator[T] | Any, channel: _Channel[T]) -> None:
    error: BaseException | None = None
    try:
        while channel.has_room():
            channel.put(next(source))
    except StopIteration:
        pass
    except BaseException as raised:
        error = raised
    try:
        source.close()
    finally:
        channel.end(error)


class Ahead(Generic[T]):
    """An iterator over `source`, which a thread runs at most `depth` items ahead and closes at the end.

    An error in the source is raised where its item would have come. The thread ends when this is closed or forgotten.
    """

    def __init__(self, source: Any, *, depth: int, stop: Callable[[], None] | None = None) -> None:
        """Starts the thread; `stop` is called on closing before the end, and frees a source that waits for others."""
        self._channel: _Channel[T] = _Channel(depth)
        self._stop = stop
        self._thread = threading.Thread(
            target=_make, args=(source, self._channel), name="heterps-read-ahead", daemon=True
        )
        self._thread.start()

    def __iter__(self) -> Ahead[T]:
        return self

    def __next__(self) -> T:
        return self._channel.take()

    def close(self) -> None:
        """Stops the thread; waits a few seconds for the item it is making, then leaves it to end by itself."""
        self._channel.close()
        if self._stop is not None and not self._channel.ended:
            self._stop()
        if self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE_S)

    def __del__(self) -> None:
        self._channel.close()
