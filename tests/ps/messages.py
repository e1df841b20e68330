"""Messages for fuzzing: valid ones, and what becomes of them."""

from __future__ import annotations

import random

import numpy as np

from heterps.ps import wire
from heterps.ps.shared import LEAST_BYTES, Arena, View
from heterps.store.config import TableConfig

TABLES = ("mine", "fuzzed", "nobody's", "")
MANY = LEAST_BYTES // 8
"""Ids that need a block."""


class Neighbour:
    """A client on the server's machine: it has an arena, and maps that of the server when it is offered."""

    def __init__(self) -> None:
        self.arena = Arena(1 << 20)
        self.mapped, self.view = "", None
        ids, grads = self.arena.take(8 * MANY), self.arena.take(4 * 4 * MANY)
        assert ids is not None
        assert grads is not None
        self.ids, self.grads = ids[1].view(np.int64), grads[1].view(np.float32).reshape(MANY, 4)
        self.ids[:] = np.arange(MANY) % 1000

    def hear(self, frames: list[bytes]) -> list[wire.Reply]:
        """The replies of a message; what came in blocks goes back."""
        replies, offer = wire.decode_replies(frames, self.view)
        if offer is not None and offer.token != self.mapped:
            self.mapped, self.view = offer.token, View.open(offer)
        for reply in replies:
            if reply.lent is not None:
                reply.lent.due = True
        return replies

    def sharing(self, source: random.Random) -> wire.Sharing:
        """Mostly the truth."""
        offer = self.arena.offer
        if source.random() < 0.1:
            offer = wire.Offer(source.choice((1, offer.process)), source.choice((0, 3, offer.descriptor)), offer.token)
        return wire.Sharing(offer, source.choice((self.mapped, self.mapped, "")))


def valid_request(source: random.Random, near: Neighbour | None = None) -> list[bytes]:
    """A message that decodes; what it asks may be nonsense. Never saves or loads: paths are real ones.

    With a neighbour, some have arrays in its blocks.
    """
    count = source.choice((0, 1, 1, 1, 3))
    first = source.randrange(3)
    blocks = near if near is not None and source.random() < 0.3 else None
    operations = [_operation(first + i, source, blocks) for i in range(count)]
    sharing = near.sharing(source) if near is not None and source.random() < 0.7 else None
    request = wire.Request(source.randbytes(16), source.randrange(2), operations, sharing)
    arena = None if near is None else near.arena
    return [bytes(memoryview(frame).cast("B")) for frame in wire.encode_request(request, arena=arena)]


def _operation(seq: int, source: random.Random, near: Neighbour | None) -> wire.Operation:
    verb = source.choice(
        ("pull", "push", "push_part", "meet", "abandon", "set_lr", "counts", "shrink", "stats", "open", "walk")
    )
    table = source.choice(TABLES[1:])
    rows = source.choice((0, 1, 5, 700))
    ids = np.frombuffer(source.randbytes(8 * rows), np.int64) % 1000
    grads = np.ones((rows, source.choice((1, 4, 8))), np.float32)
    if near is not None and source.random() < 0.2:
        ids, grads = near.ids, near.grads
    arrays = {"pull": [ids], "push": [ids, grads], "push_part": [ids, grads], "counts": [ids]}.get(verb, [])
    config = TableConfig(name=table, dim=source.choice((4, 8))).to_dict()
    args = {
        "pull": {"create": source.random() < 0.5, "wire": source.choice((None, "bf16", "fp16", "x"))},
        "push_part": {
            "step": source.choice((0, 1, 2, -1, 2**61)),
            "part": source.choice((0, 1, 2)),
            "parts": source.choice((1, 2, 0)),
            "piece": source.choice((0, 0, 0, 1)),
            "pieces": source.choice((1, 1, 2)),
            "lr": source.choice((None, 0.1, "x")),
        },
        "meet": {
            "step": source.choice((0, 1, -1, 2**61)),
            "own": source.choice(([0], [1], [0, 1], [], ["x"], [2**40])),
            "parts": source.choice((1, 2, 0, "x")),
            "desk": source.choice((None, 0, 128, 64 * 1024, 2**62, -64, "x")),
        },
        "set_lr": {"lr": source.choice((0.1, -1, "x"))},
        "shrink": {"min_count": 1, "unseen_steps": 0, "unseen_seconds": 0.0},
        "open": {"config": config, "shard": source.choice((0, 1)), "shards": source.choice((1, 2))},
    }.get(verb, {})
    return wire.Operation(seq, verb, table, args, arrays)


def mutate(frames: list[bytes], source: random.Random) -> list[bytes]:
    """The frames with some bytes changed, cut, added, or frames lost, doubled or made up; sometimes as they were."""
    changed = list(frames)
    for _ in range(source.choice((0, 1, 1, 2, 5))):
        at = source.randrange(len(changed)) if changed else 0
        kind = source.randrange(7)
        if kind == 0 or not changed:
            changed.insert(at, source.randbytes(source.randrange(64)))
        elif kind == 1:
            del changed[at]
        elif kind == 2:
            changed.insert(at, changed[at])
        elif kind == 3:
            changed[at] = changed[at][: source.randrange(len(changed[at]) + 1)]
        elif changed[at]:
            spot = source.randrange(min(len(changed[at]), 200))
            new = source.randbytes(source.choice((1, 1, 2, 8)))
            changed[at] = changed[at][:spot] + new + changed[at][spot + len(new) * (kind != 4) :]
    return changed
