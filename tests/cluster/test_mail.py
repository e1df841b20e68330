"""Messages between replicas: what arrives, what is dropped, who is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
import zmq
from hypothesis import given
from hypothesis import strategies as st

from heterps.ps import Keys, WireError
from heterps.ps.keys import protect
from heterps.runtime.cluster.layout import Seat
from heterps.runtime.cluster.mail import Mail, PeerLost
from heterps.runtime.cluster.messages import DTYPES, Message, decode, encode
from tests.cluster.jobs import wait_for

HOST = "127.0.0.1"
HERE, THERE = Seat(0, 0), Seat(1, 0)
Open = Callable[..., Mail]


@pytest.fixture
def post() -> Iterator[Open]:
    """post(keys, attempt): a new mail."""
    opened: list[Mail] = []

    def make(keys: Keys, attempt: int = 1, **options: Any) -> Mail:
        opened.append(Mail(HOST, keys, attempt, **{"me": HERE, **options}))
        return opened[-1]

    yield make
    for mail in opened:
        mail.close()


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 4), (300, 700)], ids=str)
def test_tensors_come_back_as_they_were(dtype: torch.dtype, shape: tuple[int, ...]):
    tensor = (
        (torch.arange(max(1, torch.Size(shape).numel())) % 100)[: torch.Size(shape).numel()].reshape(shape).to(dtype)
    )
    attempt, message = decode(encode(Message("forward", 3, "7", {"x": tensor, "none": None}), HERE, 5))
    assert (attempt, message.key) == (5, ("forward", 3, "7"))
    assert message.tensors["none"] is None
    found = message.tensors["x"]
    assert found is not None
    assert (found.dtype, found.shape) == (dtype, tensor.shape)
    assert torch.equal(found, tensor)


def test_narrow_tensors_are_half_as_large_and_nearly_the_same():
    tensor, ids = torch.randn(100, 50, generator=torch.Generator().manual_seed(0)), torch.arange(10)
    wide, narrow = (
        encode(Message("forward", 0, "0", {"x": tensor, "i": ids}), HERE, 1, narrow=n) for n in (False, True)
    )
    assert sum(map(len, narrow[1:])) - 80 == (sum(map(len, wide[1:])) - 80) / 2
    found = decode(narrow)[1].tensors
    assert found["x"] is not None
    assert found["x"].dtype == torch.float32
    assert torch.equal(found["x"], tensor.bfloat16().float())
    assert torch.equal(found["i"], ids)  # type: ignore[arg-type]


@given(st.lists(st.binary(max_size=40), max_size=4))
def test_random_bytes_are_refused(frames: list[bytes]):
    with pytest.raises(WireError):
        decode(frames)


@given(st.data())
def test_a_changed_message_is_refused_or_well_formed(data: st.DataObject):
    frames = [bytearray(bytes(frame)) for frame in encode(Message("rows", 1, "t", {"x": torch.ones(8, 2)}), HERE, 1)]
    frame = data.draw(st.sampled_from(frames))
    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with suppress(WireError):
        decode([bytes(frame) for frame in frames])


def test_a_message_is_taken_by_what_it_is(post: Open):
    keys = Keys.generate()
    one, two = post(keys), post(keys)
    one.connect({THERE: two.address})
    for step in (1, 0):
        one.send(THERE, Message("forward", step, "0", {"x": torch.tensor([float(step)])}))
    assert torch.equal(two.take("forward", 0, "0").tensors["x"], torch.tensor([0.0]))  # type: ignore[arg-type]
    first = two.first([("backward", 1, "0"), ("forward", 1, "0")])
    assert first.kind == "forward"


def test_messages_of_another_attempt_are_dropped(post: Open):
    keys = Keys.generate()
    old, new = post(keys, 1), post(keys, 2)
    old.connect({THERE: new.address})
    old.send(THERE, Message("forward", 0, "0", {"x": torch.ones(1)}))
    assert wait_for(lambda: new.dropped == 1)
    assert not new.there(("forward", 0, "0"))


def test_without_the_keys_nobody_gets_in(post: Open):
    """Keys of another job, the server's public key alone, and none at all: the last cannot even shake hands."""
    keys = Keys.generate()
    mail = post(keys)
    stranger = post(Keys.generate())
    stranger.connect({THERE: mail.address})
    stranger.send(THERE, Message("forward", 0, "0", {"x": torch.ones(1)}))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    half, bare = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
    half.linger = bare.linger = 0
    own = Keys.generate()
    protect(half, mail.address, own, server=False)
    half.curve_serverkey = keys.server_public.encode()
    for socket in (half, bare):
        socket.connect(mail.address)
        socket.send_multipart(encode(Message("forward", 0, "0", {"x": torch.ones(1)}), HERE, 1))
    assert wait_for(lambda: mail.refused >= 3)
    assert not mail.there(("forward", 0, "0"))
    half.close(), bare.close()
    context.term()
    friend = post(keys)
    friend.connect({THERE: mail.address})
    friend.send(THERE, Message("forward", 0, "0", {"x": torch.ones(1)}))
    assert mail.take("forward", 0, "0").kind == "forward"


