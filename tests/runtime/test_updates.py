"""How a step changes the weights: optimizers, clipping, schedules, precision; against plain PyTorch."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from heterps.errors import InvalidInput
from heterps.models import Chain
from heterps.runtime import train
from heterps.runtime.schedules import Schedule, cosine, exponential, linear, make_schedule, warmup
from heterps.runtime.settings import OPTIMIZERS
from tests.runtime.chains import DIM, IDS, SLOTS, embedding, fc, loss, random_batches, seeded, small
from tests.runtime.plain import Factory, plain, rows_of, sgd
from tests.runtime.plans import make_plan

BATCHES = random_batches(12)
CUTS = [(), (1,), (2, 4), (1, 2, 3)]
every_cut = pytest.mark.parametrize("cuts", CUTS, ids=str)


@every_cut
@pytest.mark.parametrize("clip_norm", [0.05, 0.3, 100.0])
def test_clipping_is_torchs_over_all_stages(cuts: tuple[int, ...], clip_norm: float):
    expected = plain(small, BATCHES, ids=IDS, clip_norm=clip_norm)
    chain = small()
    result = train(chain, BATCHES, make_plan(chain, cuts), micro_batches=3, optimizer=sgd, clip_norm=clip_norm)
    expected.assert_same(chain, result.losses)


def test_clipping_matters_here():
    """The norms above lie on both sides of what the gradients have."""
    free, tight, loose = (plain(small, BATCHES, ids=IDS, clip_norm=norm).losses for norm in (None, 0.3, 100.0))
    assert free == loose
    assert free != tight


@pytest.mark.parametrize("staleness", [0, 2])
def test_clipping_in_async_mode_ends(staleness: int):
    """Stages wait for each other's norms, and none for ever."""
    result = train(small(), BATCHES, make_plan(5, (1, 2, 3)), micro_batches=2, optimizer=sgd, clip_norm=0.1,
                   mode="async", staleness=staleness)  # fmt: skip
    assert len(result.losses) == len(BATCHES)


