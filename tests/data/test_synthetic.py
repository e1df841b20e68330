"""Synthetic rows: pure functions of their number, with the law and the signal that are promised."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import rankdata

from heterps.data import Synthetic, hash_id
from heterps.errors import InvalidInput
from heterps.models import Bags


def read_all(source: Synthetic, batch_size: int = 50_000) -> dict[str, np.ndarray]:
    (read,) = source.reader(batch_size=batch_size, shuffle=False)
    return {name: value.numpy() for name, value in read.batch.items() if not isinstance(value, Bags)}


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    clicks = int(labels.sum())
    others = len(labels) - clicks
    return float((rankdata(scores)[labels == 1].sum() - clicks * (clicks + 1) / 2) / (clicks * others))


def test_a_row_is_a_function_of_seed_and_number():
    source = Synthetic(rows=1000, multi=["tags"])
    every = source.make(np.arange(1000))
    some = np.array([999, 0, 17, 17])
    assert (source.make(some)["ids"] == every["ids"][some]).all()
    assert (source.make(some)["dense"] == every["dense"][some]).all()
    assert (source.make(some)["tags"].ids == every["tags"].take(some).ids).all()
    assert (Synthetic(rows=7, multi=["tags"]).make(some)["ids"] == every["ids"][some]).all(), "whatever the row count"
    assert (Synthetic(rows=1000, seed=1).make(np.arange(1000))["dense"] != every["dense"]).mean() > 0.99


def test_rows_stay_as_they_are():
    """Written down once: benchmarks compare with what earlier versions were trained on."""
    hashed = Synthetic().make(np.array([12345]))
    assert hashed["ids"][0, 0] == hash_id("C1", (5).to_bytes(8, "little"))
    row = Synthetic(multi=["tags"], id_space="dense").make(np.array([12345]))
    assert row["ids"][0, ::5].tolist() == [5, 349, 2829, 14198, 86077, 492364]
    assert row["dense"][0, :3].tolist() == pytest.approx([0.11977622, 2.2089093, 0.54882455])
    assert row["tags"].ids.tolist() == [701832, 702477, 718564, 701932]


@pytest.mark.parametrize("ids", [30, 1000, 1_000_000, 10**10])
def test_dense_ids_fill_their_space(ids: int):
    source = Synthetic(rows=50_000, ids=ids, multi=["tags"], id_space="dense")
    sizes = source.slot_sizes
    assert sum(sizes) == ids
    assert len(sizes) == 27
    assert min(sizes) >= 1
    ends = np.cumsum(sizes)
    columns = source.make(np.arange(50_000))
    for slot in range(26):
        got = columns["ids"][:, slot]
        assert ends[slot] - sizes[slot] <= got.min()
        assert got.max() < ends[slot]
        if sizes[slot] < 100:
            assert len(np.unique(got)) == sizes[slot]
    tags = columns["tags"].ids
    assert ends[25] <= tags.min()
    assert tags.max() < ids
    sizes_of_bags = np.diff(columns["tags"].offsets)
    assert set(sizes_of_bags.tolist()) == {0, 1, 2, 3, 4}


def test_hashed_ids_are_the_dense_ones_renamed():
    dense = read_all(Synthetic(rows=5000, id_space="dense"))
    hashed = read_all(Synthetic(rows=5000))
    pairs = set(zip(dense["ids"].ravel().tolist(), hashed["ids"].ravel().tolist(), strict=True))
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})
    assert (dense["label"] == hashed["label"]).all()
    assert (dense["dense"] == hashed["dense"]).all()


def test_ids_follow_zipf_by_octaves():
    """Ranks 0, 1-2, 3-6, ... are equally frequent: rank k has about 1/(k + 1) of the first one's share."""
    source = Synthetic(rows=200_000, slots=1, ids=2**16 - 1, id_space="dense")
    ranks = source.make(np.arange(200_000))["ids"][:, 0]
    octaves = np.bincount(np.floor(np.log2(ranks + 1)).astype(int), minlength=16)
    assert len(octaves) == 16
    assert (abs(octaves - 12_500) < 5 * 12_500**0.5).all()


def test_dense_features_are_nearly_normal():
    dense = read_all(Synthetic(rows=50_000))["dense"]
    assert abs(dense.mean(axis=0)).max() < 0.03
    assert abs(dense.std(axis=0) - 1).max() < 0.02
    assert abs(np.corrcoef(dense.T) - np.eye(13)).max() < 0.03


