"""The wire format: round trips, and a decoder that refuses whatever it does not know."""

from __future__ import annotations

import random

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from heterps.ps import wire
from heterps.ps.errors import WireError
from heterps.ps.rows import pack, unpack
from heterps.ps.shared import Arena, Offer, View
from tests.ps.messages import Neighbour, mutate, valid_request

DTYPES = st.sampled_from([np.dtype("<i8"), np.dtype("<f4"), np.dtype("<f2"), np.dtype("<u2")])
ARRAYS = DTYPES.flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=60)))
PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**62), 2**62), st.floats(allow_nan=False), st.text(max_size=9)
)
OPERATION = st.tuples(
    st.text(max_size=9), st.text(max_size=9), st.dictionaries(st.text(max_size=9), PLAIN), st.lists(ARRAYS, max_size=3)
)


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return len(a) == len(b) and all(
        x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True)
    )


def travelled(frames: list) -> list[memoryview]:
    return [memoryview(bytes(memoryview(frame).cast("B") if memoryview(frame).nbytes else b"")) for frame in frames]


@settings(max_examples=60, deadline=None)
@given(
    st.binary(min_size=16, max_size=16), st.integers(0, 2**40), st.lists(OPERATION, max_size=4), st.integers(1000, 9000)
)
def test_requests_round_trip(client: bytes, first: int, given_operations: list, piece_bytes: int):
    operations = [wire.Operation(first + i, *entry) for i, entry in enumerate(given_operations)]
    frames = wire.encode_request(wire.Request(client, first, operations), piece_bytes=piece_bytes)
    decoded = wire.decode_request(travelled(frames))
    assert (decoded.client, decoded.low, len(decoded.operations)) == (client, first, len(operations))
    for got, sent in zip(decoded.operations, operations, strict=True):
        assert (got.seq, got.verb, got.table, got.args) == (sent.seq, sent.verb, sent.table, sent.args)
        assert same(got.arrays, sent.arrays)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-1, 2**40), st.text(max_size=9), PLAIN, st.lists(ARRAYS, max_size=2)), max_size=4)
)
def test_replies_round_trip(entries: list):
    replies = [wire.Reply(*entry) for entry in entries]
    decoded = wire.decode_replies(travelled(wire.encode_replies(replies)))[0]
    assert [(r.seq, r.status, r.value) for r in decoded] == [(r.seq, r.status, r.value) for r in replies]
    assert all(same(got.arrays, sent.arrays) for got, sent in zip(decoded, replies, strict=True))


def test_large_arrays_are_frames_and_are_not_copied():
    ids, rows = np.arange(5000), np.ones((5000, 16), np.float32)
    frames = wire.encode_request(wire.Request(bytes(16), 0, [wire.Operation(0, "push", "t", {}, [ids, rows])]))
    assert all(np.shares_memory(frame, array) for frame, array in zip(frames[1:], (ids, rows), strict=True))
    buffers = travelled(frames)
    decoded = wire.decode_request(buffers).operations[0].arrays
    assert np.shares_memory(decoded[1], np.frombuffer(buffers[2], np.uint8))


def test_arrays_in_an_arena_stay_there():
    arena = Arena(1 << 20)
    view = View.open(arena.offer)
    _, block = arena.take(40_000)
    ids = block.view(np.int64)
    ids[:] = np.arange(5000)
    request = wire.Request(
        bytes(16), 0, [wire.Operation(0, "pull", "t", {}, [ids])], wire.Sharing(arena.offer, "known")
    )
    frames = travelled(wire.encode_request(request, arena=arena))
    assert len(frames) == 1
    decoded = wire.decode_request(frames, lambda sharing: view if sharing.offer == arena.offer else None)
    assert decoded.sharing == request.sharing
    assert decoded.operations[0].arrays[0].tolist() == ids.tolist()
    with pytest.raises(wire.Unmapped):
        wire.decode_request(frames)
    assert len(wire.encode_request(request)) == 2  # without the arena it travels
    frames = travelled(wire.encode_replies([wire.Reply(3, "ok", None, [ids])], arena=arena, offer=Offer(1, 2, "x")))
    ((reply,), offer) = wire.decode_replies(frames, view)
    assert (len(frames), offer, reply.arrays[0].tolist()) == (1, Offer(1, 2, "x"), ids.tolist())
    reply.give_back()
    assert arena.held_bytes > 0  # it is not due before somebody wants it
    reply.lent.due = True
    reply.give_back()
    assert arena.held_bytes == 0


def test_arrays_are_aligned_wherever_a_frame_lies():
    ids = np.arange(5000)
    frames = travelled(wire.encode_request(wire.Request(bytes(16), 0, [wire.Operation(0, "pull", "t", {}, [ids])])))
    shifted = memoryview(b"x" + bytes(frames[1]))[1:]
    (array,) = wire.decode_request([frames[0], shifted]).operations[0].arrays
    assert array.flags.aligned
    assert array.tolist() == ids.tolist()


