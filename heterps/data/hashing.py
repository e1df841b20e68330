"""The hash that makes int64 ids of strings, so simple that other programs can repeat it, and the keys of shuffles.

All arithmetic is modulo 2⁶⁴:

- mix(z): z = (z ^ z >> 30)·0xBF58476D1CE4E5B9; z = (z ^ z >> 27)·0x94D049BB133111EB; z ^ z >> 31
- step(h, word) = mix((h ^ word) + 0x9E3779B97F4A7C15)
- hash(key, bytes): h = key; h = step(h, word) for each eight bytes as a little-endian word, the last ones padded with
  zeros; then step(h, number of bytes)
- the key of a slot is hash(0, its name in UTF-8)
- an id is hash(key of its slot, bytes of the value), as a signed number

A whole number is hashed as its decimal digits, so that the same table as CSV and as Parquet has the same ids.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(z: int) -> int:
    """The finalizer of splitmix64: every input bit moves every output bit."""
    z = ((z ^ z >> 30) * _FIRST) & _MASK
    z = ((z ^ z >> 27) * _SECOND) & _MASK
    return z ^ z >> 31


def mix_array(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`mix` of each element."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_FIRST)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_SECOND)
    return z ^ (z >> np.uint64(31))


def _step(h: int, word: int) -> int:
    return mix(((h ^ word) + _GOLDEN) & _MASK)


def hash_bytes(key: int, value: bytes) -> int:
    """The hash of bytes under a key, unsigned."""
    h = key
    for start in range(0, len(value), 8):
        h = _step(h, int.from_bytes(value[start : start + 8], "little"))
    return _step(h, len(value))


def slot_key(slot: str) -> int:
    """The key of a slot's ids."""
    return hash_bytes(0, slot.encode())


def hash_id(slot: str, value: str | bytes | int) -> int:
    """The int64 id of a value in a slot, as every source hashes it."""
    data = value if isinstance(value, bytes) else str(value).encode()
    unsigned = hash_bytes(slot_key(slot), data)
    return unsigned - 2**64 if unsigned >= 2**63 else unsigned


def key_of(*numbers: int) -> int:
    """A key of 64 bits from whole numbers: seeds, epochs, places."""
    key = 0
    for number in numbers:
        key = _step(key, number & _MASK)
    return key
