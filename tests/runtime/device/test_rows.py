"""Rows in a device's memory, and rows that cross as distinct ones, against plain PyTorch and the native table."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from heterps.models.layer import SparseEmbedding
from heterps.runtime import Checkpoints, evaluate, train
from heterps.runtime.device import table as device_table
from heterps.runtime.device.table import DeviceTable, KernelTable
from heterps.runtime.rows import DistinctRows
from heterps.runtime.tables import SharedPush
from heterps.store import Optimizer, SparseTable
from tests.runtime.chains import IDS, random_batches, small
from tests.runtime.plain import plain, rows_of, sgd
from tests.runtime.plans import every_plan, make_plan, shape
from tests.runtime.test_layers import CASES

BATCHES = random_batches(8)
CPU = torch.device("cpu")
DEVICES = [CPU, *([torch.device("cuda", 0)] if torch.cuda.is_available() else [])]
RULES: list[dict[str, Any]] = [
    {"name": "sgd"}, {"name": "momentum", "momentum": 0.8}, {"name": "adagrad", "initial_accumulator": 0.1},
    {"name": "rowwise-adagrad"}, {"name": "adam", "beta1": 0.8}, {"name": "ftrl", "l1": 0.01, "l2": 0.1, "beta": 1.0},
]  # fmt: skip
CONDITIONS: list[dict[str, float]] = [{}, {"weight_decay": 0.1}, {"clip_value": 0.5}, {"clip_norm": 0.7},
                                      {"weight_decay": 0.1, "clip_value": 1.0, "clip_norm": 1.5}]  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_runs_are_those_of_plain_pytorch(name: str, way: str):
    expected = plain(CASES[name], BATCHES, ids=IDS)
    for stages in (1, 2, 3):
        for number, plan in enumerate(every_plan(CASES[name](), stages=stages)):
            chain = CASES[name]()
            result = train(chain, BATCHES, plan, micro_batches=(3, 1)[number % 2], optimizer=sgd)
            expected.assert_same(chain, result.losses, what=shape(plan))


def test_async_runs(way: str):
    """Batches of several sizes, and several of them under way at once."""
    batches = random_batches(30)
    for cuts, micro_batches in itertools.product(((1,), (1, 3)), (1, 3)):
        chain, seen = small(), {"micro_batches": micro_batches, "optimizer": sgd, "mode": "async", "staleness": 3}
        result = train(chain, batches, make_plan(chain, cuts), **seen)
        assert len(result.losses) == len(batches)
    chain = small()
    result = train(chain, batches, make_plan(chain, (1, 3)), micro_batches=3, optimizer=sgd, mode="async", staleness=0)
    plain(small, batches, ids=IDS).assert_same(chain, result.losses)


def test_rows_pulled_ahead_wait_for_the_updates_they_must_see():
    layer = SparseEmbedding("rows", reads="ids", writes="e", dim=4, optimizer="sgd", lr=1.0)
    shared = SharedPush(SparseTable(dim=4, optimizer="sgd", lr=1.0, init_scale=0.0), 1)
    rows = DistinctRows(layer, shared, staleness=2, pin=False)
    batch = {"ids": torch.tensor([[7, 3], [7, 7]])}

    def begin(step: int, prepared: Any) -> Tensor:
        rows.pull(step, batch, prepared)
        found = rows.part(step, layer, 0, 2, CPU)
        return found.rows[found.number].reshape(found.shape)

    def end(step: int) -> None:
        rows.give(step, torch.ones(2, 4))
        rows.push(step)

    with ThreadPoolExecutor(1) as ahead:
        coming = [ahead.submit(rows.prepare, step, batch) for step in range(5)]
        for step in range(3):
            assert (begin(step, coming[step].result(timeout=150)) == 0).all()
        with pytest.raises(TimeoutError):
            coming[3].result(timeout=0.2)  # it must see step 0
        end(0)
        assert (begin(3, coming[3].result(timeout=150)) == -1).all()
        assert not coming[4].done()
        shared.fail()  # a run that ends leaves nobody waiting
        coming[4].result(timeout=150)


def test_schedules_and_clipping(way: str):
    settings = {"schedule": lambda step: 1 / (1 + step), "clip_norm": 0.1}
    chain = small()
    result = train(chain, BATCHES, make_plan(chain, (1, 3)), optimizer=sgd, micro_batches=2, **settings)
    plain(small, BATCHES, ids=IDS, **settings).assert_same(chain, result.losses)


def test_evaluations_see_the_rows_of_the_device(way: str):
    """Between steps too, where the host's table would be behind."""
    settings = {"optimizer": sgd, "evaluation": BATCHES, "eval_every": 3}
    found = train(small(), BATCHES, make_plan(5, (1,)), **settings).evaluations
    expected = []
    for steps in (3, 6, 8):
        chain = small()
        train(chain, BATCHES[:steps], make_plan(5, (1,)), optimizer=sgd)
        expected.append(evaluate(chain, BATCHES).loss)  # after a run all rows are on the host
    assert [evaluation["loss"] for evaluation in found] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("delta", [True, False])