OP = [0, "pull", "t", {}, []]
CLIENT = bytes(16)


@pytest.mark.parametrize(
    "header",
    [
        None, 1, [], {}, [wire.VERSION], [2, CLIENT, 0, []], [True, CLIENT, 0, []], [1, CLIENT, 0, [], 5],
        [1, b"short", 0, []], [1, "x" * 16, 0, []], [1, CLIENT, -1, []], [1, CLIENT, 1.5, []], [1, CLIENT, 2**63, []],
        [1, CLIENT, 0, {}], [1, CLIENT, 0, [], []], [1, CLIENT, 0, [], [1, 2, "x"]], [1, CLIENT, 0, [], [1, 2, "x", 3]],
        [1, CLIENT, 0, [], [-1, 2, "x", ""]], [1, CLIENT, 0, [], [1, 2, b"x", ""]], 
        [1, CLIENT, 0, [], [1, True, "x", ""]], [1, CLIENT, 0, [], None, None],
        [1, CLIENT, 0, [[0, "pull", "t", {}, [["i8", [1], [128, 8]]]]]],
        [1, CLIENT, 0, [OP] * 257], [1, CLIENT, 0, [OP, OP]], [1, CLIENT, 0, [[0, "pull"]]],
        [1, CLIENT, 0, [["0", "pull", "t", {}, []]]], [1, CLIENT, 0, [[0, 5, "t", {}, []]]],
        [1, CLIENT, 0, [[0, "x" * 300, "t", {}, []]]], [1, CLIENT, 0, [[0, "pull", None, {}, []]]],
        [1, CLIENT, 0, [[0, "pull", "t", [], []]]], [1, CLIENT, 0, [[0, "pull", "t", {}, [["i8", [1], 1]]]]],
        [1, CLIENT, 0, [[0, "pull", "t", {}, [["O", [1], b"x" * 8]]]]],
        [1, CLIENT, 0, [[0, "pull", "t", {}, [["i8", [2], b"x" * 8]]]]],
        [1, CLIENT, 0, [[0, "pull", "t", {}, [["i8", [-1], b"x" * 8]]]]],
        [1, CLIENT, 0, [[0, "pull", "t", {}, [["i8", [2**40, 2**40], b""]]]]],
        [1, CLIENT, 0, [[0, "pull", "t", {}, [["i8", [1, 1, 1], b"x" * 8]]]]],
        [1, CLIENT, 0, [[0, "pull", "t", {}, [["i8", [1.0], b"x" * 8]]]]],
        [1, CLIENT, 0, [[0, "pull", "t", {}, [["i8", [1], "x" * 8]]]]],
        [1, CLIENT, 0, [[0, "pull", "t", {}, [["i8", [0], b""]] * 513]]],
    ],
)  # fmt: skip
def test_broken_headers_are_refused(header: object):
    with pytest.raises(WireError, match="malformed"):
        wire.decode_request([msgpack.packb(header)])


def test_too_many_or_too_few_frames_are_refused():
    good = msgpack.packb([1, CLIENT, 0, [OP]])
    assert wire.decode_request([good]).operations[0].verb == "pull"
    for frames in ([], [good, b"extra"], [good] + [b""] * 1024, [b"\xc1"], [b""], [b"\x91" * 5000], [good + b"\0"]):
        with pytest.raises(WireError):
            wire.decode_request(frames)


def test_no_bytes_break_the_decoder():
    """Random bytes and mutated messages: decoded or refused, nothing else."""
    random_, near = random.Random(7), Neighbour()
    view = View.open(near.arena.offer)
    outcomes = {True: 0, False: 0}
    for _ in range(20_000):
        frames = [memoryview(frame) for frame in mutate(valid_request(random_, near), random_)]
        for decode, known in ((wire.decode_request, lambda *_: view), (wire.decode_replies, view)):
            try:
                decode(frames, known)
                outcomes[True] += 1
            except WireError:
                outcomes[False] += 1
    assert min(outcomes.values()) > 500, outcomes


@settings(max_examples=200, deadline=None)
@given(hnp.arrays(np.float32, (3, 4), elements=st.floats(width=32)))
def test_bf16_is_torch_bfloat16(rows: np.ndarray):
    expected = torch.from_numpy(rows).bfloat16().float().numpy()
    np.testing.assert_array_equal(unpack(pack(rows, "bf16")), expected)


@settings(max_examples=200, deadline=None)
@given(hnp.arrays(np.float32, (3, 4), elements=st.floats(-65504, 65504, width=32)))
def test_fp16_is_numpy_float16(rows: np.ndarray):
    out = np.empty_like(rows)
    unpack(pack(rows, "fp16"), out)
    np.testing.assert_array_equal(out, rows.astype(np.float16).astype(np.float32))


def test_fp16_saturates():
    assert unpack(pack(np.array([[1e9, -np.inf]], np.float32), "fp16")).tolist() == [[65504.0, -65504.0]]
