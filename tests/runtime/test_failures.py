"""Runs that fail: they end with the cause, all their threads end, and the last checkpoint is whole."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heterps.data import Synthetic
from heterps.errors import HeterPSError, InvalidInput
from heterps.models import Batch, Chain, Layer
from heterps.ps import Client, Server
from heterps.ps.errors import ServerTimeout
from heterps.runtime import Checkpoints, DataEnded, NotFinite, StageFailed, train
from heterps.runtime.checkpoint import CheckpointFailed, State, Store
from heterps.runtime.tables import SharedPush
from heterps.store import SparseTable
from tests.ps.running import Process
from tests.runtime.chains import random_batches, small
from tests.runtime.plain import sgd
from tests.runtime.plans import every_plan, make_plan, shape
from tests.runtime.test_layers import CASES

BATCHES = random_batches(12)
LIMIT_S = 150.0


def outcome(run: Callable[[], Any]) -> Any:
    """What a run gives or raises, in a thread that is given up if it hangs; no thread may be left behind."""
    before = set(threading.enumerate())
    found: list[Any] = []

    def attempt() -> None:
        try:
            found.append(run())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert not thread.is_alive(), "the run hangs"
    end = time.monotonic() + LIMIT_S
    while (left := set(threading.enumerate()) - before) and time.monotonic() < end:
        next(iter(left)).join(0.01)
    assert not left, f"threads are left: {left}"
    return found[0]


class Boom(Exception):
    """What layers here raise."""


class _FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, when: Callable[[], bool]) -> Tensor:
        ctx.when = when
        return values.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        if ctx.when():
            raise Boom("backward")
        return grad, None


class Failing(nn.Module):
    """Raises at its n-th micro-batch, or gives NaN."""

    def __init__(self, where: str, at: int) -> None:
        super().__init__()
        self.where, self.at, self.calls = where, at, 0

    def forward(self, values: Tensor) -> Tensor:
        self.calls += 1
        due = self.calls == self.at
        if due and self.where == "forward":
            raise Boom("forward")
        if due and self.where == "nan":
            return values * math.nan
        return _FailsBackward.apply(values, lambda: due and self.where == "backward")


def failing(layer: int, where: str, at: int) -> Chain:
    """The small chain with a layer that fails after layer 1, 2 or 3."""
    layers = list(small().layers)
    written = layers[layer].writes[0]
    layers.insert(layer + 1, Layer("failing", Failing(where, at), reads=written, writes="passed"))
    after = layers[layer + 2]
    reads = ["passed" if name == written else name for name in after.reads]
    layers[layer + 2] = Layer(after.name, after.module, reads=reads, writes=after.writes)
    return Chain(*layers)


@pytest.mark.parametrize("plan", [make_plan(6, cuts) for cuts in ((), (1,), (2, 4), (1, 2, 4))], ids=shape)
@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("layer", [1, 2, 3])
@pytest.mark.parametrize("at", [1, 8])
def test_a_layer_that_raises(plan: Any, where: str, layer: int, at: int):
    """In any stage, in the first step or later; clipping makes stages wait for each other."""
    for clip_norm in (None, 0.1):
        chain = failing(layer, where, at)
        settings = {"micro_batches": 3, "optimizer": sgd, "clip_norm": clip_norm}
        error = outcome(lambda chain=chain, settings=settings: train(chain, BATCHES, plan, **settings))
        assert isinstance(error, StageFailed)
        assert isinstance(error.__cause__, Boom)
        assert f"Boom: {where}" in str(error)
        stage = next(n for n, stage in enumerate(plan.stages) if stage.first <= layer + 1 <= stage.last)
        assert f"stage {stage} " in str(error)


@pytest.mark.parametrize("mode", [{"mode": "sync"}, {"mode": "async", "staleness": 3}], ids=lambda mode: mode["mode"])
def test_a_layer_that_raises_while_others_wait_for_its_pushes(mode: dict[str, Any]):
    def make() -> Chain:
        layers = list(CASES["one_table_at_both_ends"]().layers)
        layers.insert(4, Layer("failing", Failing("backward", 9), reads="g", writes="passed"))
        layers[6] = Layer("logit", layers[6].module, reads=["passed", "users"], writes="logit")
        return Chain(*layers)

    error = outcome(lambda: train(make(), BATCHES, make_plan(8, (1, 3, 5)), micro_batches=2, optimizer=sgd, **mode))
    assert isinstance(error.__cause__, Boom)


class FailingOptimizer(torch.optim.SGD):
    """Raises at its third step."""

    steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        if self.steps == 3:
            raise Boom("optimizer")
        return super().step(closure)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_an_optimizer_that_raises(stage: int):
    made: list[int] = []

    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        made.append(len(made))
        return (FailingOptimizer if made[-1] == stage else torch.optim.SGD)(parameters, lr=0.1)

    error = outcome(lambda: train(small(), BATCHES, make_plan(5, (2, 3)), micro_batches=2, optimizer=optimizer))
    assert isinstance(error, StageFailed)
    assert "Boom: optimizer" in str(error)
    assert f"stage {stage} " in str(error)


@pytest.mark.parametrize("cuts", [(), (1, 3)], ids=str)
def test_a_loss_that_is_no_number(cuts: tuple[int, ...], tmp_path: Path):
    """Ends the run; the checkpoint before it is whole and finite."""

    def run(where: str, steps: int) -> Any:
        chain = failing(2, where, at=13)  # micro-batch 13 of 2 a step: step 6
        settings = {"micro_batches": 2, "optimizer": sgd, "steps": steps}
        checkpoints = Checkpoints(path=tmp_path, every_steps=3)
        return train(chain, BATCHES, make_plan(chain, cuts), checkpoints=checkpoints, **settings)

    error = outcome(lambda: run("nan", 12))
    assert isinstance(error, NotFinite)
    assert "the loss of step 6 is nan" in str(error)
    assert "the last checkpoint is intact" in str(error)
    assert (tmp_path / "latest").read_text() == "step-000000006"
    after = outcome(lambda: run("never", 12))
    assert len(after.losses) == 6
    assert all(map(math.isfinite, after.losses))


def test_a_nan_at_the_step_of_a_checkpoint_is_not_saved(tmp_path: Path):
    chain = failing(2, "nan", at=6)
    checkpoints = Checkpoints(path=tmp_path, every_steps=3)
    error = outcome(lambda: train(chain, BATCHES, optimizer=sgd, checkpoints=checkpoints))
    assert isinstance(error, NotFinite)
    assert (tmp_path / "latest").read_text() == "step-000000003"


def test_weights_that_are_no_numbers_are_not_saved(tmp_path: Path):
    """The loss of the step that spoils them is finite, and a checkpoint follows at once."""

    class Spoils(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, values: Tensor) -> Tensor:
            self.calls += 1
            return values + torch.sqrt((values * 0).sum()) if self.calls == 6 else values

    *front, last = small().layers
    spoiling = Layer("spoils", Spoils(), reads="logit", writes="spoiled")
    chain = Chain(*front, spoiling, Layer("loss", last.module, reads=["spoiled", "label"], writes="loss"))
    checkpoints = Checkpoints(path=tmp_path, every_steps=3)
    error = outcome(lambda: train(chain, BATCHES, optimizer=sgd, checkpoints=checkpoints))
    assert isinstance(error, NotFinite)
    assert "no number any more after step 6; the last checkpoint is intact" in str(error)
    assert (tmp_path / "latest").read_text() == "step-000000003"


def test_rows_that_are_no_numbers_are_not_saved(tmp_path: Path):
    table = SparseTable(dim=4, name="rows", threads=2)
    table.pull(torch.arange(100))
    Store(Checkpoints(path=tmp_path)).save(State(step=1, samples=1, position=None), {"rows": table})
    table.put(torch.tensor([17]), torch.tensor([[0.0, math.nan, 0.0, 0.0]]))
    with pytest.raises(CheckpointFailed, match="'rows': the row of id 17 is no number any more; earlier"):
        Store(Checkpoints(path=tmp_path)).save(State(step=2, samples=2, position=None), {"rows": table})
    assert (tmp_path / "latest").read_text() == "step-000000001"


# Data.


def test_data_that_ends_early(tmp_path: Path):
    """What was learned is saved."""
    settings = {"steps": 100, "epochs": 1, "checkpoints": Checkpoints(path=tmp_path)}
    error = outcome(lambda: train(small(), BATCHES, make_plan(5, (1,)), **settings))
    assert isinstance(error, DataEnded)
    assert "ended after step 12 of 100" in str(error)
    assert (tmp_path / "latest").read_text() == "step-000000012"


@pytest.mark.parametrize("data", [[], iter(())], ids=["empty", "read"])
def test_no_data_at_all(data: Any):
    assert isinstance(outcome(lambda: train(small(), data, steps=3)), DataEnded)
    assert isinstance(outcome(lambda: train(small(), data)), DataEnded)


def test_a_source_that_ends_early():
    source = Synthetic(rows=100, ids=40, slots=3, dense=2)
    error = outcome(lambda: train(small(), source, batch_size=32, epochs=2, steps=9))
    assert isinstance(error, DataEnded)
    assert "step 8 of 9" in str(error)


@pytest.mark.parametrize(
    "settings", [{}, {"clip_norm": 0.1}, {"mode": "async", "staleness": 3, "clip_norm": 0.1}], ids=str
)
@pytest.mark.parametrize("name", ["small", "one_table_at_both_ends"])
def test_data_that_raises(name: str, settings: dict[str, Any]):
    """Its own error comes out, whatever the stages were waiting for."""
    for at in range(6):

        def broken(at: int = at) -> Iterator[Batch]:
            yield from BATCHES[:at]
            raise Boom("data")

        chain = small() if name == "small" else CASES[name]()
        plan = make_plan(chain, (1, 3))
        error = outcome(lambda: train(chain, broken(), plan, micro_batches=2, optimizer=sgd, **settings))  # noqa: B023
        assert isinstance(error, Boom)


def test_data_that_raises_while_stages_wait_for_each_others_norms():
    """The last stage is in its backward when the data fails; the first one stops before it has a gradient to clip."""
    entered, ended = threading.Event(), threading.Event()

    class Held(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            entered.set()
            ended.wait(0.5)  # until the run has told all stages to stop
            return values

    def broken() -> Iterator[Batch]:
        yield BATCHES[0]
        assert entered.wait(LIMIT_S)
        raise Boom("data")

    *layers, last = small().layers
    held = Layer("held", Held(), reads="logit", writes="held")
    chain = Chain(*layers, held, Layer("loss", last.module, reads=["held", "label"], writes="loss"))
    error = outcome(lambda: train(chain, broken(), make_plan(chain, (2,)), optimizer=sgd, clip_norm=0.1))
    assert isinstance(error, Boom)


def test_a_batch_that_lacks_a_tensor():
    """The first one or a later one, also of a resumed run."""
    for at in (0, 3):
        batches = list(BATCHES)
        batches[at] = {name: value for name, value in batches[at].items() if name != "dense"}
        error = outcome(lambda: train(small(), batches, make_plan(5, (1, 3)), optimizer=sgd))  # noqa: B023
        assert isinstance(error, InvalidInput)
        assert "the batch has no 'dense', which 'fc1' reads; it has 'ids'" in str(error)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, "data is a heterps.data source or an iterable of batches, not int"),
        ([torch.zeros(3)], "a batch is a dictionary of tensors, not Tensor"),
        ([{**BATCHES[0], "dense": torch.zeros(3, 2)}], "same number of samples"),
        ([{**BATCHES[0], "dense": [[1.0, 2.0]] * 16}], "batch['dense'] is a tensor, an array or Bags, not list"),
    ],
    ids=["no data", "no batch", "uneven", "a list"],
)  # fmt: skip
def test_data_of_the_wrong_kind(data: Any, message: str):
    error = outcome(lambda: train(small(), data, optimizer=sgd))
    assert isinstance(error, InvalidInput)
    assert message in str(error)


def test_an_empty_batch():
    empty = {name: value[:0] for name, value in BATCHES[0].items()}
    error = outcome(lambda: train(small(), [BATCHES[0], empty], make_plan(5, (1,)), optimizer=sgd))
    assert isinstance(error, InvalidInput)
    assert "at least one sample" in str(error)


def test_bags_without_a_pooling():
    chain = CASES["bags"]()
    chain.layers[0].pooling = None
    error = outcome(lambda: train(chain, BATCHES, make_plan(chain, (1,)), optimizer=sgd))
    assert isinstance(error, InvalidInput)
    assert "'sum' or 'mean'" in str(error)


# Plans.


def test_a_plan_of_another_model():
    error = outcome(lambda: train(small(), BATCHES, make_plan(4, (1,))))
    assert isinstance(error, InvalidInput)
    assert "places 4 layers" in str(error)
    assert "the chain has 5 (rows, fc1, fc2, logit, loss); make a plan for this model" in str(error)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_plan_for_gpus_that_are_not_there():
    plan = make_plan(5, (1,), device="cuda")
    error = outcome(lambda: train(small(), BATCHES, plan))
    assert isinstance(error, InvalidInput)
    assert "this machine has 0 such GPUs" in str(error)
    assert "devices alpha=cpu" in str(error)
    result = train(small(), BATCHES, plan, devices={"alpha": "cpu", "beta": "cpu"})
    assert result.steps == len(BATCHES)


def test_a_device_nobody_knows():
    for device in ("tpu", "meta"):
        error = outcome(lambda: train(small(), BATCHES, make_plan(5), devices={"alpha": device}))  # noqa: B023
        assert isinstance(error, InvalidInput)
        assert f"cpu, cuda, cuda:N, or several as cuda:0+cuda:1, not '{device}'" in str(error)


# Parameter servers.


@contextmanager
def connected(directory: Path) -> Iterator[tuple[Client, Process]]:
    process = Process(directory)
    try:
        with Client([process.address], process.keys, timeout_s=0.2, retries=1) as client:
            yield client, process
    finally:
        process.kill()


@pytest.mark.parametrize("cuts", [(), (1, 3)], ids=str)
def test_a_parameter_server_that_is_killed(cuts: tuple[int, ...], tmp_path: Path):
    """An error, and soon; in a stage, or while the run waits for the last pushes."""
    with connected(tmp_path) as (client, process):

        def dying() -> Iterator[Batch]:
            for number, batch in enumerate(BATCHES):
                if number == 6:
                    process.kill()
                yield batch

        chain = small()
        settings = {"client": client, "optimizer": sgd, "checkpoints": Checkpoints(path=tmp_path / "checkpoints")}
        error = outcome(lambda: train(chain, dying(), make_plan(chain, cuts), **settings))
    assert isinstance(error, ServerTimeout)


def test_a_server_that_goes_before_the_last_push(tmp_path: Path):
    """The last push of a run is waited for: none is lost in silence."""
    with ExitStack() as stack:
        address = f"ipc://{tmp_path}/sockets/0"
        server = stack.enter_context(_closing(Server(address).start()))
        client = stack.enter_context(Client([address], timeout_s=0.2, retries=1))
        chain = small()

        def watched(step: int) -> float:
            if step == 3:
                server.close()
            return 1.0

        error = outcome(lambda: train(chain, BATCHES[:4], client=client, optimizer=sgd, schedule=watched))
    assert isinstance(error, HeterPSError)


@contextmanager
def _closing(server: Server) -> Iterator[Server]:
    try:
        yield server
    finally:
        server.close()


# How threads wait for each other.


def test_whoever_waits_for_a_push_is_woken_by_a_failure():
    push = SharedPush(table=None, users=2)  # type: ignore[arg-type]
    push.start_at(5)
    push.wait_for(4)
    waiting = threading.Thread(target=push.wait_for, args=(5,), daemon=True)
    waiting.start()
    push.fail()
    waiting.join(LIMIT_S)
    assert not waiting.is_alive()


def test_the_order_in_which_gradients_of_a_table_arrive_changes_nothing():
    """Sums of floats depend on their order, and threads come in any; a run must be the same each time."""
    sums = []
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        pushed: list[Tensor] = []
        push = SharedPush(table=_Sink(pushed), users=3)  # type: ignore[arg-type]
        grads = [torch.tensor([[0.1]]), torch.tensor([[1e8]]), torch.tensor([[-1e8]])]
        for layer in order:
            push.push(0, f"layer {layer}", torch.tensor([7]), grads[layer], None)
        sums.append(pushed[0].sum().item())
    assert len(set(sums)) == 1


class _Sink:
    def __init__(self, pushed: list[Tensor]) -> None:
        self.pushed = pushed

    def push(self, ids: Tensor, grads: Tensor) -> None:
        self.pushed.append(grads)


def test_every_plan_ends(tmp_path: Path):
    """All cuts into 1 to 4 stages of a chain that fails in its last backward: none hangs."""
    for stages in (1, 2, 3, 4):
        for plan in every_plan(6, stages=stages):
            chain = failing(1, "backward", at=2)
            error = outcome(lambda chain=chain, plan=plan: train(chain, BATCHES[:3], plan, micro_batches=2))
            assert isinstance(error.__cause__, Boom), shape(plan)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": lambda label: label * 2 - 1}, "labels are 0 or 1, or between; 'label' has -1 to 1"),
        ({"ids": lambda ids: ids.float()}, "ids are whole numbers, not torch.float32"),
        ({"ids": lambda ids: ids > 3}, "ids are whole numbers, not torch.bool"),
    ],
    ids=["labels of -1 and 1", "fractions as ids", "truths as ids"],
)
def test_values_that_would_train_on_nonsense(change: dict[str, Any], message: str):
    batches = [{name: change.get(name, lambda same: same)(value) for name, value in batch.items()} for batch in BATCHES]
    error = outcome(lambda: train(small(), batches))
    assert isinstance(error, InvalidInput)
    assert message in str(error)


def test_a_failure_names_its_layer():
    error = outcome(lambda: train(failing(2, "forward", at=1), BATCHES))
    assert "(in layer " in str(error)


def test_a_loss_for_each_sample_is_refused():
    chain = Chain(*small().layers[:-1], Layer("loss", nn.Flatten(0), reads="logit", writes="loss"))
    error = outcome(lambda: train(chain, BATCHES))
    assert isinstance(error, InvalidInput)
    assert "one number, the mean over the samples" in str(error)


@pytest.mark.parametrize("name", ["eval_every", "early_stop"])
def test_settings_without_effect_are_refused(name: str):
    error = outcome(lambda: train(small(), BATCHES, **{name: 2}))
    assert isinstance(error, InvalidInput)
    assert f"{name} needs evaluation" in str(error)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 2.5}, "steps is a whole number, at least 1, not 2.5"),
        ({"steps": True}, "steps is a whole number"),
        ({"eval_every": 2.5}, "eval_every is a whole number"),
        ({"micro_batches": "2"}, "micro_batches is a whole number"),
        ({"batch_size": 0}, "batch_size is a whole number, at least 1, not 0"),
        ({"lr": "x"}, "lr is a number above 0, not 'x'"),
        ({"lr": math.nan}, "lr is a number above 0, not nan"),
        ({"clip_norm": 0}, "clip_norm is a number above 0"),
        ({"checkpoints": 5}, "checkpoints is a Checkpoints, not 5"),
        ({"optimizer": lambda parameters: None}, "the function returned None, not a torch optimizer"),
        ({"early_stop": {"patience": 0}}, "patience is a whole number, at least 1"),
        (
            {"early_stop": {"patienc": 2}},
            "early_stop has no 'patienc'. Did you mean 'patience'?",
        ),
        ({"early_stop": {"min_gain": -1}}, "min_gain is a number between 0 and inf"),
        ({"schedule": {"nam": "cosine", "steps": 10}}, "schedule constant has no option 'nam'. Did you mean 'name'?"),
        ({"schedule": {"name": "cosine", "steps": 0}}, "cosine: steps is a whole number, at least 1, not 0"),
        ({"schedule": {"name": "cosine", "steps": "abc"}}, "cosine: steps is a whole number"),
        ({"schedule": "linear"}, "schedule linear needs steps"),
        ({"schedule": {"name": "linear", "steps": 5, "least": 2}}, "least is a number between 0 and 1, not 2"),
        ({"schedule": {"name": "exponential", "gamma": 0}}, "gamma is a number above 0"),
        ({"schedule": {"name": "constant", "warmup_steps": -5}}, "warmup_steps is a whole number, at least 0, not -5"),
        ({"schedule": {"name": "cosin"}}, "Did you mean 'cosine'?"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], message: str):
    error = outcome(lambda: train(small(), BATCHES, evaluation=BATCHES, **settings))
    assert isinstance(error, InvalidInput)
    assert message in str(error)


def test_devices_of_types_that_the_plan_lacks():
    chain = small()
    error = outcome(lambda: train(chain, BATCHES, make_plan(chain, (1,)), devices={"quantum": "cpu"}))
    assert isinstance(error, InvalidInput)
    assert "the plan has no type 'quantum'" in str(error)
