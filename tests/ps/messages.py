"""Messages for fuzzing: valid ones, and what becomes of them."""

from __future__ import annotations

import random

import numpy as np

from heterps.ps import wire
from heterps.store.config import TableConfig

TABLES = ("mine", "fuzzed", "nobody's", "")


def valid_request(source: random.Random) -> list[bytes]:
    """A message that decodes; what it asks may be nonsense. Never saves or loads: paths are real ones."""
    count = source.choice((0, 1, 1, 1, 3))
    first = source.randrange(3)
    operations = [_operation(first + i, source) for i in range(count)]
    request = wire.Request(source.randbytes(16), source.randrange(2), operations)
    return [bytes(memoryview(frame).cast("B")) for frame in wire.encode_request(request)]


def _operation(seq: int, source: random.Random) -> wire.Operation:
    verb = source.choice(("pull", "push", "set_lr", "counts", "shrink", "stats", "open", "walk"))
    table = source.choice(TABLES[1:])
    rows = source.choice((0, 1, 5, 700))
    ids = np.frombuffer(source.randbytes(8 * rows), np.int64) % 1000
    grads = np.ones((rows, source.choice((1, 4, 8))), np.float32)
    arrays = {"pull": [ids], "push": [ids, grads], "counts": [ids]}.get(verb, [])
    config = TableConfig(name=table, dim=source.choice((4, 8))).to_dict()
    args = {
        "pull": {"create": source.random() < 0.5, "wire": source.choice((None, "bf16", "fp16", "x"))},
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
