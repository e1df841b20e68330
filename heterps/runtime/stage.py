"""What a stage computes: forward and backward of its layers for a micro-batch, and one update for a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from heterps._native import Inbox
from heterps.errors import InvalidInput
from heterps.models import Bags, Chain, run_layer
from heterps.models.batch import Batch
from heterps.models.joined import spend
from heterps.models.layer import SparseEmbedding
from heterps.runtime import adam
from heterps.runtime.placement import StageSpec
from heterps.runtime.products import Products, pays
from heterps.runtime.rows import DistinctRows, HostRows, Lookup, Rows
from heterps.runtime.threads import threads_for, use_for_simple_operations
from heterps.runtime.transit import arrived
from heterps.telemetry import Recorder

OptimizerFactory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Tensors = dict[str, Any]
KIND = "kind of optimizer"
"""Key of a parameter's saved state."""


@dataclass(frozen=True, slots=True)
class Step:
    """A batch on its way through a stage."""

    number: int
    whole: Batch
    """What the stage reads of the batch."""
    bounds: Sequence[int]
    """Micro-batch m has the samples bounds[m] … bounds[m + 1]."""

    @property
    def parts(self) -> int:
        """Micro-batches that this stage computes here."""
        return len(self.bounds) - 1

    @property
    def micro_batches(self) -> int:
        """Micro-batches of the step."""
        return len(self.bounds) - 1

    @property
    def samples(self) -> int:
        """Samples of the batch."""
        return self.bounds[-1]


@dataclass(slots=True)
class _Flight:
    """A micro-batch between its forward and its backward."""

    incoming: Tensors
    """Leaves of what the previous stage sent; of a `Lookup`, its rows."""
    outgoing: Tensors = field(default_factory=dict)