def test_resumed_runs(way: str, delta: bool, tmp_path: Path):
    """Rows and their state go through the host's table, its snapshots, and back."""
    expected = plain(small, BATCHES, ids=IDS)
    checkpoints = Checkpoints(path=tmp_path, every_steps=2, delta=delta)
    settings = {"optimizer": sgd, "micro_batches": 2, "checkpoints": checkpoints}
    first = train(small(), BATCHES, make_plan(5, (1,)), steps=5, **settings)
    chain = small()
    second = train(chain, BATCHES, make_plan(5, (1, 3)), steps=8, **settings)
    expected.assert_same(chain, first.losses + second.losses)


def test_tables_go_on_from_run_to_run(way: str):
    chain = small()
    losses = []
    for batches in (BATCHES[:3], BATCHES[3:]):
        losses += train(chain, batches, make_plan(5, (1,)), optimizer=lambda p: torch.optim.SGD(p, lr=0.1)).losses
    plain(small, BATCHES, ids=IDS, optimizer=lambda p: torch.optim.SGD(p, lr=0.1)).assert_same(chain, losses)


def kind_of_table(device: torch.device) -> type[DeviceTable]:
    return DeviceTable if device == CPU else KernelTable


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("dim", [6, 8])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["name"])
@pytest.mark.parametrize("conditions", CONDITIONS, ids=str)
def test_rules_are_the_native_ones(rule: dict[str, Any], conditions: dict[str, float], dim: int, device: torch.device):
    """Many pushes with duplicates, to both tables; then rows and state are the same."""
    generator = torch.Generator().manual_seed(0)
    optimizer = Optimizer(lr=0.1, **rule, **conditions)
    native, home = (SparseTable(dim=dim, optimizer=optimizer, init_scale=0.5) for _ in range(2))
    table = kind_of_table(device)(home, device)
    for step in range(30):
        ids = torch.randint(-100, 100, (50,), generator=generator)
        grads = torch.randn(50, dim, generator=generator)
        if step == 15:
            native.set_lr(0.05), table.set_lr(0.05)
        native.push(ids, grads)
        push(table, ids, grads)
        if step % 10 == 9:
            table.flush()
    ids = torch.arange(-100, 100)
    for ours, theirs in zip(home.peek(ids), native.peek(ids), strict=True):
        torch.testing.assert_close(torch.as_tensor(ours), torch.as_tensor(theirs), rtol=1e-4, atol=1e-5)


def push(table: DeviceTable, ids: Tensor, grads: Tensor) -> None:
    """As a stage does it; a kernel's table sums by itself, as in a graph."""
    if isinstance(table, KernelTable):
        table.make_room(len(ids))
        call = table.call(len(ids))
        table.gather(ids.to(table.device), call)
        table.add(call, grads.to(table.device), 0, len(ids))
        table.apply(call)
        return
    slots, number = table.lookup(table.prepare(ids))
    table.update(slots, torch.zeros(len(slots), grads.shape[1]).index_add(0, number.long(), grads))


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e19, 1e25, 3e38])
def test_gradients_of_any_size_are_clipped(size: float, device: torch.device):
    """Also those whose squares no float holds."""
    optimizer = Optimizer(name="sgd", lr=1.0, clip_norm=0.5)
    native, home = (SparseTable(dim=8, optimizer=optimizer, init_scale=0.0) for _ in range(2))
    table, ids = kind_of_table(device)(home, device), torch.arange(3)
    grads = torch.tensor([1.0, -0.5, 0.25]).reshape(3, 1) * size * torch.linspace(-1, 1, 8)
    push(table, ids, grads)
    native.push(ids, grads)
    table.flush()
    torch.testing.assert_close(home.pull(ids), native.pull(ids), rtol=1e-5, atol=0.0)


def test_a_device_table_grows(monkeypatch: pytest.MonkeyPatch):
    """Rows that were there keep their values, and rows of the home come with theirs."""
    monkeypatch.setattr(device_table, "FIRST_ROWS", 8)
    home = SparseTable(dim=3, optimizer="adagrad", lr=0.1, init_scale=0.5)
    home.push(torch.arange(5), torch.ones(5, 3))
    expected = home.pull(torch.arange(200), create=False).clone()
    table = DeviceTable(home, CPU)
    for start in range(0, 200, 7):
        ids = torch.arange(start, min(200, start + 7))
        slots, number = table.lookup(table.prepare(ids))
        assert torch.equal(table.rows(slots)[number.long()], expected[ids])
        table.update(slots, torch.full((len(slots), 3), 1.0))
    table.flush()
    assert home.stats().rows == 200
    native = SparseTable(dim=3, optimizer="adagrad", lr=0.1, init_scale=0.5)
    native.push(torch.arange(5), torch.ones(5, 3))
    native.push(torch.arange(200), torch.ones(200, 3))
    torch.testing.assert_close(home.pull(torch.arange(200)), native.pull(torch.arange(200)))


