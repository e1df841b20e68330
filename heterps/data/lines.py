"""Lines of text files by stretches of bytes: a line belongs to the stretch in which it starts."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from heterps.data.files import File, reading
from heterps.errors import HeterPSError

MOST_LINE_BYTES = 1 << 24
"""A longer line is taken for a file that is no text. Assumed."""

_CHUNK_BYTES = 1 << 16


class Bytes(Protocol):
    """Bytes by offset."""

    file: File

    def at(self, offset: int, size: int) -> bytes:
        """So many bytes from there on; fewer only at the end of the file."""
        ...

    def close(self) -> None:
        """Lets go of the file."""
        ...


class SeekableBytes:
    """Of a file that can be read anywhere."""

    def __init__(self, file: File) -> None:
        self.file, self._stream = file, file.open()

    def at(self, offset: int, size: int) -> bytes:
        """See `Bytes.at`."""
        self._stream.seek(offset)
        return _read(self._stream, size)

    def close(self) -> None:
        """Lets go of the file."""
        self._stream.close()


class ForwardBytes:
    """Of a file that can only be read forward, as compressed ones. Remembers the bytes since the last `forget`."""

    def __init__(self, file: File) -> None:
        self.file, self._stream = file, file.open()
        self._kept, self._from = b"", 0

    def forget(self, offset: int) -> None:
        """Bytes before this offset are not asked for any more."""
        while (end := self._from + len(self._kept)) < offset:
            self._kept, self._from = _read(self._stream, min(offset - end, 1 << 20)), end
            if not self._kept:
                return
        self._kept, self._from = self._kept[offset - self._from :], offset

    def at(self, offset: int, size: int) -> bytes:
        """See `Bytes.at`."""
        start = offset - self._from
        assert start >= 0, "forgotten already"
        missing = start + size - len(self._kept)
        if missing > 0:
            self._kept += _read(self._stream, missing)
        return self._kept[start : start + size]

    def close(self) -> None:
        """Lets go of the file."""
        self._stream.close()


class Lines(NamedTuple):
    """Whole lines: those in `text` from `begin` on, which is byte `offset` of the file."""

    text: bytes
    begin: int
    offset: int
    ended: bool
    """True if the file ends with them, or before."""


def read_lines(data: Bytes, begin: int, end: int) -> Lines:
    """The lines that start at bytes in [begin, end), the last one to its end."""
    start = max(begin - 1, 0)  # a newline just before `begin` makes the first line ours
    text = data.at(start, end - start)
    ended = len(text) < end - start
    first = text.find(b"\n") + 1 if begin else 0
    if first == len(text) or (begin and not first):
        return Lines(b"", 0, end, ended)
    if not ended and not text.endswith(b"\n"):
        text += _rest_of_line(data, end)
    return Lines(text, first, start + first, ended)


def _rest_of_line(data: Bytes, offset: int) -> bytes:
    rest = b""
    while len(rest) <= MOST_LINE_BYTES:
        more = data.at(offset + len(rest), _CHUNK_BYTES)
        newline = more.find(b"\n") + 1
        rest += more[:newline] if newline else more
        if newline or len(more) < _CHUNK_BYTES:
            return rest
    raise HeterPSError(f"{data.file.path}: a line of more than {MOST_LINE_BYTES} bytes at byte {offset}; is it text?")


def line_number(file: File, offset: int) -> int:
    """The number of the line, from 1, that starts at this byte. Reads the file up to there."""
    number = 1
    with reading(file.path), file.open() as stream:
        while offset > 0 and (chunk := stream.read(min(offset, 1 << 20))):
            number += chunk.count(b"\n")
            offset -= len(chunk)
    return number


def _read(stream: Any, size: int) -> bytes:
    data: bytes = stream.read(size)
    while len(data) < size and (more := stream.read(size - len(data))):
        data += more
    return data
