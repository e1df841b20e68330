"""One replica of one stage: reads its share of the data, computes, talks to its neighbours, the servers and its twins.

A plain object: `actors.py` puts it into a process of its own. Its calls come in the order open, connect, begin, then
any number of run and save, then close. The stage is run by the same `Worker` as in engine local; this is its hub, whose
other end are other processes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, SupportsFloat

import torch
from torch import Tensor

from heterps.data import Read, Synthetic
from heterps.errors import HeterPSError
from heterps.ps import Client, Keys
from heterps.runtime.build import build_stage, look_ahead
from heterps.runtime.cluster.layout import Seat
from heterps.runtime.cluster.lookups import packed, unpacked
from heterps.runtime.cluster.mail import Mail, PeerLost
from heterps.runtime.cluster.messages import Message
from heterps.runtime.cluster.parts import read_part, write_part
from heterps.runtime.cluster.reading import crew_of
from heterps.runtime.cluster.rows import pushes
from heterps.runtime.cluster.share import Share, share_of
from heterps.runtime.cluster.spans import Spans
from heterps.runtime.cluster.sums import CollectiveSum, MailSum, Sum, add_up
from heterps.runtime.cluster.work import Address, Progress, Work
from heterps.runtime.feed import Feed
from heterps.runtime.later import Later
from heterps.runtime.memory import keep_freed_memory
from heterps.runtime.pipeline import StageFailed
from heterps.runtime.placement import StageSpec
from heterps.runtime.randomness import seed_of
from heterps.runtime.runner import Runner
from heterps.runtime.stage import Stage, Step, named_states
from heterps.runtime.tables import Shared, bind_tables, fail_all
from heterps.runtime.trainer import CHECKED_STEPS, check_labels
from heterps.runtime.worker import Backward, Fed, Forward, Worker
from heterps.telemetry.metrics import Auc


class Replica:
    """See the module."""

    def __init__(self, work: Work, seat: Seat, keys: Keys, attempt: int, host: str) -> None:
        self._work, self._seat, self._keys, self._attempt, self._host = work, seat, keys, attempt, host
        self._layout, self._settings = work.layout, work.settings
        self._own = work.layout.stages[seat.stage]
        self._device = torch.device("cuda", 0) if self._own.device == "cuda" else torch.device("cpu")
        self.step = 0
        """Steps done, for whoever watches."""
        self._spans, self.schedule = Spans(keep=seat.replica == 0), work.settings.schedule
        self.recorder = self._spans.recorder
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._runner: Runner | None = None

    # In the order of calls.

    def open(self) -> Address:
        """Binds its sockets, and says where they are."""
        self._mail = Mail(
            self._host, self._keys, self._attempt, me=self._seat, narrow=self._work.narrow,
            timeout_s=self._work.timeout_s, share=self._work.share,
        )  # fmt: skip
        self._chain, self._data = self._work.factory()
        self._sum, meeting = self._make_sum()
        return Address(self._mail.address, self._mail.offer, meeting)

    def _make_sum(self) -> tuple[Sum | None, tuple[str, int] | None]:
        """How gradients are added up over the stage's replicas, and where these meet for it, if the first one knows."""
        if self._own.replicas == 1:
            return None, None
        backend = self._work.sums
        if backend == "auto":
            backend = "nccl" if self._device.type == "cuda" else "mail"
        if backend == "mail":
            return MailSum(self._mail, self._own.seats(), self._seat), None
        collective = CollectiveSum(self._host, self._device, backend=backend, timeout_s=self._work.timeout_s)
        return collective, collective.host_store() if self._seat.replica == 0 else None

    def connect(self, addresses: Mapping[Seat, Address], shards: Sequence[str]) -> None:
        """Meets the others: neighbours, the replicas of its stage, and the servers."""
        others = {seat: address for seat, address in addresses.items() if seat != self._seat}
        self._mail.connect(
            {seat: address.mail for seat, address in others.items()},
            {seat: address.offer for seat, address in others.items()},
        )
        meeting = addresses[Seat(self._seat.stage, 0)].rendezvous
        if isinstance(self._sum, CollectiveSum) and meeting is not None:
            self._sum.meet(meeting, rank=self._seat.replica, size=self._own.replicas)
        self._client = Client(shards, self._keys, timeout_s=30.0, shared=self._work.share) if shards else None
        # The coordinator fills them.
        self._tables = bind_tables(self._chain, client=self._client, seed=self._settings.seed, fill=False)

    def begin(self, checkpoint: str | None, step: int, samples: int, position: Any) -> None:
        """Takes up a checkpoint (None: the beginning), whose tables the servers have loaded."""
        part = read_part(checkpoint) if checkpoint is not None else None
        if part is not None:
            self._chain.load_state_dict(dict(part.dense))
        self.step = self._submitted = step
        self._samples, self._position = samples, position
        self._losses: dict[int, SupportsFloat] = {}
        self._aucs: list[tuple[int, dict[str, Any]]] = []
        self._shared: Shared = pushes(
            self._chain, self._tables, self._layout, self._seat, step, timeout_s=self._work.timeout_s
        )
        self._stage = self._make_stage()
        self._stage.load_optimizer(part.optimizer if part is not None else {})
        settings = self._settings
        epochs = settings.epochs or (None if settings.steps else 1)
        alone = isinstance(self._data, Synthetic)  # rows are made faster than they are sent
        crew = None if alone else crew_of(self._chain, self._layout, self._seat, self._mail)
        self._feed = Feed(
            self._data, batch_size=settings.batch_size, epochs=epochs, seed=settings.seed, position=position, crew=crew
        )
        if self._feed.shared:
            self._chain.check_batch(self._data.columns)  # batches hold only what is read here
        self._reads: Iterator[Read] = iter(self._feed)
        self._start()

    def _make_stage(self) -> Stage:
        scored = self._chain.score is not None and self._chain.label is not None
        self._auc = Auc() if scored else None
        specs = [
            StageSpec(
                stage.number, stage.first, stage.last, stage.type, stage.units,
                self._device if stage is self._own else torch.device(stage.device),
                stage.shares[self._seat.replica] if stage is self._own else stage.shares[0],
            )
            for stage in self._layout.stages
        ]  # fmt: skip
        self._ahead = look_ahead([specs[self._seat.stage]])
        return build_stage(
            specs[self._seat.stage], self._chain, specs, self._shared, self._settings, self._score, ahead=self._ahead
        )

    def _score(self, scores: Tensor, labels: Tensor) -> None:
        if self._auc is not None:
            self._auc.update(scores, labels)

    def _start(self) -> None:
        keep_freed_memory()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="prepare")
        worker = Worker(
            self._stage, self, first_step=self.step, staleness=self._settings.steps_ahead, around=self._seeded
        )
        self._runner = Runner([worker], self.fail)
        self._runner.start()
        self._mail.on_lost = self._fail
        self._mail.on("forward", self._arrived)
        self._mail.on("backward", self._arrived)

    def run(self, until: int) -> Progress:
        """Does the steps up to `until` (not included), or to the end of the data."""
        first, ended, began = self.step, False, time.perf_counter()
        before_s, self._aucs = self.recorder.busy_s(self._seat.stage), []
        while self._submitted < until and not ended:
            read = next(self._reads, None)
            if read is None:
                ended = True
            else:
                self._submit(read)
        self._wait(lambda: self.step >= self._submitted)
        for table in self._tables.values():
            table.wait()
        losses = [float(self._losses.pop(step)) for step in range(first, self.step)] if self._stage.is_last else []
        busy_s = self.recorder.busy_s(self._seat.stage) - before_s
        return Progress(
            self.step, self._samples, self._position, ended, tuple(losses), self._scored(), self._feed.skipped, busy_s,
            time.perf_counter() - began - busy_s, tuple(self._aucs), self._spans.taken(),
        )  # fmt: skip

    def _scored(self) -> dict[str, Any] | None:
        """Counts of its scores so far, in the stage that has them."""
        return self._auc.state() if self._auc is not None and self._stage.scores else None

    def _submit(self, read: Read) -> None:
        """Feeds a batch as the next step, as soon as there is room."""
        number = self._submitted
        if not self._feed.shared:
            self._chain.check_batch(read.batch)
        if number < CHECKED_STEPS:
            check_labels(self._chain, read.batch)
        share = share_of(
            number, read.batch, self._stage.reads,
            micro_batches=self._settings.micro_batches, replica=self._seat.replica, replicas=self._own.replicas,
        )  # fmt: skip
        self._wait(lambda: number - self.step <= self._settings.steps_ahead + self._ahead)
        self._take(Fed(share, self._pool.submit(self._stage.prepare, share)))
        self._submitted += 1
        self._samples += share.samples
        self._position = read.position

    def _wait(self, condition: Callable[[], bool]) -> None:
        """Returns when the worker has done enough; raises what it raised, or if no step gets done for too long."""
        with self._changed:
            while not condition() and self._error is None:
                if not self._changed.wait(self._work.timeout_s):  # told after each step
                    raise PeerLost(f"step {self.step} was not finished within {self._work.timeout_s:.0f} s")
            if self._error is not None:
                raise self._error

    def save(self, path: str) -> None:
        """Writes the dense weights, buffers and optimizer state of its stage; its twins have other buffers at most."""
        if (broken := self._stage.not_finite()) is not None:
            raise StageFailed(
                f"the weight {broken!r} is no number any more after step {self.step}; the last checkpoint is intact. "
                "Lower the learning rates, clip gradients (clip_norm), or look for bad data"
            )
        names = {layer.name for layer in self._stage.layers}
        dense = {
            name: value.detach().cpu()
            for name, value in self._chain.state_dict().items()
            if name.partition(".")[0] in names
        }
        write_part(path, self._seat.stage, dense, named_states([self._stage]))

    def close(self) -> None:
        """Ends it in good order."""
        fail_all(self._shared)
        if self._runner is not None:
            self._runner.stop()
            self._runner.join()
            self._pool.shutdown(cancel_futures=True)
        self._feed.__exit__()
        if self._client is not None:
            self._client.close()
        self._mail.close()

    # The worker's hub: calls in its thread, but for `_arrived`, which is the mail's.

    def send(self, stage: int, message: Forward | Backward) -> None:
        """Sends tensors to the replica of a neighbouring stage whose micro-batch it is."""
        number = self._seat.replica + self._own.replicas * message.micro_batch
        kind = "forward" if isinstance(message, Forward) else "backward"
        tensors = packed(message.tensors)
        self._mail.send(self._layout.owner(stage, number), Message(kind, message.step, str(number), tensors))

    def _arrived(self, message: Message) -> None:
        own = (int(message.part) - self._seat.replica) // self._own.replicas
        kind = Forward if message.kind == "forward" else Backward
        self._take(kind(message.step, own, unpacked(message.tensors)))

    def _take(self, message: Fed | Forward | Backward) -> None:
        assert self._runner is not None
        self._runner.send(self._runner.workers[0], message)

    @contextmanager
    def _seeded(self, step: Step, micro_batch: int) -> Iterator[None]:
        assert isinstance(step, Share)
        seed = seed_of(self._settings.seed, step.number, step.numbers[micro_batch], self._seat.stage)
        if self._device.type == "cpu":
            torch.default_generator.manual_seed(seed)  # `torch.manual_seed` takes 0.3 ms to look for other devices
        else:
            torch.manual_seed(seed)
        yield

    def reduce(self, step: int, stage: Stage) -> Later[float]:
        """Starts to add gradients up over the stage's replicas; the factor is for the norm over all stages."""
        trained = [one for one in stage.parameters.values() if one.requires_grad]
        added = add_up(step, trained, self._sum) if self._sum is not None else None

        def reduced() -> float:
            if added is not None:
                added.get()
            return self._factor(step, stage)

        return Later(reduced) if added is None else Later(reduced, added.ready)

    def _factor(self, step: int, stage: Stage) -> float:
        limit = self._settings.clip_norm
        if limit is None or stage.applies_at_once:
            return 1.0
        own = stage.squared_norm().reshape(1).double().cpu()
        if self._seat.replica == 0:
            for seat in self._layout.seats():
                if seat.stage != self._seat.stage:
                    self._mail.send(seat, Message("norm", step, str(self._seat.stage), {"norm": own}))
        norms: list[Tensor] = []
        for number in range(len(self._layout.stages)):
            told = own if number == self._seat.stage else self._mail.take("norm", step, str(number)).tensors["norm"]
            assert told is not None
            norms.append(told)
        norm = float(torch.cat(norms).sum().sqrt())
        return min(1.0, limit / (norm + 1e-6))

    def applied(self, stage: int, step: Step, loss: SupportsFloat | None) -> None:
        """The stage has updated its weights for a step; its rows are once the servers have all gradients."""
        if (step.number + 1) % self._settings.log_every == 0 and (scored := self._scored()) is not None:
            self._aucs.append((step.number + 1, scored))
        with self._changed:
            self.step = step.number + 1
            if self._stage.is_last:
                self._losses[step.number] = 0.0 if loss is None else loss
            self._changed.notify_all()

    def fail(self, error: BaseException, stage: StageSpec) -> None:
        """The worker raised. What a layer raises is the model's fault, and would be raised again after a restart."""
        found = error
        if not isinstance(error, HeterPSError):
            where = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
            found = StageFailed(f"{self._seat} failed: {type(error).__name__}: {error}{where}")
            found.__cause__ = error
        self._fail(found)

    def _fail(self, error: BaseException) -> None:
        """Whoever waits for the worker gets the first error there was."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()
