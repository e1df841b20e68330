"""What a remote table needs of its client."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from heterps.ps.desk import Desk
from heterps.ps.wire import Reply


class Submitter(Protocol):
    """A client, or what stands for one."""

    compress: Any

    @property
    def shards(self) -> int:
        """Shards of every table."""
        ...

    def shares(self, shard: int) -> bool:
        """True if large arrays cross to that shard in shared memory."""
        ...

    def piece_bytes(self, shard: int) -> int:
        """Bytes that travel from that shard in one frame."""
        ...

    def room(self, shard: int, shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
        """An empty array for one operation on one shard."""
        ...

    def meet(self, shard: int, table: str, args: dict[str, Any]) -> Callable[[], Desk | None]:
        """Asks for a desk at one shard."""
        ...

    def submit(self, shard: int, verb: str, table: str, args: dict[str, Any], arrays: Any = ()) -> Future[Reply]:
        """Sends one operation to one shard."""
        ...
