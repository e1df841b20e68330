"""Stages with several devices: each computes some micro-batches, and the run is that of plain PyTorch.

Here the devices are the cores, named several times (cpu:0 counts as another one); on a machine with a GPU, that GPU,
and two of them if it has more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from heterps import Chain, Layer
from heterps.errors import InvalidInput
from heterps.models import Bags, BCEWithLogits
from heterps.models.layer import SparseEmbedding
from heterps.runtime import Checkpoints, Result, placement, train
from heterps.runtime.device import table as device_table
from heterps.runtime.device.replicas import ReplicatedStage
from heterps.runtime.placement import NotHere, place
from tests.runtime.chains import IDS, random_batches, small
from tests.runtime.plain import plain, sgd
from tests.runtime.plans import every_plan, make_plan, shape
from tests.runtime.test_layers import CASES

BATCHES = random_batches(8)
GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
WHERE = ["cpu+cpu:0+cpu"]
if GPUS:
    WHERE += ["cuda:0+cuda:0+cuda:0"]
if GPUS > 1:
    WHERE += ["cuda:0+cuda:1"]


@pytest.fixture(params=WHERE)
def where(request: pytest.FixtureRequest) -> str:
    """The devices of a type."""
    return str(request.param)


@pytest.fixture
def rtol(where: str) -> float:
    """How far results may be apart."""
    return 1e-3 if "cuda" in where else 1e-4


def trained(chain: Chain, plan: Any, batches: Any = BATCHES, *, devices: dict[str, str], **settings: Any) -> Result:
    """A run by a plan of 2 units a stage and more."""
    return train(chain, batches, plan, devices=devices, **{"optimizer": sgd, **settings})


@pytest.mark.parametrize("name", CASES)
def test_runs_are_those_of_plain_pytorch(name: str, where: str, rtol: float, way: str):
    expected = plain(CASES[name], BATCHES, ids=IDS)
    for stages in (1, 2):
        for number, one in enumerate(every_plan(CASES[name](), stages=stages)):
            cuts = [stage.first for stage in one.stages[1:]]
            plan = make_plan(CASES[name](), cuts, units=(2, 3)[number % 2])
            devices = (
                {"alpha": where, "beta": "cpu"},
                {"alpha": "cpu", "beta": where},
                {"alpha": where, "beta": where},
            )
            chain = CASES[name]()
            result = trained(chain, plan, devices=devices[number % 3], micro_batches=(1, 4, 3)[number % 3])
            expected.assert_same(chain, result.losses, rtol=rtol, what=f"{shape(plan)} {devices[number % 3]}")


def test_every_device_has_its_share(where: str, monkeypatch: pytest.MonkeyPatch):
    """Micro-batches go round, also when fewer were asked for than there are devices."""
    seen: list[tuple[int, int]] = []
    forward = ReplicatedStage.forward

    def spy(self: ReplicatedStage, step: Any, micro_batch: int, incoming: Any) -> Any:
        replica = self._replica(micro_batch)
        seen.append((micro_batch, 0 if replica is None else 1 + self._copies.index(replica)))
        return forward(self, step, micro_batch, incoming)

    monkeypatch.setattr(ReplicatedStage, "forward", spy)
    trained(small(), make_plan(5, units=2), BATCHES[:1], devices={"alpha": where})
    trained(small(), make_plan(5, units=2), BATCHES[:1], devices={"alpha": where}, micro_batches=5)
    assert seen == [(0, 0), (1, 1), (0, 0), (1, 1), (2, 0), (3, 1), (4, 0)]


def test_clipping_and_schedules(where: str, rtol: float, way: str):
    settings: dict[str, Any] = {"schedule": lambda step: 1 / (1 + step), "clip_norm": 0.1}
    chain = small()
    result = trained(chain, make_plan(chain, (2,), units=2), devices={"alpha": where, "beta": where}, **settings)
    plain(small, BATCHES, ids=IDS, **settings).assert_same(chain, result.losses, rtol=rtol)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.Adagrad], ids=lambda kind: kind.__name__)
def test_resumed_runs(kind: Any, where: str, rtol: float, way: str, tmp_path: Path):
    """The state of the optimizer is that of the first device, and goes on to another plan."""

    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return kind(parameters, lr=0.01)

    settings: dict[str, Any] = {"optimizer": optimizer, "devices": {"alpha": where, "beta": where},
                                "checkpoints": Checkpoints(path=tmp_path, every_steps=2)}  # fmt: skip
    first = trained(small(), make_plan(5, units=3), steps=5, **settings)
    chain = small()
    second = trained(chain, make_plan(5, (2,), units=2), steps=8, **settings)
    plain(small, BATCHES, ids=IDS, optimizer=optimizer).assert_same(chain, first.losses + second.losses, rtol=rtol)
    assert all(parameter.device.type == "cpu" for parameter in chain.parameters())


def test_async(where: str, rtol: float, way: str):
    batches, devices = random_batches(30), {"alpha": where, "beta": where}
    ahead = {"mode": "async", "micro_batches": 3}
    for cuts in ((), (1,), (3,)):
        plan = make_plan(5, cuts, units=2)
        assert len(trained(small(), plan, batches, devices=devices, staleness=3, **ahead).losses) == len(batches)
    chain = small()
    result = trained(chain, make_plan(5, (1,), units=2), batches, devices=devices, staleness=0, **ahead)
    plain(small, batches, ids=IDS).assert_same(chain, result.losses, rtol=rtol)


def test_a_spread_table_goes_on_from_run_to_run(where: str, rtol: float, monkeypatch: pytest.MonkeyPatch, way: str):
    """Each device takes up the rows of its own ids, and grows by itself."""
    monkeypatch.setattr(device_table, "FIRST_ROWS", 8)
    chain, losses, settings = small(), [], {"optimizer": lambda p: torch.optim.SGD(p, lr=0.1)}
    for start, units in ((0, 2), (3, 3), (6, 1)):
        devices = {"alpha": where}
        some = BATCHES[start : start + 3]
        losses += trained(chain, make_plan(5, units=units), some, devices=devices, **settings).losses
    plain(small, BATCHES, ids=IDS, **settings).assert_same(chain, losses, rtol=rtol)


def test_batches_smaller_than_the_devices_are_many(where: str, rtol: float, way: str):
    """A device without samples has no gradients, and a share without ids no rows."""
    batches = [{name: value[:1] for name, value in batch.items()} for batch in BATCHES]
    chain = small()
    result = trained(chain, make_plan(5, units=3), batches, devices={"alpha": where})
    plain(small, batches, ids=IDS).assert_same(chain, result.losses, rtol=rtol)


def test_bags_may_all_be_empty(where: str, way: str):
    def made() -> Chain:
        torch.manual_seed(0)
        return Chain(
            SparseEmbedding("rows", reads="tags", writes="e", dim=4, pooling="mean", optimizer="sgd", lr=0.1),
            Layer("top", nn.Linear(4, 1), reads="e", writes="logit"),
            Layer("loss", BCEWithLogits(), reads=["logit", "label"], writes="loss"),
        )

    empty = {"tags": Bags(torch.empty(0, dtype=torch.int64), torch.zeros(5, dtype=torch.int64), 1)}
    chain = made()
    result = trained(chain, make_plan(3, units=2), [empty | {"label": torch.ones(4)}] * 3, devices={"alpha": where})
    expected = made()
    trained(expected, make_plan(3), [empty | {"label": torch.ones(4)}] * 3, devices={"alpha": "cpu"})
    assert result.losses[0] > result.losses[-1]
    torch.testing.assert_close(chain.state_dict(), expected.state_dict())


def test_copies_have_the_weights_and_buffers_of_the_first(where: str, monkeypatch: pytest.MonkeyPatch):
    """Running means of copies are not their own."""
    compared = []
    finish = ReplicatedStage.finish

    def spy(self: ReplicatedStage) -> None:
        for replica in self._copies:
            for ours, theirs in zip(self.layers, replica.layers, strict=True):
                for name, value in ours.state_dict().items():
                    compared.append(torch.equal(value.cpu(), theirs.state_dict()[name].cpu()))
                    assert ours is theirs or value.data_ptr() != theirs.state_dict()[name].data_ptr()
        finish(self)

    monkeypatch.setattr(ReplicatedStage, "finish", spy)
    chain = Chain(
        SparseEmbedding("rows", reads="ids", writes="e", dim=4, optimizer="sgd", lr=0.1),
        Layer("norm", nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12)), reads="e", writes="n"),
        Layer("top", nn.Linear(12, 1), reads="n", writes="logit"),
        Layer("loss", BCEWithLogits(), reads=["logit", "label"], writes="loss"),
    )
    batches = [{"ids": batch["ids"], "label": batch["label"]} for batch in BATCHES]
    trained(chain, make_plan(4, units=2), batches, devices={"alpha": where})
    assert len(compared) == 7
    assert all(compared)


def test_layers_that_cannot_be_copied():
    class Stubborn(nn.Linear):
        def __deepcopy__(self, memo: Any) -> Any:
            raise RuntimeError("there is only one of me")

    chain = Chain(
        Layer("top", Stubborn(3, 1), reads="dense", writes="logit"),
        Layer("loss", BCEWithLogits(), reads=["logit", "label"], writes="loss"),
    )
    batches = [{"dense": torch.rand(4, 3), "label": torch.ones(4)}]
    with pytest.raises(InvalidInput, match=r"stage 0 .* \(top, loss\) cannot be copied to each: there is only one"):
        trained(chain, make_plan(2, units=2), batches, devices={"alpha": "cpu+cpu"})


class TestPlacement:
    """Which GPUs a stage gets, on a machine that is said to have four."""

    @pytest.fixture(autouse=True)
    def four_gpus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(placement.torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(placement.torch.cuda, "device_count", lambda: 4)

    @staticmethod
    def of(units: list[int], cuts: list[int], **devices: str) -> list[list[str]]:
        plan = make_plan(5, cuts, units=units, device="cuda")
        return [[str(device) for device in spec.devices] for spec in place(small(), plan, devices)]

    def test_as_many_as_units(self):
        assert self.of([3], []) == [["cuda:0", "cuda:1", "cuda:2"]]

    def test_stages_have_their_own(self):
        assert self.of([1, 2], [2]) == [["cuda:0"], ["cuda:1", "cuda:2"]]

    def test_fewer_than_planned(self):
        with pytest.warns(UserWarning, match=r"gives stage 1 2 GPUs \(beta\); it runs on 1 here"):
            assert self.of([3, 2], [2]) == [["cuda:0", "cuda:1", "cuda:2"], ["cuda:3"]]
        with pytest.warns(UserWarning, match="it runs on 4 here"):
            assert self.of([8, 1], [2])[1] == ["cuda:0"], "the last stage shares"

    def test_named_ones(self):
        assert self.of([2, 1], [2], alpha="cuda:3+cuda:1") == [["cuda:3", "cuda:1"], ["cuda:0"]]
        assert self.of([1], [], alpha="cuda:3+cuda:1") == [["cuda:3"]], "never more than units"

    def test_refused(self):
        with pytest.raises(InvalidInput, match="cores or GPUs, not both"):
            self.of([2], [], alpha="cuda:0+cpu")
        with pytest.raises(NotHere, match="has 4 such GPUs"):
            self.of([2], [], alpha="cuda:0+cuda:4")
