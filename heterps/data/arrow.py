"""Arrow columns to NumPy: numbers, and ids by hash."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from heterps import _native
from heterps.data.hashing import hash_bytes, slot_key
from heterps.data.rows import Int64s
from heterps.errors import InvalidInput

_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)

_LARGEST = pa.scalar(2**63 - 1, pa.uint64())


def numbers(array: Any) -> NDArray[np.float64]:
    """Numbers and booleans as floats; NaN where there is none."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    values: NDArray[np.float64] = pc.cast(array, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return values


def ids(array: Any, slot: str, *, hashed: bool, out: Int64s) -> None:
    """Writes an id for each value to `out`; a missing one is that of the empty string."""
    key = slot_key(slot)
    if pa.types.is_dictionary(array.type):
        table = np.empty(len(array.dictionary), dtype=np.int64)
        ids(array.dictionary, slot, hashed=hashed, out=table)
        if len(table):
            out[:] = table[pc.fill_null(array.indices, 0).to_numpy(zero_copy_only=False)]
    elif pa.types.is_boolean(array.type) or pa.types.is_integer(array.type):
        if pa.types.is_uint64(array.type) and hashed:  # may pass the range of int64, but has digits
            _hash_text(array.cast(pa.large_string()), key, out)
        else:
            # what is too large wraps around; see `too_large`
            values = pc.fill_null(array.cast(pa.int64(), safe=False), 0).to_numpy(zero_copy_only=False)
            if hashed:
                _native.hash_integers(np.ascontiguousarray(values), key, out)
            else:
                out[:] = values
    else:
        _hash_text(array, key, out)
    if array.null_count:
        empty = np.uint64(hash_bytes(key, b"")).astype(np.int64)
        out[array.is_null().to_numpy(zero_copy_only=False)] = empty


def bags(array: Any, slot: str, *, hashed: bool) -> tuple[Int64s, Int64s]:
    """Ids and offsets of a column of lists; a missing list is empty, and missing values do not count."""
    sizes = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    values = array.flatten()
    if values.null_count:
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        offsets = np.concatenate(([0], np.cumsum(valid, dtype=np.int64)))[offsets]
        values = values.drop_null()
    out = np.empty(len(values), dtype=np.int64)
    ids(values, slot, hashed=hashed, out=out)
    return out, offsets


def may_be_too_large(kind: Any) -> bool:
    """Whether whole numbers of a column of this type, or in its lists, may pass the range of int64."""
    return bool(pa.types.is_uint64(_plain(_list_value(kind) or kind)))


def too_large(array: Any) -> NDArray[np.bool_]:
    """Which rows of a column that `may_be_too_large` hold a number, or a list with one, that is no int64."""
    in_lists = _list_value(array.type) is not None
    values = array.flatten() if in_lists else array
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    found = pc.fill_null(pc.greater(values, _LARGEST), False).to_numpy(zero_copy_only=False)
    if not in_lists:
        return np.asarray(found)
    rows = np.zeros(len(array), dtype=np.bool_)
    rows[pc.list_parent_indices(array).to_numpy(zero_copy_only=False)[found]] = True
    return rows


def check_types(schema: Any, source: Any, path: str) -> None:
    """An `InvalidInput` that names the column if one's type does not fit its role."""
    for role, names, fits, wanted in (
        ("label", [source.label] if source.label is not None else [], _is_number, "numbers"),
        ("dense", source.dense, _is_number, "numbers"),
        ("sparse", source.sparse, _is_id if source.hash else _is_whole, "strings or whole numbers"),
        ("multi", source.multi, _is_id if source.hash else _is_whole, "lists of strings or whole numbers"),
    ):
        for name in names:
            kind = schema.field(name).type
            inner = _list_value(kind) if role == "multi" else kind
            if inner is None or not fits(inner):
                rule = wanted if source.hash or role in ("label", "dense") else "whole numbers (hash: false)"
                raise InvalidInput(f"{path}: column {name!r} is {kind}; {role} columns are {rule}")


def _list_value(kind: Any) -> Any:
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return kind.value_type if any(is_list(kind) for is_list in lists) else None


def _plain(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_number(kind: Any) -> bool:
    kind = _plain(kind)
    tests = (pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean, pa.types.is_decimal)
    return any(test(kind) for test in tests)


def _is_whole(kind: Any) -> bool:
    return bool(pa.types.is_integer(_plain(kind)) or pa.types.is_boolean(_plain(kind)))


def _is_id(kind: Any) -> bool:
    more = (pa.types.is_string_view, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    return _is_whole(kind) or any(test(_plain(kind)) for test in (*_TEXT, *more))


def _hash_text(array: Any, key: int, out: Int64s) -> None:
    """Bytes of strings where they lie: 32-bit or 64-bit offsets into a buffer."""
    if not any(test(array.type) for test in _TEXT):
        array = array.cast(pa.large_binary())
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _, offsets_buffer, data = array.buffers()
    if len(array) == 0:
        return
    kind: Any = np.int64 if wide else np.int32
    offsets = np.frombuffer(offsets_buffer, dtype=kind)[array.offset : array.offset + len(array) + 1]
    text = np.frombuffer(data, dtype=np.uint8) if data is not None and data.size else np.empty(0, dtype=np.uint8)
    _native.hash_strings(text, np.ascontiguousarray(offsets, dtype=np.int64), key, out)
