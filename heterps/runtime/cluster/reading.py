"""All replicas of a run read together: each decodes its share of the data, and sends the others what they read of it.

Sections of a pass (`heterps.data.reader.Pass`) are numbered from where the run took up; member s mod W of W decodes
section s, so nobody reads what another one does, and all cut the same parts into the same batches. A part is sent when
its receiver asks for it, which it does a few parts before it needs it.

Bounded: a member decodes at most two of its parts ahead of itself, and none before all others have asked for the one
before; what waits at a receiver is what it asked for. No deadlock: the member that is furthest behind waits for a part
p, all others have come to p too, so they have asked for every part before it, and the owner of p is free to send.
Whoever ends before the data does tells the others why: they raise the same, or need not send to it any more.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor

from heterps.data import rows
from heterps.data.ahead import Ahead
from heterps.data.reader import MalformedRow, Part, Pass, Place
from heterps.data.rows import Columns, Ragged
from heterps.errors import HeterPSError, InvalidInput
from heterps.models import Chain
from heterps.runtime.cluster.layout import Layout, Seat
from heterps.runtime.cluster.mail import Mail, PeerLost
from heterps.runtime.cluster.messages import Message

KIND = "read"
"""Of messages between readers."""
DECODED_AHEAD = 2
"""Own parts that are decoded and not taken here; the second is made while the first goes out."""
MOST_ASKED = 8
"""Sections whose first part is asked for ahead. Assumed: hides the way of small parts."""
WAITING_BYTES = 64 << 20
"""Fewer are asked for where parts are large: about so many bytes wait at a receiver, and one part at least."""

END = "end"
"""The key of what a member sends last, if it ends before the data does."""

TOLD: Mapping[str, type[HeterPSError]] = {"invalid": InvalidInput, "malformed": MalformedRow, "error": HeterPSError}
"""Names under which errors are told to others, and as what they raise them; whatever else it is, the last."""

Tensors = Mapping[str, Tensor | None]


class Post(Protocol):
    """How members reach each other; they are numbers from 0. Used by two threads of each."""

    def give(self, to: int, key: str, tensors: Tensors) -> None:
        """Sends; the tensors are not written to later."""
        ...

    def take(self, sender: int, key: str) -> Tensors:
        """Waits for what a member sends under this key; what it sent under `END` stands for all that is not there.

        There is no time limit: in a run that rests, nobody asks for anything.
        """
        ...

    def close(self) -> None:
        """Whoever waits raises, from now on."""
        ...


class MailPost:
    """A post over the mail of a replica; members are numbered as `seats` are."""

    def __init__(self, mail: Mail, seats: Sequence[Seat], me: int) -> None:
        self._mail, self._seats, self._me = mail, seats, me
        self._arrived: dict[tuple[int, str], Tensors] = {}
        self._changed = threading.Condition()
        self._closed = False
        mail.on(KIND, self._receive)

    def give(self, to: int, key: str, tensors: Tensors) -> None:
        """See `Post.give`."""
        self._mail.send(self._seats[to], Message(KIND, self._me, key, tensors))

    def take(self, sender: int, key: str) -> Tensors:
        """See `Post.take`."""
        with self._changed:
            ends = (sender, END)
            self._changed.wait_for(lambda: self._closed or (sender, key) in self._arrived or ends in self._arrived)
            if self._closed:
                raise PeerLost("the run ended")
            return self._arrived.pop((sender, key)) if (sender, key) in self._arrived else self._arrived[ends]

    def close(self) -> None:
        """See `Post.close`."""
        with self._changed:
            self._closed = True
            self._arrived.clear()
            self._changed.notify_all()

    def _receive(self, message: Message) -> None:
        with self._changed:
            if not self._closed:
                self._arrived[message.step, message.part] = message.tensors
                self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class Crew:
    """Those who read together, seen by one of them."""

    me: int
    reads: Sequence[Collection[str]]
    """For each member, the columns that it needs."""
    post: Post

    def columns(self, there: Sequence[str]) -> tuple[str, ...]:
        """Those of a source's columns that anyone needs."""
        return tuple(name for name in there if any(name in _chosen(there, reads) for reads in self.reads))

    def share(self, way: Pass) -> SharedPass:
        """The same parts, decoded by all members; each has the columns that it needs, and one at least."""
        return SharedPass(way, self)


