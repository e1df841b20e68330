"""Hashes against a reference written from their description; the permutation against what makes it one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps import _native
from heterps.data import hash_id
from heterps.data.hashing import key_of, mix, mix_array, slot_key
from tests.data.reference import mix as reference_mix
from tests.data.reference import reference_id


def native_ids(slot: str, values: list[bytes]) -> list[int]:
    offsets = np.cumsum([0, *(len(value) for value in values)], dtype=np.int64)
    out = np.empty((len(values), 2), dtype=np.int64)  # a column of a matrix, as the sources write it
    _native.hash_strings(np.frombuffer(b"".join(values), dtype=np.uint8).copy(), offsets, slot_key(slot), out[:, 1])
    return [int(x) for x in out[:, 1]]


@given(slot=st.text(max_size=12), values=st.lists(st.binary(max_size=40), max_size=30))
def test_strings_hash_as_described(slot: str, values: list[bytes]):
    expected = [reference_id(slot, value) for value in values]
    assert native_ids(slot, values) == expected
    assert [hash_id(slot, value) for value in values] == expected


@given(values=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=30))
def test_whole_numbers_hash_as_their_digits(values: list[int]):
    out = np.empty(len(values), dtype=np.int64)
    _native.hash_integers(np.array(values, dtype=np.int64), slot_key("user"), out)
    assert out.tolist() == [reference_id("user", str(value)) for value in values]
    assert out.tolist() == [hash_id("user", value) for value in values]


def test_hashes_stay_as_they_are():
    """Written down once: tables that were trained with these ids must find them again."""
    assert hash_id("C1", "") == -5434059122975492367
    assert hash_id("C1", "68fd1e64") == -5525241711857284468
    assert hash_id("C2", "68fd1e64") == -2510087318308274265
    assert hash_id("user", 42) == hash_id("user", "42") == -8646255852963652318


def test_ids_do_not_clash():
    """400,000 ids in 64 bits: a clash has odds of one in 200 million."""
    words = [f"{i:x}".encode() for i in range(100_000)]
    ids = [i for slot in ("C1", "C2", "a", "") for i in native_ids(slot, words)]
    assert len(set(ids)) == len(ids)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1))
def test_mix_is_one_function_in_two_forms(values: list[int]):
    assert mix_array(np.array(values, dtype=np.uint64)).tolist() == [reference_mix(value) for value in values]
    assert [mix(value) for value in values] == [reference_mix(value) for value in values]


@settings(max_examples=60)
@given(size=st.integers(1, 3000), key=st.integers(0, 2**64 - 1), stride=st.integers(1, 5))
def test_a_permutation_has_every_number_once(size: int, key: int, stride: int):
    images = _native.permutation(size, key, 0, 1, size)
    assert sorted(images.tolist()) == list(range(size))
    some = _native.permutation(size, key, size // 2, stride, (size - size // 2 - 1) // stride + 1)
    assert some.tolist() == images[size // 2 :: stride].tolist()


def test_permutations_mix():
    """Every number comes to every place about equally often, and neighbours do not stay together."""
    counts = np.zeros((7, 7))
    for key in range(7000):
        counts[np.arange(7), _native.permutation(7, key_of(key), 0, 1, 7)] += 1
    assert (abs(counts - 1000) < 6 * 1000**0.5).all()
    images = _native.permutation(100_003, 5, 0, 1, 100_003)
    assert (abs(np.diff(images)) == 1).sum() < 20
    assert abs(np.corrcoef(np.arange(100_003), images)[0, 1]) < 0.02


def test_large_permutations_need_no_memory():
    images = _native.permutation(10**18, 1, 10**18 - 1000, 1, 1000)
    assert len(set(images.tolist())) == 1000
    assert images.min() >= 0
    assert images.max() < 10**18


@pytest.mark.parametrize("arguments", [(5, 0, 3, 1, 3), (0, 0, 0, 1, 1), (5, 0, 0, 0, 2), (2**63, 0, 0, 1, 1)])
def test_places_outside_are_refused(arguments: tuple[int, ...]):
    with pytest.raises(ValueError, match="inside"):
        _native.permutation(*arguments)


def test_offsets_outside_are_refused():
    out = np.empty(1, dtype=np.int64)
    for offsets in ([0, 3], [-1, 1], [2, 1], [0, 1, 2]):
        with pytest.raises(ValueError, match=r"offset"):
            _native.hash_strings(np.zeros(2, dtype=np.uint8), np.array(offsets), 0, out)
