"""Evaluations during and after a run, early stop, and the AUC of the run's own scores."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torchmetrics.functional.classification import binary_auroc

from heterps.data import Synthetic
from heterps.errors import InvalidInput
from heterps.models import Bags, Batch, Chain, Layer, zoo
from heterps.runtime import EarlyStop, evaluate, train
from tests.runtime.chains import random_batches, seeded, small
from tests.runtime.plain import sgd
from tests.runtime.plans import make_plan

BATCHES = random_batches(12)
HELD_OUT = random_batches(7, seed=99)


def by_hand(chain: Chain, batches: list[Batch]) -> tuple[float, float]:
    """Loss and AUC over all samples at once."""
    whole: Batch = {
        name: Bags.join([b[name] for b in batches])
        if isinstance(value, Bags)
        else torch.cat([b[name] for b in batches])
        for name, value in batches[0].items()
    }
    scores, labels = chain.predict(whole).detach(), whole["label"]
    value = functional.binary_cross_entropy_with_logits(scores, labels)
    return float(value), float(binary_auroc(scores.sigmoid(), labels.int()))


@pytest.mark.parametrize("cuts", [(), (1, 3)], ids=str)
def test_an_evaluation_is_what_one_gets_by_hand(cuts: tuple[int, ...]):
    """Batches of other sizes weigh by their samples; ids that training never saw are among them."""
    chain = small()
    result = train(chain, BATCHES, make_plan(chain, cuts), micro_batches=2, optimizer=sgd, evaluation=HELD_OUT)
    loss, auc = by_hand(chain, HELD_OUT)
    assert result.eval_loss == pytest.approx(loss, rel=1e-5)
    assert result.auc == pytest.approx(auc, abs=2e-3)
    assert [found["step"] for found in result.evaluations] == [12]
    assert result.evaluations[0]["samples"] == sum(len(batch["label"]) for batch in HELD_OUT)


def test_evaluations_between_steps_change_nothing():
    chain, alone = small(), small()
    result = train(chain, BATCHES, optimizer=sgd, evaluation=HELD_OUT, eval_every=5)
    other = train(alone, BATCHES, optimizer=sgd)
    assert [found["step"] for found in result.evaluations] == [5, 10, 12]
    assert result.losses == other.losses
    assert chain.tables["rows"].stats().rows == alone.tables["rows"].stats().rows, "no rows are made"
    assert all(torch.equal(a, b) for a, b in zip(chain.parameters(), alone.parameters(), strict=True))


def test_an_evaluation_sees_the_weights_of_its_step():
    """That at step 5 is that of a run that ends there, in async mode too: the pipeline is drained for it."""
    for mode in ({}, {"mode": "async", "staleness": 3}):
        settings = {"optimizer": sgd, "evaluation": HELD_OUT, "micro_batches": 2, **mode}
        first = train(small(), BATCHES, make_plan(5, (1, 2)), eval_every=5, **settings)
        assert [found["step"] for found in first.evaluations] == [5, 10, 12]
    short = train(small(), BATCHES[:5], make_plan(5, (1, 2)), optimizer=sgd, evaluation=HELD_OUT, micro_batches=2)
    long = train(
        small(), BATCHES, make_plan(5, (1, 2)), optimizer=sgd, evaluation=HELD_OUT, micro_batches=2, eval_every=5
    )
    assert short.eval_loss == long.evaluations[0]["loss"]


def test_only_some_batches():
    chain = small()
    result = train(chain, BATCHES, optimizer=sgd, evaluation=HELD_OUT, eval_batches=2)
    assert result.eval_loss == pytest.approx(by_hand(chain, HELD_OUT[:2])[0], rel=1e-5)


def test_the_auc_of_a_run_is_that_of_its_own_scores():
    """Without held-out data: each step's scores as they were before its update."""
    scores = []

    @seeded
    def watched() -> Chain:
        chain = small()
        *layers, logit, last = chain.layers
        seen = Layer("seen", lambda logit: (scores.append(logit.detach().reshape(-1)), logit)[1], reads="logit",
                     writes="score")  # fmt: skip
        return Chain(*layers, logit, seen, Layer("loss", last.module, reads=["score", "label"], writes="loss"))

    result = train(watched(), BATCHES, optimizer=sgd)
    labels = torch.cat([batch["label"] for batch in BATCHES])
    assert result.auc == pytest.approx(float(binary_auroc(torch.cat(scores).sigmoid(), labels.int())), abs=2e-3)
    assert result.eval_loss is None


