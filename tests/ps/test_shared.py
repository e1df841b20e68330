"""Memory shared by processes: blocks cross whole, come back by themselves, and belong to nobody else."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps.ps.errors import WireError
from heterps.ps.shared import ALIGN, LEAST_BYTES, Arena, Offer, View


def _echo(connection, offer: Offer) -> None:
    view = View.open(offer)
    connection.send(view is not None)
    while (place := connection.recv()) is not None:
        connection.send(int(view.read(place).astype(np.int64).sum()))
        view.give_back(place)
        connection.send("back")


class TestAcrossProcesses:
    def test_a_block_crosses_and_comes_back(self) -> None:
        arena = Arena(1 << 20)
        here, there = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=_echo, args=(there, arena.offer))
        process.start()
        assert here.recv() is True
        for round_ in range(50):  # more than the arena holds at once
            data = np.full(100_000, round_, np.uint8)
            place = arena.put(data)
            assert place is not None
            here.send(place)
            assert here.recv() == 100_000 * round_
            assert here.recv() == "back"
        assert arena.held_bytes == 0
        here.send(None)
        process.join()

    def test_it_goes_with_its_process(self) -> None:
        arena = Arena(1 << 20)
        arena.close()
        assert View.open(arena.offer) is None

    def test_another_one_is_not_mapped(self) -> None:
        one, other = Arena(1 << 20), Arena(1 << 20)
        assert View.open(replace(one.offer, descriptor=other.offer.descriptor)) is None
        assert View.open(replace(one.offer, process=2**22 + 1)) is None
        assert View.open(Offer(os.getpid(), 0, "")) is None

    def test_a_place_outside_is_refused(self) -> None:
        arena = Arena(1 << 20)
        view = View.open(arena.offer)
        assert view is not None
        for place in [(0, 10), (ALIGN, 1), (2 * ALIGN, 1 << 20), (2 * ALIGN + 1, 4), (2 * ALIGN, -1), (-ALIGN, 8)]:
            with pytest.raises(WireError):
                view.read(place)
            with pytest.raises(WireError):
                view.give_back(place)


class TestBlocks:
    def test_a_full_arena_has_none_to_give(self) -> None:
        arena = Arena(1 << 20)
        assert arena.put(np.zeros(2 << 20, np.uint8)) is None
        assert arena.put(np.zeros(LEAST_BYTES - 1, np.uint8)) is None
        places = []
        while (place := arena.put(np.zeros(LEAST_BYTES, np.uint8))) is not None:
            places.append(place)
        assert len(places) == ((1 << 20) - ALIGN) // (LEAST_BYTES + ALIGN)
        arena.give_back(places[3])
        assert arena.put(np.zeros(LEAST_BYTES, np.uint8)) == places[3]

    @given(st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 5)), max_size=40))
    def test_blocks_never_overlap(self, turns: list[tuple[int, int]]) -> None:
        arena = Arena(1 << 17)
        view = View.open(arena.offer)
        assert view is not None
        held: list[tuple[tuple[int, int], int]] = []
        for number, (nbytes, back) in enumerate(turns):
            taken = arena.take(nbytes)
            if taken is not None:
                taken[1][:] = number
                held.append((taken[0], number))
            while back and held:
                place, value = held.pop(back % len(held))
                assert (view.read(place) == value).all()
                view.give_back(place)
                back -= 1
        assert all((view.read(place) == value).all() for place, value in held)
        assert arena.held_bytes >= sum(place[1] for place, _ in held)
