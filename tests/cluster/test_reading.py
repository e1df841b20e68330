"""Reading together: all have the batches of a plain reader, each part is decoded once, and nobody waits for good."""

from __future__ import annotations

import gzip
import threading
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heterps.data import Criteo, Csv, Parquet, Read, Synthetic
from heterps.data.reader import MalformedRow, Part, Pass, Place
from heterps.errors import HeterPSError, InvalidInput
from heterps.models import Bags
from heterps.ps import Keys
from heterps.runtime.cluster import reading
from heterps.runtime.cluster.layout import Seat
from heterps.runtime.cluster.mail import Mail, PeerLost
from heterps.runtime.cluster.reading import Crew, MailPost, Post, SharedPass, Tensors
from heterps.runtime.feed import Feed
from tests.data.conftest import KINDS, TABLE, csv_text, make_known, table
from tests.data.reference import criteo_lines

PATIENCE_S = 150.0
"""For what takes moments, on a busy machine."""
MORE = ("csv with bad rows", "parquet of large row groups")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("reading")
    known = {kind: one.source for kind, one in make_known(folder).items()}
    order = ["clicked", "number", "price", "item", "user", "tags"]
    lines = csv_text(table(120, seed=3), order).splitlines()
    for at in (1, 7, 40, 41, 42, 119):
        lines[at] = lines[at].replace(",", ",x", 1)
    (folder / "bad.csv").write_text("\n".join(lines))
    known["csv with bad rows"] = Csv(str(folder / "bad.csv"), shuffle_bytes=2000, max_bad_rows=6, **TABLE)
    known["parquet of large row groups"] = Parquet(str(folder / "*.parquet"), shuffle_rows=7, **TABLE)
    return _Quiet(known)


class _Quiet(dict[str, Any]):
    def __repr__(self) -> str:
        return "sources"