def test_the_auc_does_not_depend_on_the_plan():
    results = [
        train(small(), BATCHES, make_plan(5, cuts), micro_batches=parts, optimizer=sgd).auc
        for cuts, parts in (((), 1), ((1, 3), 4), ((4,), 3))
    ]
    assert results == pytest.approx([results[0]] * 3, abs=1e-6)


def test_a_chain_without_a_score_has_no_auc():
    args = {"paper": True, "slots": 2, "vector": 4, "candidates": 3, "dim": 4}
    batches = [zoo.example("nce", 8, seed=number, rows=20, **args) for number in range(3)]
    result = train(zoo.build("nce", **args), batches, evaluation=batches)
    assert result.auc is None
    assert result.eval_loss is not None


class Plateau:
    """Held-out data on which the loss stands still: every evaluation reads the same batch."""

    def __iter__(self):
        return iter(HELD_OUT[:1])


def test_early_stop_after_evaluations_without_gain():
    """With a learning rate of 0 nothing gets better after the first evaluation."""

    def still(parameters):
        return torch.optim.SGD(parameters, lr=0.0)

    settings = {"optimizer": still, "schedule": lambda _: 0.0, "evaluation": Plateau(), "eval_every": 2}
    result = train(small(), BATCHES, early_stop=EarlyStop(patience=2), **settings)
    assert (result.stopped, result.steps) == ("early", 6)
    assert len(result.losses) == 6
    result = train(small(), BATCHES, early_stop=EarlyStop(patience=9), **settings)
    assert (result.stopped, result.steps) == ("done", 12)


def test_no_early_stop_while_it_gets_better():
    source = Synthetic(rows=4_000, ids=500, slots=3, dense=2, in_memory=True)
    training, held_out = source.split(0.3)
    settings = {
        "optimizer": "adam",
        "lr": 1e-3,
        "batch_size": 128,
        "evaluation": held_out,
        "eval_every": 5,
        "steps": 40,
    }
    result = train(small(), training, early_stop=EarlyStop(patience=3), **settings)
    assert result.stopped == "done"
    result = train(small(), training, early_stop=EarlyStop(patience=3, min_gain=0.5), **settings)
    assert (result.stopped, result.steps) == ("early", 20), "no gain is as large as that"


def test_evaluating_by_itself():
    chain = small()
    train(chain, BATCHES, optimizer=sgd)
    found = evaluate(chain, HELD_OUT)
    loss, auc = by_hand(chain, HELD_OUT)
    assert (found.loss, found.auc) == (pytest.approx(loss, rel=1e-5), pytest.approx(auc, abs=2e-3))


def test_there_must_be_data_to_evaluate_on():
    chain = small()
    train(chain, BATCHES, optimizer=sgd)
    with pytest.raises(InvalidInput, match="no data to evaluate on"):
        evaluate(chain, [])
    once = iter(HELD_OUT)
    with pytest.raises(InvalidInput, match="an iterator that was read before"):
        train(small(), BATCHES, optimizer=sgd, evaluation=once, eval_every=4)


def test_dropout_is_off_in_evaluations_and_on_again_after():
    @seeded
    def make() -> Chain:
        *layers, last = small().layers
        drop = Layer("drop", torch.nn.Dropout(0.9), reads="logit", writes="dropped")
        return Chain(*layers, drop, Layer("loss", last.module, reads=["dropped", "label"], writes="loss"))

    chain = make()
    first, second = (train(chain, BATCHES, optimizer=sgd, evaluation=HELD_OUT) for _ in range(2))
    assert chain.training
    assert evaluate(chain, HELD_OUT).loss == evaluate(chain, HELD_OUT).loss == second.eval_loss
    assert first.eval_loss != second.eval_loss