def test_waiting_ends(post: Open):
    mail = post(Keys.generate(), timeout_s=0.2)
    with pytest.raises(PeerLost):
        mail.take("forward", 0, "0")


def test_large_tensors_cross_in_shared_memory(post: Open):
    """They are there without a copy, and their memory is the sender's again when the last one is gone."""
    keys = Keys.generate()
    one, two = post(keys, me=HERE), post(keys, me=THERE)
    one.connect({THERE: two.address}, {THERE: two.offer})
    two.connect({HERE: one.address}, {HERE: one.offer})
    tensor, arena = torch.randn(500, 100), one._arena
    assert arena is not None
    for number in range(3):
        one.send(THERE, Message("forward", number, "0", {"x": tensor + number, "small": torch.ones(3)}))
        found = two.take("forward", number, "0")
        assert torch.equal(found.tensors["x"], tensor + number)  # type: ignore[arg-type]
        assert arena.held_bytes >= tensor.nbytes
        held = found.tensors["x"][10:20]  # type: ignore[index]
        del found
        assert arena.held_bytes >= tensor.nbytes
        del held
        assert wait_for(lambda: not arena.held_bytes)  # the mail's own thread may be the last to let go


def test_what_crosses_in_shared_memory_takes_no_socket(post: Open):
    """As long as the line holds; else, and for what lies in frames, the sockets are used."""
    keys = Keys.generate()
    here, there = post(keys), post(keys, me=THERE)
    here.connect({THERE: there.address}, {THERE: there.offer})
    there.connect({HERE: here.address}, {HERE: here.offer})
    large, small = torch.arange(100_000.0), torch.arange(10.0)
    peer = here._peers[THERE]
    assert peer.line is not None
    peer.socket, socket = None, peer.socket  # type: ignore[assignment]
    here.send(THERE, Message("forward", 0, "0", {"x": large}))
    assert torch.equal(there.take("forward", 0, "0").tensors["x"], large)  # type: ignore[arg-type]
    peer.socket = socket
    here.send(THERE, Message("forward", 1, "0", {"x": small}))
    peer.line.close()
    here.send(THERE, Message("forward", 2, "0", {"x": large}))
    for step, sent in (1, small), (2, large):
        assert torch.equal(there.take("forward", step, "0").tensors["x"], sent)  # type: ignore[arg-type]


def test_a_handler_gets_what_came_before_it(post: Open):
    keys = Keys.generate()
    one, two = post(keys), post(keys)
    one.connect({THERE: two.address})
    one.send(THERE, Message("forward", 0, "0"))
    assert wait_for(lambda: two.there(("forward", 0, "0")))
    heard: list[int] = []
    two.on("forward", lambda message: heard.append(message.step))
    one.send(THERE, Message("forward", 1, "0"))
    assert wait_for(lambda: heard == [0, 1])


def test_a_broken_connection_is_told_at_once(post: Open):
    """Whoever waits need not wait for a time limit; a stranger that comes and goes breaks nothing."""
    keys = Keys.generate()
    one, two = post(keys, me=HERE), post(keys, me=THERE)
    one.connect({THERE: two.address})
    lost: list[PeerLost] = []
    one.on_lost = lost.append
    one.send(THERE, Message("forward", 0, "0"))
    two.take("forward", 0, "0")
    stranger = post(Keys.generate())
    stranger.connect({HERE: one.address})
    assert wait_for(lambda: one.refused > 0)
    assert not lost
    two.close()
    with pytest.raises(PeerLost, match="stage 1 replica 0 broke"):
        one.take("backward", 0, "0")
    assert wait_for(lambda: len(lost) > 0)
