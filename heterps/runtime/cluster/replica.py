"""One replica of one stage: reads its share of the data, computes, talks to its neighbours, the servers and its twins.

A plain object: `actors.py` puts it into a process of its own. Its calls come in the order open, connect, begin, then
any number of run and save, then close.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heterps.data import Read
from heterps.errors import HeterPSError
from heterps.ps import Client, Keys
from heterps.runtime.cluster.group import Group
from heterps.runtime.cluster.layout import Seat
from heterps.runtime.cluster.mail import Mail
from heterps.runtime.cluster.messages import Message
from heterps.runtime.cluster.parts import read_part, write_part
from heterps.runtime.cluster.rows import GatheredPush, pushes
from heterps.runtime.cluster.share import Share, seed_of, share_of
from heterps.runtime.cluster.work import Address, Progress, Work
from heterps.runtime.feed import Feed
from heterps.runtime.pipeline import StageFailed
from heterps.runtime.placement import StageSpec
from heterps.runtime.rows import HostRows
from heterps.runtime.stage import Stage, Tensors, named_states
from heterps.runtime.tables import Shared, bind_tables
from heterps.telemetry.metrics import Auc


class Replica:
    """See the module."""

    def __init__(self, work: Work, seat: Seat, keys: Keys, attempt: int, host: str) -> None:
        self._work, self._seat, self._keys, self._attempt, self._host = work, seat, keys, attempt, host
        self._layout, self._settings = work.layout, work.settings
        self._own = work.layout.stages[seat.stage]
        self.step = 0
        """Steps done, for whoever watches."""

    def open(self) -> Address:
        """Binds its sockets, and says where they are."""
        self._mail = Mail(
            self._host, self._keys, self._attempt, narrow=self._work.narrow, timeout_s=self._work.timeout_s
        )
        self._chain, self._data = self._work.factory()
        self._group = Group(self._host, timeout_s=self._work.timeout_s) if self._own.replicas > 1 else None
        hosts = self._group is not None and self._seat.replica == 0
        return Address(self._mail.address, self._group.host_store() if self._group is not None and hosts else None)

    def connect(self, addresses: Mapping[Seat, Address], shards: Sequence[str]) -> None:
        """Meets the others: neighbours, the replicas of its stage, and the servers."""
        self._mail.connect({seat: address.mail for seat, address in addresses.items() if seat != self._seat})
        meeting = addresses[Seat(self._seat.stage, 0)].rendezvous
        if self._group is not None and meeting is not None:
            self._group.meet(meeting, rank=self._seat.replica, size=self._own.replicas)
        self._client = Client(shards, self._keys, timeout_s=30.0) if shards else None
        self._tables = bind_tables(self._chain, client=self._client, seed=self._settings.seed)

    def begin(self, checkpoint: str | None, step: int, samples: int, position: Any) -> None:
        """Takes up a checkpoint (None: the beginning), whose tables the servers have loaded."""
        part = read_part(Path(checkpoint)) if checkpoint is not None else None
        if part is not None:
            self._chain.load_state_dict(dict(part.dense))
        self.step, self._samples, self._position, self._skipped = step, samples, position, 0
        self._shared: Shared = pushes(self._chain, self._tables, self._layout, self._mail, self._seat, step)
        self._stage = self._make_stage()
        self._stage.load_optimizer(part.optimizer if part is not None else {})
        settings = self._settings
        epochs = settings.epochs or (None if settings.steps else 1)
        self._feed = Feed(
            self._data, batch_size=settings.batch_size, epochs=epochs, seed=settings.seed, position=position
        )
        self._reads: Iterator[Read] = iter(self._feed)

    def _make_stage(self) -> Stage:
        own, device = self._own, torch.device("cuda", 0) if self._own.device == "cuda" else torch.device("cpu")
        threads = own.shares[self._seat.replica]
        spec = StageSpec(own.number, own.first, own.last, own.type, own.units, device, threads)
        layers = [layer for layer in self._chain.embeddings if layer in self._chain.layers[own.first : own.last + 1]]
        rows = [HostRows(layer, self._shared[layer.table_name], device) for layer in layers]
        self._auc = Auc() if self._chain.score is not None and self._chain.label is not None else None
        return Stage(
            spec, self._chain, rows, optimizer=self._settings.make_optimizer, precision=self._settings.dtype,
            on_score=None if self._auc is None else self._auc.update,
        )  # fmt: skip

    def run(self, until: int) -> Progress:
        """Does the steps up to `until` (not included), or to the end of the data."""
        torch.set_num_threads(self._stage.spec.threads)  # of this thread, which need not be that of the last call
        losses: list[float] = []
        ended, self._busy_s = False, 0.0
        while self.step < until:
            read = next(self._reads, None)
            if read is None:
                ended = True
                break
            loss = self._do(read)
            if loss is not None:
                losses.append(loss)
        for table in self._tables.values():
            table.wait()
        scored = self._auc.state() if self._auc is not None and self._stage._on_score is not None else None
        return Progress(
            self.step, self._samples, self._position, ended, tuple(losses), scored, self._feed.skipped, self._busy_s
        )

    def _do(self, read: Read) -> float | None:
        """One step; gives the replica's share of the loss, in the last stage."""
        if self.step == 0:
            self._chain.check_batch(read.batch)
        share = share_of(
            self.step, read.batch, self._stage.reads,
            micro_batches=self._settings.micro_batches, replica=self._seat.replica, replicas=self._own.replicas,
        )  # fmt: skip
        if share.numbers:
            self._stage.begin(share, [None] * len(self._stage.rows))
            self._compute(share)
        loss = self._apply(share)
        self._samples += share.samples
        self._position = read.position
        self.step += 1
        return loss

    def _compute(self, share: Share) -> None:
        """All micro-batches forward and backward, each in order; a backward goes before the next forward."""
        stage, count, step = self._stage, len(share.numbers), share.number
        forward = backward = 0
        while backward < count:
            wanted = []
            if backward < forward and not stage.is_last:
                wanted.append(("backward", step, str(share.numbers[backward])))
            if forward < count and self._seat.stage > 0:
                wanted.append(("forward", step, str(share.numbers[forward])))
            if forward < count and self._seat.stage == 0 and not any(map(self._mail.there, wanted)):
                message = Message("forward", step, str(share.numbers[forward]))
            else:
                message = self._mail.first(wanted)
            if message.kind == "backward":
                grads = self._raising(partial(stage.backward, share, backward, dict(message.tensors)))
                self._send_back(share, backward, grads)
                backward += 1
                continue
            self._seed(share, forward)
            given = self._raising(partial(stage.forward, share, forward, dict(message.tensors)))
            if stage.is_last:
                self._send_back(share, forward, given)
                backward += 1
            else:
                number = share.numbers[forward]
                to = self._layout.owner(self._seat.stage + 1, number)
                self._mail.send(to, Message("forward", step, str(number), given))
            forward += 1

    def _raising(self, work: Callable[[], Tensors]) -> Tensors:
        """What a layer raises is the model's fault, and would be raised again after a restart."""
        began = time.perf_counter()
        try:
            return work()
        except HeterPSError:
            raise
        except Exception as error:
            where = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
            raise StageFailed(f"{self._seat} failed: {type(error).__name__}: {error}{where}") from error
        finally:
            self._busy_s += time.perf_counter() - began

    def _seed(self, share: Share, own: int) -> None:
        torch.manual_seed(seed_of(self._settings.seed, share.number, share.numbers[own], self._seat.stage))

    def _send_back(self, share: Share, own: int, grads: Tensors) -> None:
        if self._seat.stage > 0:
            number = share.numbers[own]
            to = self._layout.owner(self._seat.stage - 1, number)
            self._mail.send(to, Message("backward", share.number, str(number), grads))

    def _update(self, share: Share, scale: float) -> Tensor | None:
        """Updates weights and rows. A replica without samples has no rows, but the others count on its answer."""
        stage = self._stage
        if share.numbers:
            return stage.apply(share, scale=scale)
        rows, stage.rows = stage.rows, ()
        loss = stage.apply(share, scale=scale)
        stage.rows = rows
        for layer in (layer for some in rows for layer in some.layers):
            shared = self._shared[layer.table_name]
            assert isinstance(shared, GatheredPush), "a replica without samples has twins"
            shared.wait_for(share.number - 1)
            shared.give(share.number, layer.name, torch.empty(0, dtype=torch.int64), torch.empty(0, layer.dim))
        return loss

    def _apply(self, share: Share) -> float | None:
        stage, schedule = self._stage, self._settings.schedule
        if self._group is not None:
            trained = [parameter for parameter in stage.parameters.values() if parameter.requires_grad]
            if trained:
                grads = self._group.summed([parameter.grad for parameter in trained], trained)
                for parameter, grad in zip(trained, grads, strict=True):
                    parameter.grad = grad
        scale = self._clip_scale(share.number)
        if schedule is not None:
            stage.set_lr(schedule(share.number))
        loss = self._update(share, scale)
        for push in self._shared.values():
            if isinstance(push, GatheredPush):
                push.settle(share.number)
        if not stage.is_last:
            return None
        return 0.0 if loss is None else float(loss)

    def _clip_scale(self, step: int) -> float:
        """What to multiply gradients by, from the norms of all stages; the first replica of each tells its own."""
        limit = self._settings.clip_norm
        if limit is None:
            return 1.0
        own = self._stage.squared_norm().reshape(1).double().cpu()
        if self._seat.replica == 0:
            for seat in self._layout.seats():
                if seat.stage != self._seat.stage:
                    self._mail.send(seat, Message("norm", step, str(self._seat.stage), {"norm": own}))
        norms: list[Tensor] = []
        for stage in range(len(self._layout.stages)):
            told = own if stage == self._seat.stage else self._mail.take("norm", step, str(stage)).tensors["norm"]
            assert told is not None
            norms.append(told)
        norm = float(torch.cat(norms).sum().sqrt())
        return min(1.0, limit / (norm + 1e-6))

    def save(self, path: str) -> None:
        """Writes the dense weights and the optimizer's state of its stage; its twins have the same."""
        names = {layer.name for layer in self._stage.layers}
        dense = {
            name: value.detach().cpu()
            for name, value in self._chain.state_dict().items()
            if name.partition(".")[0] in names
        }
        write_part(Path(path), self._seat.stage, dense, named_states([self._stage]))

    def close(self) -> None:
        """Ends it in good order."""
        self._feed.__exit__()
        if self._client is not None:
            self._client.close()
        self._mail.close()
