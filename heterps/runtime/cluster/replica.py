"""One replica of one stage: reads its share of the data, computes, talks to its neighbours, the servers and its twins.

A plain object: `actors.py` puts it into a process of its own. Its calls come in the order open, connect, begin, then
any number of run and save, then close. The stage is run by the same `Worker` as in engine local; this is its hub, whose
other end are other processes.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, SupportsFloat

import torch
from torch import Tensor

from heterps.data import Read, Synthetic
from heterps.errors import HeterPSError
from heterps.ps import Client, Keys
from heterps.runtime.build import build_stage, look_ahead
from heterps.runtime.cluster.circle import CircleSum
from heterps.runtime.cluster.feeding import Bounds, Mark
from heterps.runtime.cluster.layout import Seat
from heterps.runtime.cluster.lookups import packed, unpacked
from heterps.runtime.cluster.mail import Mail
from heterps.runtime.cluster.messages import Message
from heterps.runtime.cluster.parts import read_part, write_part
from heterps.runtime.cluster.reading import crew_of
from heterps.runtime.cluster.rows import pushes
from heterps.runtime.cluster.share import Share, share_of
from heterps.runtime.cluster.spans import Spans
from heterps.runtime.cluster.sums import CollectiveSum, add_up
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
        self._spans, self.schedule = Spans(keep=seat.replica == 0), work.settings.schedule
        self.recorder = self._spans.recorder
        self._bounds = Bounds(0, Mark(0, None), timeout_s=work.timeout_s)
        self._runner: Runner | None = None

    @property
    def step(self) -> int:
        """Steps done, for whoever watches."""
        return self._bounds.done

    # In the order of calls.

    def open(self) -> Address:
        """Binds its sockets, and says where they are."""
        self._mail = Mail(
            self._host, self._keys, self._attempt, me=self._seat, narrow=self._work.narrow,
            timeout_s=self._work.timeout_s, share=self._work.share,
        )  # fmt: skip
        self._chain, self._data = self._work.factory()
        return Address(self._mail.address, self._mail.offer, self._make_sum())

    def _make_sum(self) -> tuple[str, int] | None:
        """How gradients are added up over the replicas of its stage; says where these meet for it, if it knows."""
        self._collective: CollectiveSum | None = None
        self._add_up: Callable[[int, Sequence[Tensor]], Later[None]] | None = None
        if self._own.replicas == 1:
            return None
        backend = self._work.sums
        if backend == "auto":
            backend = "nccl" if self._device.type == "cuda" else "mail"
        if backend == "mail":
            self._add_up = CircleSum(self._mail, self._own.seats(), self._seat)
            return None
        self._collective = CollectiveSum(self._host, self._device, backend=backend, timeout_s=self._work.timeout_s)
        self._add_up = partial(add_up, sum_=self._collective)
        return self._collective.host_store() if self._seat.replica == 0 else None

    def connect(self, addresses: Mapping[Seat, Address], shards: Sequence[str]) -> None:
        """Meets the others: neighbours, the replicas of its stage, and the servers."""
        others = {seat: address for seat, address in addresses.items() if seat != self._seat}
        self._mail.connect(
            {seat: address.mail for seat, address in others.items()},
            {seat: address.offer for seat, address in others.items()},
        )
        meeting = addresses[Seat(self._seat.stage, 0)].rendezvous
        if self._collective is not None and meeting is not None:
            self._collective.meet(meeting, rank=self._seat.replica, size=self._own.replicas)
        self._client = Client(shards, self._keys, timeout_s=30.0, shared=self._work.share) if shards else None
        # The coordinator fills them.
        self._tables = bind_tables(self._chain, client=self._client, seed=self._settings.seed, fill=False)

    def begin(self, checkpoint: str | None, step: int, samples: int, position: Any) -> None:
        """Takes up a checkpoint (None: the beginning), whose tables the servers have loaded."""
        part = read_part(checkpoint) if checkpoint is not None else None
        if part is not None:
            self._chain.load_state_dict(dict(part.dense))
        self._bounds = Bounds(step, Mark(samples, position), timeout_s=self._work.timeout_s)
        self._samples = samples
        self._losses: dict[int, SupportsFloat] = {}
        self._aucs: deque[tuple[int, dict[str, Any]]] = deque()
        self._auc_at: dict[int, dict[str, Any] | None] = {}
        """Counts of its scores at the ends of stretches beyond which it may have gone."""
        self._since: tuple[float, float] | None = None
        """When it answered last, and the busy seconds until then, if it went on."""
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
        self._start(step)

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

    def _start(self, step: int) -> None:
        keep_freed_memory()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="prepare")
        worker = Worker(self._stage, self, first_step=step, staleness=self._settings.steps_ahead, around=self._seeded)
        self._runner = Runner([worker], self.fail)
        self._runner.start()
        self._mail.on_lost = self._bounds.fail
        self._mail.on("forward", self._arrived)
        self._mail.on("backward", self._arrived)
        threading.Thread(target=self._read, name="feed", daemon=True).start()

    def run(self, until: int, allowed: int = 0) -> Progress:
        """Does the steps up to `until` (not included), or to the end of the data; goes on up to `allowed` meanwhile."""
        began_s, before_s = self._since or (time.perf_counter(), self.recorder.busy_s(self._seat.stage))
        step, mark, ended = self._bounds.reach(until, allowed)
        still = self._bounds.is_still(step)
        if still:
            for table in self._tables.values():
                table.wait()
        now_s, busy_s = time.perf_counter(), self.recorder.busy_s(self._seat.stage)
        self._since = None if still else (now_s, busy_s)
        losses = [float(self._losses.pop(number)) for number in sorted(self._losses) if number < step]
        aucs = []
        while self._aucs and self._aucs[0][0] <= step:
            aucs.append(self._aucs.popleft())
        auc = self._auc_at.pop(step) if step in self._auc_at else self._scored()
        return Progress(
            step, mark.samples, mark.position, ended, tuple(losses), auc, mark.skipped_rows,
            busy_s - before_s, now_s - began_s - (busy_s - before_s), tuple(aucs), self._spans.taken(),
        )  # fmt: skip

    def _scored(self) -> dict[str, Any] | None:
        """Counts of its scores so far, in the stage that has them."""
        return self._auc.state() if self._auc is not None and self._stage.scores else None

    def _read(self) -> None:
        """Feeds batch after batch, as far as it may."""
        bounds, ahead = self._bounds, self._settings.steps_ahead + self._ahead
        try:
            reads = iter(self._feed)
            while True:
                number = bounds.may_feed(ahead)
                read = next(reads, None)
                if read is None:
                    bounds.end()
                    return
                self._submit(number, read)
        except BaseException as error:  # whoever waits for the step gets it
            bounds.fail(error)

    def _submit(self, number: int, read: Read) -> None:
        """Feeds a batch as the next step."""
        if not self._feed.shared:
            self._chain.check_batch(read.batch)
        if number < CHECKED_STEPS:
            check_labels(self._chain, read.batch)
        share = share_of(
            number, read.batch, self._stage.reads,
            micro_batches=self._settings.micro_batches, replica=self._seat.replica, replicas=self._own.replicas,
        )  # fmt: skip
        self._samples += share.samples
        self._bounds.feed(Mark(self._samples, read.position, self._feed.skipped))
        self._take(Fed(share, self._prepared(share)))

    def _prepared(self, share: Share) -> Future[Any]:
        """What is done for a step ahead: here, if it waits for nobody, as one more thread is in the others' way."""
        if self._settings.steps_ahead and not self._stage.only_asks:
            return self._pool.submit(self._stage.prepare, share)
        prepared: Future[Any] = Future()
        prepared.set_result(self._stage.prepare(share))
        return prepared

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
        self._bounds.fail(HeterPSError("the replica is closed"))
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
        added = self._add_up(step, trained) if self._add_up is not None else None

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
        done = step.number + 1
        if done % self._settings.log_every == 0 and (scored := self._scored()) is not None:
            self._aucs.append((done, scored))
        if self._bounds.is_end(done):
            self._auc_at[done] = self._scored()
        if self._stage.is_last:
            self._losses[step.number] = 0.0 if loss is None else loss
        self._bounds.finish(step.number)

    def fail(self, error: BaseException, stage: StageSpec) -> None:
        """The worker raised. What a layer raises is the model's fault, and would be raised again after a restart."""
        found = error
        if not isinstance(error, HeterPSError):
            where = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
            found = StageFailed(f"{self._seat} failed: {type(error).__name__}: {error}{where}")
            found.__cause__ = error
        self._bounds.fail(found)
