"""The binned AUC against torchmetrics, and against counting pairs."""

from __future__ import annotations

import json
import math
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.classification import BinaryAUROC

from heterps.errors import InvalidInput
from heterps.telemetry import Auc, metrics


def auc_of(scores: list[float] | torch.Tensor, labels: list[int] | torch.Tensor, **options: object) -> float:
    auc = Auc(**options)  # type: ignore[arg-type]
    auc.update(torch.as_tensor(scores, dtype=torch.float32), torch.as_tensor(labels))
    return auc.compute()


def reference(p: torch.Tensor, labels: torch.Tensor, thresholds: int) -> float:
    """torchmetrics' AUC of probabilities, with the corner it leaves out: half of the pairs tied at p = 1."""
    metric = BinaryAUROC(thresholds=thresholds)
    metric.update(p, labels.int())
    positive = labels > 0.5
    corner = (p[positive] >= 1).double().mean() * (p[~positive] >= 1).double().mean() / 2
    return float(metric.compute()) + float(corner)


def by_pairs(scores: torch.Tensor, labels: torch.Tensor) -> float:
    positive, negative = scores[labels > 0.5], scores[labels <= 0.5]
    differences = positive[:, None] - negative
    return float(((differences > 0).double() + (differences == 0).double() / 2).mean())


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(2, 300),
    thresholds=st.sampled_from([2, 3, 10, 101, 500, 2000]),
    spread=st.sampled_from([0.01, 1.0, 4.0, 30.0]),
    levels=st.sampled_from([None, 3, 50]),
    pieces=st.integers(1, 3),
)
def test_equals_torchmetrics_on_logits(
    seed: int, n: int, thresholds: int, spread: float, levels: int | None, pieces: int
):
    """`levels` makes ties; a spread of 30 makes probabilities of 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(n, generator=generator) * spread
    if levels:
        scores = (scores * levels).round() / levels
    labels = (torch.rand(n, generator=generator) < scores.sigmoid()).float()
    labels[:2] = torch.tensor([0.0, 1.0])
    auc = Auc(thresholds)
    for some, their in zip(scores.chunk(pieces), labels.chunk(pieces), strict=True):
        auc.update(some, their)
    p = torch.cat(
        [some.sigmoid() for some in scores.chunk(pieces)]
    )  # in the same pieces: vector code may round otherwise
    assert auc.compute() == pytest.approx(reference(p, labels, thresholds), abs=2e-6)


@settings(max_examples=60, deadline=None)
@given(
    data=st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=2, max_size=60),
    thresholds=st.sampled_from([2, 5, 21, 100]),
)
def test_equals_torchmetrics_on_probabilities_at_thresholds_and_at_0_and_1(
    data: list[tuple[int, bool]], thresholds: int
):
    """Twentieths: with 21 thresholds every one of them is a threshold, rounded as linspace rounds."""
    grid = torch.linspace(0, 1, 21)
    p = torch.stack([grid[i] for i, _ in data])
    labels = torch.tensor([label for _, label in data]).int()
    labels[:2] = torch.tensor([0, 1])
    assert auc_of(p, labels, thresholds=thresholds, logits=False) == pytest.approx(
        reference(p, labels, thresholds), abs=2e-6
    )


@pytest.mark.parametrize("seed", range(3))
def test_approaches_the_exact_auc_as_bins_get_small(seed: int):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(500, generator=generator)
    labels = (torch.rand(500, generator=generator) < scores.sigmoid()).float()
    assert auc_of(scores, labels, thresholds=200_000) == pytest.approx(by_pairs(scores, labels), abs=1e-4)


@pytest.mark.parametrize(
    ("scores", "labels", "expected"),
    [
        ([-1.0, 1.0], [0, 1], 1.0),
        ([-1.0, 1.0], [1, 0], 0.0),
        ([0.3, 0.3], [0, 1], 0.5),
        ([100.0, 100.0], [0, 1], 0.5),  # torchmetrics: 0
        ([-200.0, -200.0], [0, 1], 0.5),
        ([-math.inf, math.inf], [0, 1], 1.0),
        ([-2.0, 0.0, 0.0, 3.0], [0, 1, 0, 1], 0.875),
    ],
)
def test_by_hand(scores: list[float], labels: list[int], expected: float):
    assert auc_of(scores, labels) == expected


@pytest.mark.parametrize(
    ("scores", "labels"), [([], []), ([0.1, 0.2], [1, 1]), ([0.1, 0.2], [0, 0]), ([0.1, math.nan, 0.3], [0, 1, 1])]
)
def test_nothing_to_tell_is_nan(scores: list[float], labels: list[int]):
    assert math.isnan(auc_of(scores, labels))


def test_probabilities_outside_their_range_count_as_0_and_1():
    assert auc_of([-0.5, 0.0, 1.0, 1.5], [1, 0, 0, 1], logits=False) == auc_of([0, 0, 1, 1], [1, 0, 0, 1], logits=False)


@pytest.mark.parametrize("labels", [torch.int64, torch.int32, torch.bool, torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("scores", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_types_and_shapes(labels: torch.dtype, scores: torch.dtype):
    auc = Auc()
    given_scores = torch.tensor([[-1.0], [0.5], [1.0], [0.5]], dtype=scores, requires_grad=True)
    auc.update(given_scores, torch.tensor([0, 1, 1, 0], dtype=labels))
    assert auc.compute() == 0.875
    assert given_scores.tolist() == [[-1.0], [0.5], [1.0], [0.5]]


def test_probabilities_are_left_as_they_were():
    p = torch.tensor([0.25, math.nan])
    Auc(logits=False).update(p, torch.tensor([0, 1]))
    assert p[0] == 0.25
    assert p[1].isnan()


def test_a_state_goes_on_elsewhere():
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(400, generator=generator), torch.randint(0, 2, (400,), generator=generator)
    whole, first, second, third = Auc(50), Auc(50), Auc(50), Auc(50)
    whole.update(scores, labels)
    first.update(scores[:150], labels[:150])
    second.update(scores[:10], 1 - labels[:10])  # to be forgotten
    second.load(json.loads(json.dumps(first.state())))
    second.update(scores[150:300], labels[150:300])
    third.update(scores[300:], labels[300:])
    second.merge(third.state())
    assert second.state() == whole.state()
    assert second.compute() == whole.compute()
    second.reset()
    assert math.isnan(second.compute())
    second.update(scores, labels)
    assert second.compute() == whole.compute()


def test_what_does_not_fit_is_refused():
    with pytest.raises(InvalidInput, match="2 thresholds or more"):
        Auc(1)
    with pytest.raises(InvalidInput, match="3 for 2"):
        Auc().update(torch.zeros(2), torch.zeros(3))
    with pytest.raises(InvalidInput, match="must have its 10 thresholds"):
        Auc(10).load(Auc(20).state())
    with pytest.raises(InvalidInput, match="logits=True"):
        Auc(10).load(Auc(10, logits=False).state())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same_and_is_not_waited_for():
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(4096, generator=generator), torch.randint(0, 2, (4096,), generator=generator)
    auc, on_gpu = Auc(), (scores.cuda(), labels.cuda())
    torch.cuda.set_sync_debug_mode("error")
    try:
        auc.update(*on_gpu)
        auc.update(*on_gpu)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    auc.update(scores, labels)
    assert auc.compute() == pytest.approx(auc_of(scores, labels), abs=1e-4)
    assert sum(auc.state()["positives"]) == 3 * int(labels.sum())


def test_many_updates_of_several_threads_are_one():
    """However samples come, in pieces of any size, from a buffer of labels that is used again."""
    generator = torch.Generator().manual_seed(3)
    scores, labels = torch.randn(200_000, generator=generator), torch.rand(200_000, generator=generator)
    whole, pieces = Auc(), Auc()
    whole.update(scores, labels)

    def count(first: int) -> None:
        buffer = torch.empty(1500)
        for start in range(first, 200_000, 4 * 1500):
            size = min(1500, 200_000 - start)
            buffer[:size] = labels[start : start + size]
            pieces.update(scores[start : start + size], buffer[:size])
            buffer.zero_()

    threads = [threading.Thread(target=count, args=(1500 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    pieces.compute()  # meanwhile
    for thread in threads:
        thread.join()
    assert pieces.state() == whole.state()


def test_counting_beside_updates_loses_and_repeats_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metrics, "TOGETHER", 64)
    auc, done = Auc(thresholds=50), threading.Event()

    def count() -> None:
        while not done.is_set():
            auc.count()

    counting = threading.Thread(target=count)
    counting.start()
    scores, labels = torch.randn(400, 16), torch.randint(2, (400, 16))
    for own, of in zip(scores, labels, strict=True):
        auc.update(own, of)
    done.set()
    counting.join()
    state = auc.state()
    assert sum(state["negatives"]) + sum(state["positives"]) == scores.numel()
    whole = Auc(thresholds=50)
    whole.update(scores, labels)
    assert state == whole.state()
