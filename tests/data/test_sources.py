"""What every source keeps, whatever its kind: rows once an epoch, shards, splits, resuming."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heterps.data import make_source, prefetch
from heterps.data.rows import to_batch
from heterps.errors import HeterPSError, InvalidInput
from tests.data.conftest import KINDS, Known
from tests.data.reference import rows_of, rows_of_batch

kinds = pytest.mark.parametrize("kind", KINDS)
some = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
options = st.fixed_dictionaries(
    {"batch_size": st.integers(1, 120), "seed": st.integers(-(2**63), 2**63), "shuffle": st.booleans()}
)


def same(one, other) -> bool:
    return [rows_of_batch(read.batch) for read in one] == [rows_of_batch(read.batch) for read in other]


@kinds
def test_unshuffled_rows_are_those_of_the_reference_in_order(kind: str, known_sources: dict[str, Known]):
    known = known_sources[kind]
    reads = list(known.source.reader(batch_size=64, shuffle=False))
    assert [len(read.batch["label"]) for read in reads[:-1]] == [64] * (known.count // 64)
    rows = rows_of(reads)
    assert len(rows) == known.count == len(set(rows))
    if known.rows is not None:
        for row, expected in zip(rows, known.rows, strict=True):
            assert row[0] == pytest.approx(expected[0], rel=1e-6)
            assert row[1:] == expected[1:]


@kinds
def test_batches_hold_the_columns_they_announce(kind: str, known_sources: dict[str, Known]):
    source = known_sources[kind].source
    batch = next(source.reader(batch_size=5)).batch
    assert tuple(batch) == source.columns
    assert all(len(value) == 5 for value in batch.values())
    assert batch["ids"].dtype == torch.int64
    assert batch["label"].dtype == torch.float32
    assert "dense" not in batch or batch["dense"].dtype == torch.float32


@kinds
@some
@given(options=options, shards=st.integers(1, 5), epochs=st.integers(1, 3))
def test_every_row_once_an_epoch_over_all_shards(kind: str, known_sources, options, shards: int, epochs: int):
    known = known_sources[kind]
    everything = Counter(rows_of(known.source.reader(batch_size=100, shuffle=False)))
    rows: Counter = Counter()
    for shard in range(shards):
        rows.update(rows_of(known.source.reader(**options, shard=(shard, shards), epochs=epochs)))
    assert rows == Counter({row: epochs * count for row, count in everything.items()})


@kinds
@some
@given(options=options, epochs=st.integers(1, 3), stop=st.integers(0, 500), shards=st.integers(1, 3),
       drop_last=st.booleans(), fraction=st.sampled_from([0, 0.3]), other=st.integers(1, 120))  # fmt: skip
def test_resuming_anywhere_is_the_unbroken_run(
    kind: str, known_sources, options, epochs: int, stop: int, shards: int, drop_last: bool, fraction: float, other: int
):
    source = known_sources[kind].source.split(fraction)[0] if fraction else known_sources[kind].source
    common = {**options, "epochs": epochs, "shard": (shards - 1, shards), "drop_last": drop_last}
    unbroken = list(source.reader(**common))
    if not unbroken:
        return
    stop %= len(unbroken)
    position = json.loads(json.dumps(unbroken[stop].position))
    resumed = list(source.reader(**common, position=position))
    assert same(resumed, unbroken[stop + 1 :])
    assert [read.position for read in resumed] == [read.position for read in unbroken[stop + 1 :]]
    with prefetch(source.reader(**common, position=position), depth=2) as ahead:
        assert same(ahead, resumed)
    if not drop_last:  # rows go on as well in batches of another size
        cut = rows_of(source.reader(**{**common, "batch_size": other}, position=position))
        assert cut == rows_of(unbroken[stop + 1 :])


@kinds
def test_shuffling_depends_on_seed_and_epoch_only(kind: str, known_sources: dict[str, Known]):
    source, count = known_sources[kind].source, known_sources[kind].count
    rows = rows_of(source.reader(batch_size=50, seed=3, epochs=2))
    assert rows == rows_of(source.reader(batch_size=7, seed=3, epochs=2))
    assert rows[:count] != rows[count:]
    assert rows[:count] != rows_of(source.reader(batch_size=50, seed=4))
    assert rows[:count] != rows_of(source.reader(batch_size=50, shuffle=False))


@kinds
@some
@given(options=options, fraction=st.floats(0.05, 0.9), seed=st.integers(0, 2**63), shards=st.integers(1, 3))
def test_a_split_is_disjoint_and_stable(kind: str, known_sources, options, fraction: float, seed: int, shards: int):
    source, count = known_sources[kind].source, known_sources[kind].count
    training, held_out = source.split(fraction, seed=seed)
    first, second = rows_of(training.reader(batch_size=64)), rows_of(held_out.reader(batch_size=64))
    assert not set(first) & set(second)
    assert Counter(first + second) == Counter(rows_of(source.reader(batch_size=64)))
    assert abs(len(second) - fraction * count) < 5 * (count * fraction * (1 - fraction)) ** 0.5 + 1
    again = [row for i in range(shards) for row in rows_of(held_out.reader(**options, shard=(i, shards)))]
    assert Counter(again) == Counter(second)


@kinds
def test_a_split_can_be_split(kind: str, known_sources: dict[str, Known]):
    training, held_out = known_sources[kind].source.split(0.4)
    deeper = [rows_of(side.reader(batch_size=64)) for side in training.split(0.4)]
    assert Counter(deeper[0] + deeper[1]) == Counter(rows_of(training.reader(batch_size=64)))
    assert all(deeper), "the same seed again, but another choice"
    assert rows_of(held_out.split(0)[1].reader(batch_size=64)) == []


@kinds
def test_endless_reading_goes_on(kind: str, known_sources: dict[str, Known]):
    known = known_sources[kind]
    with known.source.reader(batch_size=known.count, epochs=None) as reader:
        reads = [next(reader) for _ in range(4)]
    assert [read.position["epoch"] for read in reads] == [0, 1, 2, 3]
    assert len({tuple(rows_of([read])) for read in reads}) == 4
    reader.close()
    assert list(reader) == []


@kinds
def test_what_cannot_go_on_says_so(kind: str, known_sources: dict[str, Known]):
    source = known_sources[kind].source
    with pytest.raises(HeterPSError, match="less than one batch"):
        next(source.reader(batch_size=10_000, epochs=None, drop_last=True))
    with pytest.raises(HeterPSError, match="no rows"):
        next(source.split(0)[1].reader(batch_size=3, epochs=None))
    for wrong in ({"batch_size": 0}, {"batch_size": 1, "epochs": -1}, {"batch_size": 1, "shard": (2, 2)}):
        with pytest.raises(InvalidInput):
            source.reader(**wrong)
    with pytest.raises(InvalidInput, match="fraction"):
        source.split(1.0)


@kinds
def test_a_position_of_another_reader_is_refused(kind: str, known_sources: dict[str, Known]):
    source = known_sources[kind].source
    position = next(source.reader(batch_size=5)).position
    for other in ({"seed": 1}, {"shuffle": False}, {"shard": (0, 2)}):
        with pytest.raises(InvalidInput, match="belongs to a reader of other"):
            source.reader(batch_size=5, position=position, **other)
    with pytest.raises(InvalidInput, match="belongs to a reader of other"):
        source.split(0.1)[0].reader(batch_size=5, position=position)
    with pytest.raises(InvalidInput, match="not the position"):
        source.reader(batch_size=5, position={"step": 3})


@kinds
def test_a_source_is_its_own_spec(kind: str, known_sources: dict[str, Known]):
    assert make_source(known_sources[kind].source) is known_sources[kind].source


@kinds
@some
@given(options=options, fraction=st.sampled_from([0, 0.3]), data=st.data())
def test_some_columns_alone_are_the_same_rows(kind: str, known_sources, options, fraction: float, data):
    source = known_sources[kind].source.split(fraction)[0] if fraction else known_sources[kind].source
    chosen = data.draw(st.sets(st.sampled_from(source.columns), min_size=1))
    everything, few = list(source.reader(**options)), list(source.reader(**options, columns=chosen))
    assert [read.position for read in few] == [read.position for read in everything]
    for one, other in zip(few, everything, strict=True):
        assert tuple(one.batch) == tuple(name for name in source.columns if name in chosen)
        assert rows_of_batch(one.batch) == rows_of_batch({name: other.batch[name] for name in one.batch})
    with pytest.raises(InvalidInput, match="columns: at least one of"):
        source.reader(**options, columns=["colour"])


@kinds
@settings(some, max_examples=5)  # each section is a pass of its own over the places
@given(options=options, epoch=st.integers(0, 2), start=st.integers(0, 500))
def test_sections_can_be_decoded_one_by_one(kind: str, known_sources, options, epoch: int, start: int):
    source = known_sources[kind].source
    way = source.make_pass(**options, shard=(0, 1), columns=source.columns)
    parts = list(way.parts(epoch, ()))
    places = list(way.sections(epoch, ()))
    alone = [part for place in places for part in way.decode(epoch, [place])]
    assert [(part.place, part.after) for part in alone] == [(part.place, part.after) for part in parts]
    assert sum(part.last for part in parts) == len(places)
    for one, other in zip(alone, parts, strict=True):
        rows = (rows_of_batch(to_batch(part.take(0, len(part)))) for part in (one, other))
        assert next(rows) == next(rows)
    start %= len(parts)
    rest = list(way.parts(epoch, parts[start].place))
    assert [part.place for part in rest] == [part.place for part in parts[start:]]