SCHEDULES: dict[str, Schedule] = {
    "cosine": cosine(10), "linear": linear(8, least=0.1), "exponential": exponential(gamma=0.5, every=3),
    "warmup": warmup(4), "warmup, cosine": warmup(4, cosine(6)),
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("cuts", CUTS[:3], ids=str)
def test_schedules_are_those_of_lambda_lr(name: str, cuts: tuple[int, ...]):
    """Of dense weights and of rows."""
    expected = plain(small, BATCHES, ids=IDS, schedule=SCHEDULES[name])
    chain = small()
    result = train(chain, BATCHES, make_plan(chain, cuts), micro_batches=2, optimizer=sgd, schedule=SCHEDULES[name])
    expected.assert_same(chain, result.losses)


def test_a_factor_of_zero_changes_nothing():
    chain = small()
    train(chain, BATCHES, make_plan(chain, (1, 3)), optimizer=sgd, schedule=lambda _: 0.0)
    untouched = plain(small, [], ids=IDS)
    untouched.assert_same(chain, [])


def test_a_schedule_ends_with_its_run():
    """The next run on the same tables has the layers' own learning rate again."""

    @seeded
    def make() -> Chain:
        return Chain(embedding("rows", optimizer="sgd"), fc("logit", "rows", SLOTS * DIM, 1, relu=False), loss())

    chain = make()
    train(chain, BATCHES[:4], optimizer=sgd, schedule=lambda step: 0.0)
    result = train(chain, BATCHES, optimizer=sgd)
    plain(make, BATCHES, ids=IDS).assert_same(chain, result.losses)


def test_schedules_at_their_ends():
    assert cosine(10)(0) == 1
    assert cosine(10, least=0.2)(10) == pytest.approx(0.2)
    assert cosine(10, least=0.2)(99) == pytest.approx(0.2)
    assert cosine(10)(5) == pytest.approx(0.5)
    assert linear(10, least=0.5)(5) == pytest.approx(0.75)
    assert linear(10, least=0.5)(50) == pytest.approx(0.5)
    assert [exponential(gamma=0.5, every=2)(step) for step in range(5)] == [1, 1, 0.5, 0.5, 0.25]
    assert [warmup(4)(step) for step in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    assert warmup(4, linear(10))(4) == 1, "what follows starts at its own step 0"


def test_schedules_of_job_files():
    assert make_schedule(None) is None
    assert make_schedule("constant") is None
    found = make_schedule({"name": "cosine", "steps": 10, "least": 0.1, "warmup_steps": 5})
    assert found is not None
    assert [found(step) for step in range(20)] == [warmup(5, cosine(10, least=0.1))(step) for step in range(20)]
    rising = make_schedule({"warmup_steps": 5})
    assert rising is not None
    assert rising(0) == 0.2
    with pytest.raises(InvalidInput, match=r"not 'cosin'. Did you mean 'cosine'"):
        make_schedule("cosin")
    with pytest.raises(InvalidInput, match=r"schedule cosine has no option 'stepz'. Did you mean 'steps'"):
        make_schedule({"name": "cosine", "stepz": 3})


FACTORIES: dict[str, Factory] = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


def test_every_named_optimizer_is_tested():
    assert FACTORIES.keys() == OPTIMIZERS.keys()


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize("by", ["name", "function"])
def test_optimizers(name: str, by: str):
    expected = plain(small, BATCHES, ids=IDS, optimizer=FACTORIES[name])
    chain = small()
    optimizer = name if by == "name" else FACTORIES[name]
    result = train(chain, BATCHES, make_plan(chain, (1, 3)), micro_batches=2, optimizer=optimizer, lr=0.01)
    expected.assert_same(chain, result.losses)


def test_groups_of_an_optimizer_keep_their_own_learning_rates():
    """A schedule multiplies each."""

    def groups(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        weights, biases = ([p for p in parameters if (p.ndim > 1) == large] for large in (True, False))
        return torch.optim.SGD([{"params": weights, "lr": 0.1}, {"params": biases, "lr": 0.3}])

    expected = plain(small, BATCHES, ids=IDS, optimizer=groups, schedule=linear(12))
    chain = small()
    result = train(chain, BATCHES, make_plan(chain, (2,)), optimizer=groups, schedule=linear(12))
    expected.assert_same(chain, result.losses)


def test_gradients_from_before_the_run_do_not_count():
    chain = small()
    for parameter in chain.parameters():
        parameter.grad = torch.ones_like(parameter)
    result = train(chain, BATCHES, optimizer=sgd)
    plain(small, BATCHES, ids=IDS).assert_same(chain, result.losses)


@every_cut
def test_bf16_stays_near_float32(cuts: tuple[int, ...]):
    expected = plain(small, BATCHES, ids=IDS)
    chain = small()
    result = train(chain, BATCHES, make_plan(chain, cuts), micro_batches=2, optimizer=sgd, precision="bf16")
    assert result.losses != expected.losses
    assert result.losses == pytest.approx(expected.losses, rel=0.02)
    assert all(parameter.dtype == torch.float32 for parameter in chain.parameters())
    moved = (expected.rows["rows"] - rows_of(small_bound(), "rows", IDS)).norm()
    assert (rows_of(chain, "rows", IDS) - expected.rows["rows"]).norm() < 0.1 * moved


def small_bound():
    chain = small()
    train(chain, BATCHES[:1], optimizer=sgd, schedule=lambda _: 0.0)
    return chain


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "asinc"}, "mode is sync or async, not 'asinc'"),
        ({"staleness": 2}, "staleness 2 needs mode='async'"),
        ({"mode": "async", "staleness": -1}, "staleness is a whole number, at least 0, not -1"),
        ({"micro_batches": 0}, "micro_batches is a whole number, at least 1, not 0"),
        ({"steps": 0}, "steps is a whole number, at least 1, not 0"),
        ({"precision": "bf17"}, "float32 or bf16, not 'bf17'. Did you mean"),
        ({"optimizer": "adm"}, "not 'adm'. Did you mean 'adam'"),
        ({"clip_norm": 0.0}, "clip_norm is a number above 0, not 0.0"),
        ({"clip_norm": math.nan}, "clip_norm is a number above 0, not nan"),
        ({"micro_batch": 3}, "no setting 'micro_batch'. Did you mean 'micro_batches'"),
    ],
)
def test_wrong_settings_are_explained(settings: dict[str, object], message: str):
    with pytest.raises(InvalidInput, match=message):
        train(small(), BATCHES, **settings)


def test_settings_do_not_change_the_callers_threads():
    before = torch.get_num_threads()
    train(small(), BATCHES, make_plan(5, (1,), units=[1, 2]), optimizer=sgd)
    assert torch.get_num_threads() == before
