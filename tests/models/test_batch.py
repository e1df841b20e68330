"""Batches and bags: cutting and joining loses nothing."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heterps.errors import InvalidInput
from heterps.models import Bags, batch_size, cut


@st.composite
def bags(draw: st.DrawFn, slots: int | None = None) -> tuple[Bags, list[list[int]]]:
    """Bags, and the same as plain lists: one for each sample and slot."""
    slots = slots or draw(st.integers(1, 3))
    samples = draw(st.integers(0, 6))
    lists = [draw(st.lists(st.integers(-5, 5), max_size=4)) for _ in range(samples * slots)]
    ends = torch.tensor([0, *(len(one) for one in lists)]).cumsum(0)
    return Bags(torch.tensor([id_ for one in lists for id_ in one], dtype=torch.int64), ends, slots), lists


def as_lists(given: Bags) -> list[list[int]]:
    ends = given.offsets.tolist()
    return [given.ids[start:stop].tolist() for start, stop in pairwise(ends)]


@given(bags(), st.integers(-8, 8) | st.none(), st.integers(-8, 8) | st.none())
def test_a_slice_has_the_bags_of_its_samples(drawn, start, stop):
    whole, lists = drawn
    samples = [lists[at : at + whole.slots] for at in range(0, len(lists), whole.slots)]
    part = whole[start:stop]
    assert len(whole) == len(samples)
    assert as_lists(part) == [one for sample in samples[start:stop] for one in sample]
    assert len(part) == len(samples[start:stop])


@given(st.integers(1, 3).flatmap(lambda slots: st.lists(bags(slots=slots), min_size=1, max_size=4)))
def test_joined_bags_follow_each_other(drawn):
    joined = Bags.join([part for part, _ in drawn])
    assert as_lists(joined) == [one for _, lists in drawn for one in lists]
    assert joined.slots == drawn[0][0].slots


@given(bags(), st.integers(1, 9))
def test_cut_and_join_are_inverse(drawn, parts):
    whole, lists = drawn
    if not len(whole):
        return
    batch = {"tags": whole, "x": torch.arange(len(whole))}
    pieces = cut(batch, parts)
    sizes = [batch_size(piece) for piece in pieces]
    assert len(pieces) == min(parts, len(whole))
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1
    assert as_lists(Bags.join([piece["tags"] for piece in pieces])) == lists
    assert torch.equal(torch.cat([piece["x"] for piece in pieces]), batch["x"])


def test_cutting_copies_nothing():
    x = torch.arange(10)
    assert [piece["x"].data_ptr() - x.data_ptr() for piece in cut({"x": x}, 2)] == [0, 5 * 8]


@pytest.mark.parametrize(
    ("ids", "offsets", "slots", "message"),
    [
        ([1, 2], [0, 1], 1, "from 0 to 2"),
        ([1, 2], [1, 2], 1, "from 0 to 2"),
        ([1, 2], [0, 1, 2], 3, "no multiple of 3 slots"),
        ([[1, 2]], [0, 2], 1, "one axis"),
        ([1, 2], [0, 2], 0, "slots is at least 1"),
    ],
)
def test_wrong_bags_are_refused(ids, offsets, slots, message):
    with pytest.raises(InvalidInput, match=message):
        Bags(torch.tensor(ids), torch.tensor(offsets), slots)


def test_bags_are_cut_into_stretches():
    with pytest.raises(InvalidInput, match="the step is 1, not 2"):
        Bags(torch.tensor([1, 2]), torch.tensor([0, 1, 2]))[::2]


def test_bags_of_different_slots_are_not_joined():
    one = Bags(torch.tensor([1, 2]), torch.tensor([0, 1, 2]))
    with pytest.raises(InvalidInput, match="same number of slots"):
        Bags.join([one, Bags(one.ids, one.offsets, slots=2)])
    with pytest.raises(InvalidInput, match="at least one"):
        Bags.join([])


def test_a_batch_has_one_number_of_samples():
    with pytest.raises(InvalidInput, match=r"same number of samples, not .*'a': 2"):
        batch_size({"a": torch.zeros(2), "b": torch.zeros(3)})
    with pytest.raises(InvalidInput, match="at least one tensor"):
        batch_size({})