def crew_of(chain: Chain, layout: Layout, seat: Seat, mail: Mail) -> Crew:
    """All replicas of a run. Each needs what its stage reads, and the label, by which it can check batches."""
    seats = layout.seats()
    stages = [layout.stages[one.stage] for one in seats]
    reads = [{*chain.read_by(stage.first, stage.last), *([chain.label] if chain.label else [])} for stage in stages]
    me = seats.index(seat)
    return Crew(me, reads, MailPost(mail, seats, me))


class SharedPass:
    """A `heterps.data.reader.Way`: see the module."""

    def __init__(self, way: Pass, crew: Crew) -> None:
        self.fingerprint = way.fingerprint
        self._way, self._me, self._reads, self._post = way, crew.me, crew.reads, crew.post
        self._others = [member for member in range(len(crew.reads)) if member != crew.me]
        self._stopped = threading.Lock()
        """Taken for good by the first to stop."""
        self._sections = 0
        """Of the epochs before."""
        self._window = 1

    def stop(self, error: Exception | None = None) -> None:
        """See `heterps.data.reader.Way.stop`."""
        if self._stopped.acquire(blocking=False):
            for member in self._others:
                with suppress(HeterPSError):  # it may be gone
                    self._post.give(member, END, _told(error or PeerLost(f"reader {self._me} ended")))
            self._post.close()

    def parts(self, epoch: int, place: Place) -> Generator[Part]:
        """See `heterps.data.reader.Way.parts`. Ends when the others have all that is decoded here."""
        own: Ahead[Part] = Ahead(self._serve(epoch, place), depth=DECODED_AHEAD, stop=self.stop)
        number = self._sections - 1
        with closing(own):
            try:
                for number in self._asked(epoch, place):
                    yield from self._section(number, epoch, own)
                assert next(own, None) is None, "a part that nobody has a number for"
            except Exception as error:
                self.stop(error)
                raise
        self._sections = number + 1

    def _asked(self, epoch: int, place: Place) -> Generator[int]:
        """The numbers of an epoch's sections; the first parts of the next ones are asked for already."""
        numbers = (number for number, _ in enumerate(self._way.sections(epoch, place), start=self._sections))
        coming: deque[int] = deque()
        while True:
            for number in islice(numbers, max(0, self._window + 1 - len(coming))):
                self._ask(number, 0)
                coming.append(number)
            if not coming:
                return
            yield coming.popleft()

    def _ask(self, number: int, index: int) -> None:
        owner = number % len(self._reads)
        if owner != self._me:
            self._post.give(owner, _ask_key(number, index), {})

    def _section(self, number: int, epoch: int, own: Ahead[Part]) -> Generator[Part]:
        owner, index, last = number % len(self._reads), 0, False
        while not last:
            part = next(own, None) if owner == self._me else self._receive(owner, epoch, _key(number, index))
            assert part is not None, "fewer parts than sections"
            index, last = index + 1, part.last
            if not last:
                self._ask(number, index)
            self._window = max(1, min(MOST_ASKED, WAITING_BYTES // max(1, _nbytes(part.columns))))
            yield part

    def _receive(self, owner: int, epoch: int, key: str) -> Part:
        part, malformed = _unpack(self._post.take(owner, key))
        return replace(part, bad=[partial(self._says, epoch, part.place, at) for at in range(malformed)])

    def _says(self, epoch: int, place: Place, at: int) -> str:
        """Why a row is malformed. Decodes its part once more: only an error that ends the run asks for it."""
        with closing(self._way.decode(epoch, [place])) as parts:
            return next(parts).bad[at]()

    def _serve(self, epoch: int, place: Place) -> Generator[Part]:
        """Own parts, each for ourselves first, then for the others as they ask for it."""
        first, members = self._sections, len(self._reads)
        sections = enumerate(self._way.sections(epoch, place), start=first)
        number, index = first + (self._me - first) % members, 0
        with closing(self._way.decode(epoch, (at for nth, at in sections if nth % members == self._me))) as parts:
            while (part := self._decoded(parts, _key(number, index))) is not None:
                yield _cut(part, self._reads[self._me])
                for member in self._others:
                    if not self._post.take(member, _ask_key(number, index)):  # else it ended
                        self._post.give(member, _key(number, index), _pack(_cut(part, self._reads[member])))
                number, index = (number + members, 0) if part.last else (number, index + 1)

    def _decoded(self, parts: Generator[Part], key: str) -> Part | None:
        """The next part, its rows in order; None at the end. An error is everybody's."""
        try:
            part = next(parts, None)
            if part is None or part.order is None:
                return part
            return replace(part, columns=part.take(0, len(part)), order=None)
        except Exception as error:
            for member in self._others:
                self._post.give(member, key, _told(error))
            raise


def _told(error: Exception) -> Tensors:
    """An error as tensors, for `_unpack` to raise."""
    kind = next((kind for kind, of in TOLD.items() if isinstance(error, of)), "error")
    text = str(error) if isinstance(error, HeterPSError) else f"{type(error).__name__}: {error}"
    return {kind: torch.tensor(list(text.encode()), dtype=torch.uint8)}


def _key(number: int, index: int) -> str:
    return f"part {number}.{index}"


def _ask_key(number: int, index: int) -> str:
    return f"ask {number}.{index}"


def _chosen(there: Sequence[str], reads: Collection[str]) -> list[str]:
    """The columns of a member; the last one, if it needs none: batches have a size."""
    return [name for name in there if name in reads] or list(there)[-1:]


def _cut(part: Part, reads: Collection[str]) -> Part:
    return replace(part, columns=rows.some(part.columns, _chosen(list(part.columns), reads)))


def _nbytes(columns: Columns) -> int:
    return sum(
        column.ids.nbytes + column.offsets.nbytes if isinstance(column, Ragged) else column.nbytes
        for column in columns.values()
    )


def _pack(part: Part) -> Tensors:
    """A part whose rows are in order, as tensors: `part` has its numbers, then come the columns by name."""
    numbers = [len(part.bad), int(part.last), *part.place, *part.after]
    tensors: dict[str, Tensor | None] = {"part": torch.tensor(numbers)}
    for name, column in part.columns.items():
        if isinstance(column, Ragged):
            tensors[f"ids of {name}"] = torch.from_numpy(column.ids)
            tensors[f"offsets of {name}"] = torch.from_numpy(column.offsets)
        else:
            tensors[f"column {name}"] = torch.from_numpy(column)
    return tensors


def _unpack(tensors: Tensors) -> tuple[Part, int]:
    """A part but for what says why rows are malformed, and how many are."""
    columns: Columns = {}
    arrays = {name: tensor.numpy() for name, tensor in tensors.items() if tensor is not None}
    for told, error in TOLD.items():
        if told in arrays:
            raise error(arrays[told].tobytes().decode(errors="replace"))
    for name, array in arrays.items():
        kind, _, column = name.partition(" ")
        if kind == "column":
            columns[column] = array
        elif kind == "ids":
            column = column.removeprefix("of ")
            columns[column] = Ragged(array, arrays[f"offsets of {column}"])
    malformed, last, *places = arrays["part"].tolist()
    half = len(places) // 2
    return Part(tuple(places[:half]), tuple(places[half:]), columns, None, last=bool(last)), malformed