def test_only_changed_rows_go_back():
    home = SparseTable(dim=2, optimizer="sgd", lr=1.0)
    table = DeviceTable(home, CPU)
    slots, _ = table.lookup(table.prepare(torch.arange(10)))
    table.update(slots[:3], torch.ones(3, 2))
    table.flush()
    assert home.stats().rows == 3
    home.push(torch.arange(10), torch.ones(10, 2))
    before = home.pull(torch.arange(10)).clone()
    table.flush()
    assert torch.equal(home.pull(torch.arange(10)), before), "nothing changed since"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
class TestGpu:
    """The same on a GPU, where there is one."""

    @pytest.mark.parametrize("name", CASES)
    @pytest.mark.parametrize("devices", [{"alpha": "cuda", "beta": "cuda"}, {"alpha": "cpu", "beta": "cuda"},
                                         {"alpha": "cuda", "beta": "cpu"}], ids=str)  # fmt: skip
    def test_runs_are_those_of_plain_pytorch(self, name: str, devices: dict[str, str]):
        expected = plain(CASES[name], BATCHES, ids=IDS)
        for stages in (1, 2, 3):
            for number, plan in enumerate(every_plan(CASES[name](), stages=stages)):
                chain = CASES[name]()
                settings = {"micro_batches": (1, 3)[number % 2], "optimizer": sgd, "devices": devices}
                result = train(chain, BATCHES, plan, **settings)
                expected.assert_same(chain, result.losses, rtol=1e-3, what=f"{shape(plan)} {devices}")

    @pytest.mark.parametrize("micro_batches", [1, 2])
    def test_schedules_clipping_and_resuming(self, micro_batches: int, tmp_path: Path):
        """With one micro-batch the stage is a graph."""
        for number, devices in enumerate(({"alpha": "cuda", "beta": "cuda"}, {"alpha": "cpu", "beta": "cuda"})):
            settings: dict[str, Any] = {"schedule": lambda step: 1 / (1 + step), "clip_norm": 0.1}
            expected = plain(small, BATCHES, ids=IDS, **settings)
            settings |= {"optimizer": sgd, "devices": devices, "micro_batches": micro_batches,
                         "checkpoints": Checkpoints(path=tmp_path / str(number), every_steps=2)}  # fmt: skip
            first = train(small(), BATCHES, make_plan(5, (1,)), steps=5, **settings)
            chain = small()
            second = train(chain, BATCHES, make_plan(5, (1,)), steps=8, **settings)
            expected.assert_same(chain, first.losses + second.losses, rtol=1e-3)

    @pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW], ids=lambda kind: kind.__name__)
    def test_adam_is_that_of_pytorch(self, kind: type[torch.optim.Optimizer]):
        """Graphs step it by a kernel of ours."""

        def adam(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
            return kind(parameters, lr=0.01, weight_decay=0.1)  # type: ignore[call-arg]

        batches = [{name: value[:16] for name, value in batch.items()} for batch in random_batches(20)]
        chain = small()
        result = train(chain, batches, make_plan(5), optimizer=adam, devices={"alpha": "cuda"})
        plain(small, batches, ids=IDS, optimizer=adam).assert_same(chain, result.losses, rtol=1e-3)

    def test_a_table_that_grows_is_recorded_again(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(device_table, "FIRST_ROWS", 8)
        chain = small()
        result = train(chain, BATCHES, make_plan(5), optimizer=sgd, devices={"alpha": "cuda"})
        plain(small, BATCHES, ids=IDS).assert_same(chain, result.losses, rtol=1e-3)

    def test_async_runs_with_rows_on_the_cores(self):
        batches = random_batches(30)
        settings: dict[str, Any] = {"optimizer": sgd, "mode": "async", "devices": {"alpha": "cpu", "beta": "cuda"}}
        assert len(train(small(), batches, make_plan(5, (1,)), staleness=4, **settings).losses) == len(batches)
        chain = small()
        result = train(chain, batches, make_plan(5, (1,)), staleness=0, **settings)
        plain(small, batches, ids=IDS).assert_same(chain, result.losses, rtol=1e-3)

    def test_rows_end_on_the_host(self):
        chain = small()
        train(chain, BATCHES, devices={"alpha": "cuda"}, plan=make_plan(5))
        assert all(parameter.device == CPU for parameter in chain.parameters())
        assert rows_of(chain, "rows", IDS).device == CPU
