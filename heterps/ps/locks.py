"""Files and directories that belong to one server at a time."""

from __future__ import annotations

import fcntl
import logging
from pathlib import Path
from typing import IO

from heterps.errors import InvalidInput

log = logging.getLogger("heterps.ps")


def lock(path: Path, taken: str) -> IO[bytes]:
    """Holds `path`, made if missing, until the returned file is closed or this process ends, however it does.

    It stays behind, as removing it would let two in. Where the file system knows no locks, nothing is held.

    Raises:
        InvalidInput: it cannot be written, or somebody holds it (`taken` says what that means).
    """
    try:
        file = path.open("ab")
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be written ({error.strerror})") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise InvalidInput(taken) from None
    except OSError as error:
        log.warning("%s: cannot be locked (%s)", path, error.strerror)
    return file