def test_labels_are_drawn_with_the_true_probability():
    source = Synthetic()
    label, _, _, _, probability = source.law.make(np.arange(200_000))
    assert 0.2 < label.mean() < 0.35
    for low in np.arange(0, 1, 0.1):
        chosen = (probability >= low) & (probability < low + 0.1)
        assert abs(label[chosen].mean() - probability[chosen].mean()) < 5 * (0.25 / chosen.sum()) ** 0.5
    assert auc(probability, label) == pytest.approx(source.best_auc(), abs=1e-9)
    assert 0.78 < source.best_auc() < 0.84


def test_signal_sets_how_much_can_be_known():
    scores = [Synthetic(signal=signal).best_auc(50_000) for signal in (0, 0.5, 1, 3)]
    assert scores[0] == pytest.approx(0.5, abs=0.01)
    assert scores == sorted(scores)
    assert scores[-1] > 0.9
    with pytest.raises(InvalidInput, match="larger"):
        Synthetic().best_auc(1)


@pytest.mark.parametrize("multi", [[], ["tags"]])
def test_the_signal_is_learnable(multi: list[str]):
    """Logistic regression over hashed ids, as simple as can be, comes close to the best after 300 steps."""
    source = Synthetic(rows=2_000_000, ids=100_000, multi=multi)
    best, size = source.best_auc(), 1 << 18
    training, held_out = source.split(0.01)
    weights, squares = np.zeros((2, size + 13))

    def features(batch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        ids = batch["ids"].numpy() % size
        rows = np.repeat(np.arange(len(ids)), ids.shape[1])
        ids = ids.ravel()
        for name in multi:
            ids = np.concatenate([ids, batch[name].ids.numpy() % size])
            sizes = np.diff(batch[name].offsets.numpy())
            rows = np.concatenate([rows, np.repeat(np.arange(len(sizes)), sizes)])
        return batch["dense"].numpy(), ids, rows

    def logits(dense: np.ndarray, ids: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return dense @ weights[size:] + np.bincount(rows, weights[ids], minlength=len(dense))

    for read in training.reader(batch_size=4096):
        dense, ids, rows = features(read.batch)
        error = 1 / (1 + np.exp(-logits(dense, ids, rows))) - read.batch["label"].numpy()
        grad = np.concatenate([np.bincount(ids, error[rows], minlength=size), dense.T @ error])
        squares += grad**2
        weights -= 0.1 * grad / (np.sqrt(squares) + 1e-8)
        if read.position["place"][0] > 300 * 4096:
            break
    scores, labels = [], []
    for read in held_out.reader(batch_size=4096):
        scores.append(logits(*features(read.batch)))
        labels.append(read.batch["label"].numpy())
    reached = auc(np.concatenate(scores), np.concatenate(labels))
    assert best - 0.02 < reached < best + 0.015


def test_rows_in_memory_are_made_once_and_shared_by_splits():
    source = Synthetic(rows=1000, in_memory=True)
    training, held_out = source.split(0.2)
    list(training.reader(batch_size=100))
    there = source.memory.all_rows(source)
    list(held_out.reader(batch_size=100))
    assert held_out.memory.all_rows(held_out) is there
    first = next(source.reader(batch_size=100, shuffle=False)).batch["ids"]
    assert first.data_ptr() == there["ids"].ctypes.data, "slices are not copied"


def test_few_columns():
    assert Synthetic(dense=0, slots=1, ids=1).columns == ("ids", "label")
    only = Synthetic(dense=2, slots=0, ids=0, rows=10)
    assert set(read_all(only)) == {"dense", "label"}
    assert list(Synthetic(rows=0).reader(batch_size=3)) == []
    tags = next(Synthetic(rows=10, multi=["tags"], slots=0, dense=0).reader(batch_size=10)).batch
    assert tuple(tags) == ("tags", "label")
    assert set(tags["tags"].ids.tolist()).isdisjoint({hash_id("tags", "")})


@pytest.mark.parametrize(
    "wrong",
    [{"rows": -1}, {"rows": 1.5}, {"ids": 25}, {"multi": "tags"}, {"multi": ["label"]}, {"multi": ["a", "a"]},
     {"id_space": "hash"}, {"signal": -1}, {"signal": float("nan")}, {"slots": True}],
)  # fmt: skip
def test_wrong_options(wrong: dict):
    with pytest.raises(InvalidInput, match="data: "):
        Synthetic(**wrong)