class Stage:
    """Layers first … last of a chain on one device, computed by autograd as plain PyTorch would.

    Calls come from one thread, in the order of steps and micro-batches: forward of each micro-batch, backward of each,
    then `apply`. The last stage of a pipeline does both in `forward`, as it has the loss.
    """

    applies_at_once = False
    """Whether `forward` also updates, so that learning rates must be set before it."""
    brief = False
    """Whether its calls return soon, as others do what they start."""
    only_starts = False
    """Whether also `prepare` is brief, gradients need not have arrived, and updates go on after `apply`."""

    def __init__(
        self,
        spec: StageSpec,
        chain: Chain,
        rows: Sequence[Rows],
        *,
        optimizer: OptimizerFactory,
        precision: torch.dtype = torch.float32,
        keep_weights_version: bool = False,
        on_score: Callable[[Tensor, Tensor], None] | None = None,
    ) -> None:
        """Makes a stage and moves its modules to its device.

        Args:
            spec: which layers, where.
            chain: the model.
            rows: of the stage's embedding layers.
            optimizer: makes the optimizer of the stage's dense parameters.
            precision: of forward and backward; weights and updates stay float32.
            keep_weights_version: lets updates happen between a forward and its backward, as async training has it.
            on_score: called with the scores and labels of each micro-batch, in the stage that writes the scores.
        """
        self.spec = spec
        self.layers = chain.layers[spec.first : spec.last + 1]
        self.incoming = chain.alive(spec.first)
        self.outgoing = chain.alive(spec.last + 1)
        self.is_last = spec.last == len(chain.layers) - 1
        self.loss = chain.loss
        self._score, self._label = chain.score, chain.label
        self._on_score = on_score if self._writes(chain.score) and chain.label in chain.inputs else None
        self.reads, self._tensors = self._inputs(chain)
        self.rows = rows
        self._rows_of = {layer.name: some for some in rows for layer in some.layers}
        self.waits = any(_waits(some) for some in rows)
        """Whether `wait` does anything."""
        self._precision = precision
        plain = spec.device.type == "cpu" and precision == torch.float32
        self._products: AbstractContextManager[Any] = Products(spec.threads) if plain and pays() else nullcontext()
        for layer in self.layers:
            layer.to(spec.device)
        own = {layer.name for layer in self.layers}
        self.parameters = {  # one that layers share is there once
            name: parameter for name, parameter in chain.named_parameters() if name.partition(".")[0] in own
        }
        trained = [parameter for parameter in self.parameters.values() if parameter.requires_grad]
        self.optimizer = optimizer(trained) if trained else None
        self._trained = tuple(trained)
        for parameter in trained:
            parameter.grad = None  # of a backward before the run
        self._keep = self._trained if keep_weights_version else ()
        self._in_place = {
            layer.name for layer in self.layers if any(getattr(module, "inplace", False) for module in layer.modules())
        }
        self._spent = {
            layer.name for layer in self.layers if isinstance(layer, SparseEmbedding) and self._is_spent(layer, chain)
        }
        self._writer_of = {tensor: layer.name for layer in self.layers for tensor in layer.writes}
        self.device_s, self.device_steps = 0.0, 0
        """Seconds that a GPU worked, and for how many steps, where it tells; else the stage's spans do."""
        self._flights: dict[tuple[int, int], _Flight] = {}
        self._loss_sums: dict[int, Tensor] = {}  # of steps that are not applied, as far as they are computed
        self._pushed = -1  # the last step whose rows are pushed
        self._shares_out = spec.device.type == "cpu" and spec.threads > 1 and precision == torch.float32
        self._simple_threads = 0  # not known yet

    def _inputs(self, chain: Chain) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What of a batch the stage reads, and what of that it needs as tensors on its device: not ids alone."""
        reads = set(chain.read_by(self.spec.first, self.spec.last)) | ({chain.label} if self._on_score else set())
        ordered = tuple(name for name in chain.inputs if name in reads)
        ids = {name for layer in self.layers if isinstance(layer, SparseEmbedding) for name in layer.reads}
        others = {name for layer in self.layers if not isinstance(layer, SparseEmbedding) for name in layer.reads}
        return ordered, tuple(name for name in ordered if name not in ids or name in others or name == self._label)

    def _is_spent(self, layer: SparseEmbedding, chain: Chain) -> bool:
        """Whether the rows of a layer are a copy that one layer reads here, and nobody afterwards.

        Where products are oneDNN's it makes no difference: that writes to memory of its own.
        """
        if isinstance(self._products, Products):
            return False
        readers = sum(other.reads.count(layer.writes[0]) for other in chain.layers)
        rows = self._rows_of.get(layer.name)
        own = isinstance(rows, HostRows) and rows.copies and self.spec.device.type == "cpu"
        return own and readers == 1 and layer.writes[0] not in self.outgoing and self._precision == torch.float32

    @property
    def scores(self) -> bool:
        """Whether it calls `on_score`."""
        return self._on_score is not None

    def _writes(self, tensor: str | None) -> bool:
        return any(tensor in layer.writes for layer in self.layers)

    def connect(self, inbox: Inbox, recorder: Recorder) -> None:
        """Tells what wakes the thread that will run it, and who takes down work that is not done by that thread."""

    def is_prepared(self, prepared: Any) -> bool:
        """Whether a step may begin, if that is not waited for in `begin`. `prepared` is what `prepare` will give."""
        return True

    def is_applied(self, step: int) -> bool:
        """Whether the updates of a step are done, if `apply` does not wait for them."""
        return True

    @property
    def only_asks(self) -> bool:
        """Whether `prepare` waits for nobody."""
        return all(isinstance(rows, HostRows) and rows.only_asks for rows in self.rows)

    def prepare(self, step: Step) -> Any:
        """Work on a step that needs no dense weights, done ahead and in another thread: looking ids up."""
        return [rows.prepare(step.number, step.whole) for rows in self.rows]

    def wait(self, step: Step, prepared: Any) -> Any:
        """Waits for what others have to do before `begin`: servers, and other stages that use a table.

        Takes what `prepare` gave, and gives it to `begin`, with the rows that servers sent. Only for telling waiting
        from work: `begin` waits itself for what was not waited for.
        """
        return [
            rows.wait(step.number, step.whole, own) if _waits(rows) else own
            for rows, own in zip(self.rows, prepared, strict=True)
        ]

    def begin(self, step: Step, prepared: Any) -> None:
        """Starts a step with what `prepare` gave for its batch: gets the rows."""
        for rows, own in zip(self.rows, prepared, strict=True):
            rows.pull(step.number, step.whole, own)

    def forward(self, step: Step, micro_batch: int, incoming: Tensors) -> Tensors:
        """Computes a micro-batch from what the previous stage sent; gives what the next one needs, without gradients.

        The last stage also goes backward at once: it gives the gradients of `incoming` instead.
        """
        start, stop = step.bounds[micro_batch], step.bounds[micro_batch + 1]
        if self._shares_out and not self._simple_threads:
            dense = [layer.module for layer in self.layers if not isinstance(layer, SparseEmbedding)]
            self._simple_threads = threads_for(dense, stop - start, self.spec.threads)
        self._set_threads()
        values: Tensors = {name: _moved(step.whole[name][start:stop], self.spec.device) for name in self._tensors}
        flight = _Flight({})
        for name, value in incoming.items():
            flight.incoming[name], values[name] = _received(value, self.spec.device)

        def written(layer: SparseEmbedding) -> Any:
            return self._rows_of[layer.name].part(step.number, layer, start, stop, self.spec.device)

        self.compute(values, written)
        if self._on_score is not None:
            self._on_score(values[str(self._score)].detach(), values[str(self._label)])
        if self.is_last:
            loss = values[self.loss]
            if step.micro_batches > 1:
                loss = loss * ((stop - start) / step.samples)
            known = self._loss_sums.get(step.number)
            self._loss_sums[step.number] = loss.detach() if known is None else known + loss.detach()
            flight.outgoing = {self.loss: loss}
            return self._backward(step, flight, {self.loss: None})
        flight.outgoing = {name: values[name] for name in self.outgoing}
        self._flights[step.number, micro_batch] = flight
        return {name: value if isinstance(value, Lookup) else value.detach() for name, value in flight.outgoing.items()}

    def _set_threads(self) -> None:
        """Of the thread that computes: the profiler runs several stages in one."""
        if self._simple_threads:
            use_for_simple_operations(self._simple_threads)

    def compute(self, values: Tensors, rows_of: Callable[[SparseEmbedding], Any]) -> None:
        """Runs the layers: adds what they write to `values`."""
        with self._autocast(), self._products:
            for layer in self.layers:
                if isinstance(layer, SparseEmbedding):
                    rows = rows_of(layer)
                    values.update(layer.written(spend(rows) if layer.name in self._spent else rows))
                else:
                    if layer.name in self._in_place:
                        values.update({name: _writable(values[name]) for name in layer.reads})
                    try:
                        values.update(run_layer(layer, values))
                    except Exception as error:
                        error.add_note(f"in layer {layer.name!r}")
                        raise
        if self.is_last and values[self.loss].numel() != 1:
            raise InvalidInput(
                f"the loss {self.loss!r} is one number, the mean over the samples, not {tuple(values[self.loss].shape)}"
            )

    def backward(self, step: Step, micro_batch: int, grads: Tensors) -> Tensors:
        """Goes backward from the gradients the next stage sent; gives those of what the previous one sent."""
        self._set_threads()
        return self._backward(step, self._flights.pop((step.number, micro_batch)), grads)

    def _backward(self, step: Step, flight: _Flight, grads: Tensors) -> Tensors:
        roots, roots_grads = [], []
        for name, value in flight.outgoing.items():
            grad = arrived(grads[name])
            if isinstance(value, Lookup):
                rows = self._rows_of[self._writer_of[name]]
                assert isinstance(rows, DistinctRows)
                rows.give(step.number, torch.zeros_like(value.rows) if grad is None else grad)
            elif value.requires_grad and (grad is not None or name == self.loss):
                roots.append(value)
                roots_grads.append(None if grad is None else _moved(grad, self.spec.device))
        if roots:
            torch.autograd.backward(roots, roots_grads)
        for rows in self.rows:
            rows.collect(step.number)
        return {name: leaf.grad for name, leaf in flight.incoming.items()}

    def squared_norm(self) -> Tensor:
        """Sum of squares of the dense gradients of the step, for clipping by the norm over all stages."""
        grads = self.grads()
        norms = [norm.square() for norm in torch._foreach_norm(grads)] if grads else []
        return torch.stack(norms).sum() if norms else torch.zeros((), device=self.spec.device)

    def push(self, step: Step) -> None:
        """Updates rows by the step's gradients, ahead of `apply`, which else does it."""
        for rows in self.rows:
            rows.push(step.number)
        self._pushed = step.number

    def apply(self, step: Step, *, scale: float = 1.0) -> Tensor | None:
        """Updates weights and rows by the step's gradients, dense ones times `scale`; the last stage gives the loss."""
        self._set_threads()
        if self.optimizer is not None:
            if scale != 1.0:
                torch._foreach_mul_(self.grads(), scale)
            with _unsafe_preserve_version_counter(self._keep) if self._keep else nullcontext():
                adam.step(self.optimizer)
            for parameter in self._trained:  # as `zero_grad`, which takes longer
                parameter.grad = None
        if self._pushed < step.number:
            self.push(step)
        return self._loss_sums.pop(step.number, None)

    @contextmanager
    def gradients_aside(self) -> Iterator[None]:
        """Puts the dense gradients that a later step has so far aside, while an earlier one is applied."""
        held = [parameter.grad for parameter in self._trained]
        for parameter in self._trained:
            parameter.grad = None
        yield
        for parameter, grad in zip(self._trained, held, strict=True):
            parameter.grad = grad

    def set_lr(self, factor: float) -> None:
        """Learning rates of the updates that follow: the initial ones times `factor`."""
        if self.optimizer is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor
        for rows in self.rows:
            rows.set_lr(factor)

    def load_optimizer(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Takes up the optimizer's state from a checkpoint, by parameter name; what it lacks starts anew.

        Raises:
            InvalidInput: if it is of another kind of optimizer.
        """
        if self.optimizer is None:
            return
        held = self.optimizer.state_dict()
        names = {id(parameter): name for name, parameter in self.parameters.items()}
        order = [names[id(parameter)] for group in self.optimizer.param_groups for parameter in group["params"]]
        for number, name in enumerate(order):
            if name not in states:
                continue
            state = dict(states[name])
            kind, own = state.pop(KIND, None), type(self.optimizer).__name__
            if kind not in (None, own):  # older checkpoints do not say
                raise InvalidInput(
                    f"the checkpoint has the state of {kind}, which {own} cannot take up; resume with {kind}, or train "
                    "anew from its weights at another checkpoint path"
                )
            held["state"][number] = state
        self.optimizer.load_state_dict(held)

    def flush(self) -> None:
        """Brings the tables up to date before they are saved."""
        for rows in self.rows:
            rows.flush()

    def finish(self) -> None:
        """Brings everything back to the host when the run is over."""
        self.flush()
        for layer in self.layers:
            layer.to("cpu")

    def grads(self) -> list[Tensor]:
        """The dense gradients there are."""
        return [parameter.grad for parameter in self.parameters.values() if parameter.grad is not None]

    def not_finite(self) -> str | None:
        """The name of a trained dense weight that is no number any more; None if there is none."""
        trained = ((name, one.detach()) for name, one in self.parameters.items() if one.requires_grad)
        return next((name for name, weight in trained if not bool(torch.isfinite(weight).all())), None)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._precision == torch.float32:
            return nullcontext()
        return torch.autocast(self.spec.device.type, dtype=self._precision)


def _waits(rows: Rows) -> TypeGuard[HostRows | DistinctRows]:
    """Whether others have to do something before a pull."""
    return isinstance(rows, HostRows | DistinctRows) and rows.waits


def _writable(value: Any) -> Any:
    """The tensor, or a copy of a leaf (or of a view of one), which must not be written to: for layers in place."""
    if not isinstance(value, Tensor) or not value.requires_grad:
        return value
    base = value._base if value._is_view() else value
    return value.clone() if base is None or base.is_leaf else value


def _received(value: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    """What another stage sent: a leaf that collects its gradient, and the tensor it stands for."""
    if isinstance(value, Lookup):
        rows = value.rows.to(device, non_blocking=True).requires_grad_()
        return rows, rows.index_select(0, value.number.to(device, non_blocking=True)).view(value.shape)
    moved = _moved(value, device).detach()
    if moved.is_floating_point():
        moved.requires_grad_()
    return moved, moved


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Bags):
        return value
    return value if value.device == device else value.to(device)


def named_states(stages: Iterable[Stage]) -> dict[str, dict[str, Any]]:
    """The optimizers' state by parameter name, and of which kind it is, so that another plan can take it up."""
    states: dict[str, dict[str, Any]] = {}
    for stage in stages:
        if stage.optimizer is not None:
            names = {id(parameter): name for name, parameter in stage.parameters.items()}
            kind = {KIND: type(stage.optimizer).__name__}
            states |= {names[id(parameter)]: {**state, **kind} for parameter, state in stage.optimizer.state.items()}
    return states