class Desk:
    """Messages between the members of a crew, in memory; `most` is the most parts that ever waited at a member."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.there: dict[tuple[int, int, str], Tensors] = {}
        self.closed: set[int] = set()
        self.most: Counter[int] = Counter()

    def post(self, me: int) -> Post:
        return _DeskPost(self, me)


@dataclass
class _DeskPost:
    desk: Desk
    me: int

    def give(self, to: int, key: str, tensors: Tensors) -> None:
        with self.desk.changed:
            assert (self.me, to, key) not in self.desk.there, "sent twice"
            self.desk.there[self.me, to, key] = tensors
            waiting = sum(at == to and bool(held) for (_, at, _), held in self.desk.there.items())
            self.desk.most[to] = max(self.desk.most[to], waiting)
            self.desk.changed.notify_all()

    def take(self, sender: int, key: str) -> Tensors:
        wanted, end = (sender, self.me, key), (sender, self.me, reading.END)
        with self.desk.changed:
            come = self.desk.changed.wait_for(
                lambda: self.me in self.desk.closed or wanted in self.desk.there or end in self.desk.there, PATIENCE_S
            )
            assert come, f"{wanted} did not come"
            if self.me in self.desk.closed:
                raise PeerLost("closed")
            return self.desk.there.pop(wanted) if wanted in self.desk.there else self.desk.there[end]

    def close(self) -> None:
        with self.desk.changed:
            self.desk.closed.add(self.me)
            self.desk.changed.notify_all()


@dataclass
class Notes:
    """What the members of a crew do."""

    members: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    decoded: Counter[tuple[int, Place]] = field(default_factory=Counter)
    by_member: Counter[int] = field(default_factory=Counter)
    taken: Counter[int] = field(default_factory=Counter)
    """Own parts that the member itself took up."""
    lead: int = 0
    """The most own parts that a member had decoded and not taken up."""


class Counted(Pass):
    """A pass that notes what is decoded."""

    def __init__(self, way: Pass, notes: Notes, me: int) -> None:
        self.fingerprint, self._way, self._notes, self._me = way.fingerprint, way, notes, me

    def sections(self, epoch: int, place: Place) -> Iterator[Place]:
        return self._way.sections(epoch, place)

    def decode(self, epoch: int, places: Iterable[Place]) -> Generator[Part]:
        for part in self._way.decode(epoch, places):
            with self._notes.lock:
                self._notes.decoded[epoch, part.place] += 1
                self._notes.by_member[self._me] += 1
                lead = self._notes.by_member[self._me] - self._notes.taken[self._me]
                self._notes.lead = max(self._notes.lead, lead)
            yield part


class _Watched(SharedPass):
    def __init__(self, way: Pass, crew: Crew, notes: Notes) -> None:
        super().__init__(way, crew)
        self._notes = notes

    def _section(self, number: int, epoch: int, own: Any) -> Generator[Part]:
        for part in super()._section(number, epoch, own):
            if number % self._notes.members == self._me:
                with self._notes.lock:
                    self._notes.taken[self._me] += 1
            yield part


@dataclass(frozen=True)
class NotedCrew(Crew):
    notes: Notes

    def share(self, way: Pass) -> SharedPass:
        return _Watched(Counted(way, self.notes, self.me), self, self.notes)


class Pace:
    """Lets the member `fast` go before all others, by as many batches as it reads ahead at least."""

    def __init__(self, fast: int, batches: int, lead: int = 3) -> None:
        self.changed, self.done = threading.Condition(), Counter[int]()
        self.fast, self.batches, self.lead = fast, batches, lead

    def step(self, member: int) -> None:
        with self.changed:
            wanted = min(self.done[member] + self.lead, self.batches)
            if member != self.fast:
                assert self.changed.wait_for(lambda: self.done[self.fast] >= wanted, PATIENCE_S)
            self.done[member] += 1
            self.changed.notify_all()


def read_plain(source: Any, **options: Any) -> tuple[list[Read], int]:
    with Feed(source, **options) as feed:
        return list(feed), feed.skipped


def read_together(
    source: Any, reads: Sequence[Collection[str]], *, pace: Pace | None = None, desk: Desk | None = None, **options: Any
) -> tuple[list[tuple[list[Read], int]], Notes]:
    notes, desk = Notes(len(reads)), desk or Desk()

    def member(me: int) -> tuple[list[Read], int]:
        with Feed(source, crew=NotedCrew(me, reads, desk.post(me), notes), **options) as feed:
            assert feed.shared
            found = []
            for read in feed:
                if pace is not None:
                    pace.step(me)
                found.append(read)
            return found, feed.skipped

    return all_do(len(reads), member), notes


def all_do(members: int, work: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(members) as pool:
        return [future.result(PATIENCE_S) for future in [pool.submit(work, me) for me in range(members)]]


def same_value(one: Any, other: Any) -> bool:
    if isinstance(one, Bags):
        return torch.equal(one.ids, other.ids) and torch.equal(one.offsets, other.offsets)
    return one.dtype == other.dtype and torch.equal(one, other)


def check(found: list[Read], plain: list[Read], columns: Collection[str]) -> None:
    assert [read.position for read in found] == [read.position for read in plain]
    for one, other in zip(found, plain, strict=True):
        assert set(one.batch) == set(columns)
        assert all(same_value(value, other.batch[name]) for name, value in one.batch.items())


some = settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.mark.parametrize("kind", [*KINDS, *MORE])
@some
@given(members=st.integers(1, 4), later=st.integers(1, 4), stop=st.integers(0, 500), fast=st.integers(0, 3),
       fraction=st.sampled_from([0, 0, 0.3]), data=st.data(),
       options=st.fixed_dictionaries({"batch_size": st.integers(3, 90), "seed": st.integers(0, 2**40),
                                      "shuffle": st.booleans(), "epochs": st.integers(1, 3)}))  # fmt: skip
def test_everybody_has_the_batches_of_a_plain_reader(
    kind: str, sources, members: int, later: int, stop: int, fast: int, fraction: float, data: st.DataObject, options
):
    source = sources[kind].split(fraction)[0] if fraction else sources[kind]
    plain, skipped = read_plain(source, **options)
    reads = [data.draw(st.sets(st.sampled_from(source.columns))) for _ in range(members)]
    found, notes = read_together(source, reads, pace=Pace(fast % members, len(plain)), **options)
    for (batches, passed_over), columns in zip(found, reads, strict=True):
        check(batches, plain, columns or {"label"})
        assert passed_over == skipped
    assert set(notes.decoded.values()) == {1}
    assert notes.lead <= reading.DECODED_AHEAD + 1, "the one that is asked for, and those ahead of it"
    stop %= len(plain)
    again, _ = read_together(source, [source.columns] * later, position=plain[stop].position, **options)
    for batches, _ in again:
        check(batches, plain[stop + 1 :], source.columns)


def test_all_have_their_share_of_the_parts(sources):
    _, notes = read_together(sources["criteo"], [["label"]] * 3, batch_size=50, epochs=3, seed=0, shuffle=False)
    shares = notes.by_member.values()
    assert len(shares) == 3
    assert max(shares) - min(shares) <= 1
    assert sum(shares) == len(notes.decoded)


def test_what_waits_at_a_member_is_bounded(monkeypatch: pytest.MonkeyPatch):
    source, options = Synthetic(rows=20_000), {"batch_size": 100, "epochs": 1, "seed": 0}
    plain, _ = read_plain(source, **options)
    small = Desk()
    read_together(source, [source.columns] * 4, desk=small, pace=Pace(2, len(plain)), **options)
    assert max(small.most.values()) <= reading.MOST_ASKED + 1
    monkeypatch.setattr(reading, "WAITING_BYTES", 1)
    large = Desk()
    found, _ = read_together(source, [source.columns] * 4, desk=large, pace=Pace(2, len(plain)), **options)
    assert max(large.most.values()) <= 2
    for batches, _ in found:
        check(batches, plain, source.columns)


def test_a_member_that_rests_holds_the_others_back_without_an_end():
    """Nothing is decoded that it does not ask for, and when it goes on, so do all."""
    source, options = Synthetic(rows=30_000), {"batch_size": 100, "epochs": 1, "seed": 0}
    desk, notes, go = Desk(), Notes(3), threading.Event()
    reads = [source.columns] * 3

    def member(me: int) -> int:
        with Feed(source, crew=NotedCrew(me, reads, desk.post(me), notes), **options) as feed:
            if me == 0:
                first = next(iter(feed))
                assert go.wait(PATIENCE_S)
                assert sum(notes.decoded.values()) < 60, "of 300: what was read ahead of the one that rests"
                return 1 + sum(1 for _ in feed) if first else 0
            count = 0
            for _ in feed:
                count += 1
                if count == 5 and me == 1:
                    go.set()
            return count

    assert all_do(3, member) == [300, 300, 300]


def test_a_malformed_row_is_the_same_error_for_all(tmp_path: Path):
    lines = criteo_lines(400, seed=0)
    for at in (50, 200, 330):
        lines[at] = lines[at].replace("\t", "\tx", 1)
    (tmp_path / "day.tsv").write_text("\n".join(lines))
    (tmp_path / "day.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    for name, limit in (("day.tsv", 0), ("day.tsv", 2), ("day.gz", 1)):
        source = Criteo(str(tmp_path / name), shuffle_bytes=8000, max_bad_rows=limit)
        options = {"batch_size": 16, "epochs": 1, "seed": 0, "shuffle": False}
        with pytest.raises(MalformedRow, match="line") as plain:
            read_plain(source, **options)
        assert set(errors(source, 3, **options)) == {(MalformedRow, str(plain.value))}


def errors(source: Any, members: int, **options: Any) -> list[tuple[type, str]]:
    """What each member raises; none may wait for another one for good."""
    desk = Desk()

    def member(me: int) -> tuple[type, str]:
        with (
            pytest.raises(Exception) as raised,  # noqa: PT011
            Feed(source, crew=Crew(me, [source.columns] * members, desk.post(me)), **options) as feed,
        ):
            list(feed)
        return raised.type, str(raised.value)

    return all_do(members, member)


def test_a_file_that_one_cannot_read_is_an_error_for_all(tmp_path: Path):
    for number in range(3):
        packed = gzip.compress("\n".join(criteo_lines(200, seed=number)).encode())
        (tmp_path / f"{number}.gz").write_bytes(packed if number != 1 else packed[:-2000])
    source = Criteo(str(tmp_path), shuffle_bytes=8000)
    found = errors(source, 3, batch_size=16, epochs=1, seed=0, shuffle=False)
    assert {kind for kind, _ in found} == {HeterPSError}
    assert all("1.gz cannot be read" in text for _, text in found)


@pytest.mark.parametrize("kind", [InvalidInput, HeterPSError, ZeroDivisionError])
def test_an_error_is_everybodys(kind: type[Exception], monkeypatch: pytest.MonkeyPatch):
    """Its kind too, but for a bug, which others know by its name only."""
    source = Synthetic(rows=1000)
    made = source.law.make

    class Broken:
        def make(self, numbers: Any) -> Any:
            if 450 in numbers:
                raise kind("it does not work")
            return made(numbers)

    monkeypatch.setitem(source.__dict__, "law", Broken())
    found = errors(source, 3, batch_size=100, epochs=1, seed=0, shuffle=False)
    assert all("it does not work" in text for _, text in found)
    assert {raised for raised, _ in found} <= ({kind} if issubclass(kind, HeterPSError) else {kind, HeterPSError})


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "heterps-read-ahead"]


def test_closing_early_waits_for_nobody(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("heterps.data.ahead._PATIENCE_S", PATIENCE_S)
    source, desk = Synthetic(rows=10_000), Desk()
    before = threads()
    feeds = [
        Feed(source, crew=Crew(me, [source.columns] * 3, desk.post(me)), batch_size=100, epochs=None, seed=0)
        for me in range(3)
    ]
    for feed in feeds:
        next(iter(feed))
    for feed in feeds:
        feed.__exit__(None, None, None)
        assert feed is feeds[-1] or desk.closed
    assert not [thread for thread in threads() if thread not in before]


def test_over_real_sockets(sources):
    keys, seats = Keys.generate(), [Seat(0, 0), Seat(0, 1), Seat(1, 0)]
    options = {"batch_size": 20, "epochs": 2, "seed": 4}
    for kind in ("synthetic multi", "criteo", "parquet"):
        source = sources[kind]
        plain, _ = read_plain(source, **options)
        reads = [source.columns, source.columns, ("label",)]
        with ExitStack() as stack:
            mails = [Mail("127.0.0.1", keys, 1, me=seat) for seat in seats]
            for mail in mails:
                stack.callback(mail.close)
            for me, mail in enumerate(mails):
                others = {seat: other.address for seat, other in zip(seats, mails, strict=True) if seat != seats[me]}
                mail.connect(others)

            def member(me: int, mails=mails, source=source, reads=reads) -> list[Read]:
                with Feed(source, crew=Crew(me, reads, MailPost(mails[me], seats, me)), **options) as feed:
                    return list(feed)

            for found, columns in zip(all_do(3, member), reads, strict=True):
                check(found, plain, columns)
            assert all(mail.dropped == 0 for mail in mails)


def test_other_data_is_read_by_everybody():
    batches = [{"x": torch.ones(3)}, {"x": torch.zeros(2)}]
    with Feed(batches, batch_size=1, epochs=2, seed=0, crew=Crew(1, [["x"]] * 2, Desk().post(1))) as feed:
        assert not feed.shared
        assert len(list(feed)) == 4
