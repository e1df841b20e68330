"""Reading ahead: the same reads, bounded, with errors where they belong, and an end to every thread."""

from __future__ import annotations

import gc
import threading
from collections.abc import Generator

import pytest

from heterps.data import Criteo, Read, Reader, Synthetic, prefetch
from heterps.data.ahead import Ahead
from heterps.errors import HeterPSError, InvalidInput
from tests.data.reference import criteo_lines, rows_of

LIMIT_S = 150.0


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing waits for its thread however slow the machine is, where a test says nothing else."""
    monkeypatch.setattr("heterps.data.ahead._PATIENCE_S", LIMIT_S)


class Numbers(Reader):
    """Reads with a position each; an error at the end if asked for."""

    def __init__(self, count: int, *, error: Exception | None = None) -> None:
        self.made, self.count, self.error = 0, count, error
        self.closed = threading.Event()
        self.moved = threading.Condition()

    skipped = 7

    def __next__(self) -> Read:
        if self.closed.is_set():
            raise StopIteration
        if self.made == self.count:
            if self.error is not None:
                raise self.error
            raise StopIteration
        with self.moved:
            self.made += 1
            self.moved.notify_all()
        return Read({}, {"at": self.made})

    def close(self) -> None:
        self.closed.set()

    def wait_for(self, made: int) -> bool:
        with self.moved:
            return self.moved.wait_for(lambda: self.made >= made, timeout=LIMIT_S)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "heterps-read-ahead"]


@pytest.fixture(autouse=True)
def _no_thread_stays() -> Generator[None]:
    yield
    gc.collect()
    for thread in threads():
        thread.join(LIMIT_S)
    assert not threads()


def test_the_same_reads_in_the_same_order():
    reader = Numbers(100)
    with prefetch(reader, depth=3) as ahead:
        assert [read.position["at"] for read in ahead] == list(range(1, 101))
        assert list(ahead) == []
        assert ahead.skipped == 7
    assert reader.closed.is_set()


def test_no_more_than_depth_are_made_ahead():
    reader = Numbers(100)
    with prefetch(reader, depth=3) as ahead:
        assert reader.wait_for(3)
        for taken in range(1, 20):
            next(ahead)
            assert reader.wait_for(taken + 3)
            assert reader.made == taken + 3
    with pytest.raises(InvalidInput, match="depth"):
        prefetch(reader, depth=0)


def test_an_error_comes_after_the_reads_before_it():
    with prefetch(Numbers(5, error=HeterPSError("day.tsv, line 6")), depth=2) as ahead:
        assert [next(ahead).position["at"] for _ in range(5)] == [1, 2, 3, 4, 5]
        with pytest.raises(HeterPSError, match=r"day.tsv, line 6"):
            next(ahead)
        assert list(ahead) == []


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_closing_early_ends_the_thread(taken: int):
    reader = Numbers(10**9)
    ahead = prefetch(reader, depth=2)
    for _ in range(taken):
        next(ahead)
    ahead.close()
    assert reader.closed.wait(LIMIT_S)
    assert not threads()
    ahead.close()
    assert list(ahead) == []


def test_closing_does_not_wait_for_a_stuck_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("heterps.data.ahead._PATIENCE_S", 0.01)
    stuck, free = threading.Event(), threading.Event()

    def source() -> Generator[int]:
        stuck.set()
        free.wait(LIMIT_S)
        yield 1

    ahead: Ahead[int] = Ahead(source(), depth=1)
    assert stuck.wait(LIMIT_S)
    ahead.close()
    assert list(ahead) == []
    assert threads()
    free.set()


def test_closing_from_another_thread_frees_a_waiting_consumer():
    stuck, free = threading.Event(), threading.Event()

    def source() -> Generator[int]:
        stuck.set()
        free.wait(LIMIT_S)
        yield 1

    ahead: Ahead[int] = Ahead(source(), depth=1)
    got: list[list[int]] = []
    consumer = threading.Thread(target=lambda: got.append(list(ahead)))
    consumer.start()
    assert stuck.wait(LIMIT_S)
    ahead._channel.close()
    consumer.join(LIMIT_S)
    assert got == [[]]
    free.set()


def test_what_is_forgotten_ends_by_itself():
    ahead = prefetch(Synthetic(rows=10_000).reader(batch_size=10, epochs=None))
    next(ahead)
    assert threads()
    del ahead


def test_both_threads_of_a_real_reader_end(tmp_path):
    path = tmp_path / "day.tsv"
    path.write_text("\n".join(criteo_lines(500, seed=0)))
    source = Criteo(str(path), shuffle_bytes=10_000)
    with prefetch(source.reader(batch_size=10, epochs=None)) as ahead:
        next(ahead)
    assert not threads()
    with prefetch(source.reader(batch_size=10)) as ahead:
        assert rows_of(ahead) == rows_of(source.reader(batch_size=10))


def test_closing_frees_a_source_that_waits_for_others():
    stuck, free = threading.Event(), threading.Event()

    def source() -> Generator[int]:
        stuck.set()
        free.wait(LIMIT_S)
        yield 1

    ahead: Ahead[int] = Ahead(source(), depth=1, stop=free.set)
    assert stuck.wait(LIMIT_S)
    ahead.close()
    assert not threads()
    free.clear()
    done: Ahead[int] = Ahead(iter_closing([1]), depth=1, stop=free.set)
    assert list(done) == [1]
    done.close()
    assert not free.is_set(), "it had ended by itself"


def iter_closing(items: list[int]) -> Generator[int]:
    yield from items
