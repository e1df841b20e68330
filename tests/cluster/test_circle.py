"""Dense gradients added up in memory that replicas share: the sums of messages to the bit, and no wait without end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor

from heterps._native import Circle
from heterps.ps import Keys
from heterps.runtime.cluster.circle import MOST_MEMBERS, CircleSum
from heterps.runtime.cluster.layout import Seat
from heterps.runtime.cluster.mail import Mail, PeerLost
from heterps.runtime.cluster.messages import Message
from heterps.runtime.cluster.sums import MailSum, add_up
from heterps.runtime.later import Later
from tests.cluster.jobs import PATIENCE_S, wait_for

HOST = "127.0.0.1"
PATIENCE_MS = int(1e3 * PATIENCE_S)
SHAPES: list[tuple[int, ...]] = [(7, 5), (), (1,), (33,), (2, 3, 4), (64, 65)]
NOBODYS, LONELY = 4, 5
"""Parameters that no member has a gradient for, and one alone."""
SLOTS = 4
"""Sums that one may be ahead of the slowest member."""

Grads = list[Tensor | None]
Result = TypeVar("Result")
Sums = Callable[[int, Sequence[Tensor]], Later[None]]
Meet = Callable[..., list[Mail]]
Waiting = tuple[list[Mail], Callable[[], None]]


@pytest.fixture
def meet() -> Iterator[Meet]:
    """meet(count): the mails of a stage's replicas, all of which know each other and offer memory.

    Those `far` share memory with nobody; `options` are those of single members, by their numbers.
    """
    opened: list[Mail] = []

    def make(count: int, *, far: tuple[int, ...] = (), options: dict[int, dict[str, Any]] | None = None) -> list[Mail]:
        keys, seats = Keys.generate(), seats_of(count)
        mails = [
            Mail(HOST, keys, 1, me=seat, timeout_s=PATIENCE_S, **(options or {}).get(seat.replica, {}))
            for seat in seats
        ]
        opened.extend(mails)
        for own, mail in zip(seats, mails, strict=True):
            others = [(seat, other) for seat, other in zip(seats, mails, strict=True) if seat != own]
            mail.connect(
                {seat: other.address for seat, other in others},
                {seat: None if {seat.replica, own.replica} & set(far) else other.offer for seat, other in others},
            )
        return mails

    yield make
    for mail in opened:
        mail.close()


def seats_of(count: int) -> list[Seat]:
    return [Seat(0, replica) for replica in range(count)]


def sums_of(mails: Sequence[Mail]) -> list[CircleSum]:
    seats = seats_of(len(mails))
    return [CircleSum(mail, seats, seat) for mail, seat in zip(mails, seats, strict=True)]


def at_once(*calls: Callable[[], Result]) -> list[Result]:
    """All of these, each in a thread of its own."""
    with ThreadPoolExecutor(len(calls)) as pool:
        going = [pool.submit(call) for call in calls]
        for done in as_completed(going, 2 * PATIENCE_S):  # the first one that fails, not who waits for it
            done.result()
        return [one.result() for one in going]


def parameters_of(shapes: Sequence[tuple[int, ...]], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.zeros(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def draw(count: int, seed: int, *, dtype: torch.dtype = torch.float32) -> list[Grads]:
    """Each member's gradients: numbers of all sizes, whose sum depends on the order; some lie transposed."""
    rng = np.random.default_rng(seed)
    found: list[Grads] = [[] for _ in range(count)]
    for number, shape in enumerate(SHAPES):
        for member, grads in enumerate(found):
            has = rng.random() < 0.7 if number not in (NOBODYS, LONELY) else (number, member) == (LONELY, count - 1)
            values = torch.from_numpy(np.asarray(rng.normal(size=shape) * 10 ** rng.uniform(-4, 4, shape))).to(dtype)
            turned = values.T.contiguous().T if values.dim() == 2 and rng.random() < 0.5 else values
            grads.append(turned if has else None)
    return found


def give(parameters: Sequence[Tensor], grads: Grads) -> None:
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = None if grad is None else grad.clone()


def by_mail(mail: Mail, seats: list[Seat], me: Seat) -> Sums:
    return lambda step, parameters: add_up(step, parameters, MailSum(mail, seats, me))


def by_messages(
    mails: Sequence[Mail], steps: Sequence[tuple[int, list[Grads]]], dtype: torch.dtype
) -> list[list[Grads]]:
    """For each member, what `add_up` makes of each step."""
    seats = seats_of(len(mails))

    def member(number: int) -> list[Grads]:
        return [run(by_mail(mails[number], seats, seats[number]), step, grads[number], dtype) for step, grads in steps]

    return at_once(*(lambda number=number: member(number) for number in range(len(mails))))


def run(sums: Sums, step: int, grads: Grads, dtype: torch.dtype) -> Grads:
    """One step of one member, which has no gradients until the sums have come."""
    parameters = parameters_of(SHAPES, dtype)
    give(parameters, grads)
    later = sums(step, parameters)
    assert all(one.grad is None for one in parameters)
    later.get()
    return [one.grad for one in parameters]


def by_hand(grads: list[Grads], number: int) -> Tensor | None:
    """The sum of a parameter, in the order of members, by plain PyTorch."""
    total: Tensor | None = None
    for own in grads:
        grad = own[number]
        if grad is not None:
            total = grad if total is None else total + grad
    return total


def assert_same(found: Tensor | None, expected: Tensor | None, where: str) -> None:
    """The same bits, or both nothing."""
    assert (found is None) == (expected is None), where
    if found is not None and expected is not None:
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), where
        assert found.detach().numpy().tobytes() == expected.detach().numpy().tobytes(), where


def check_equality(mails: list[Mail], sums: list[CircleSum], *, seed: int, dtype: torch.dtype = torch.float32) -> None:
    """Several steps, all members at once: each has the sums of messages, which are those by hand."""
    count, steps = len(mails), range(6)
    drawn = [draw(count, 100 * seed + step, dtype=dtype) for step in steps]
    expected = by_messages(mails, [(1000 + step, grads) for step, grads in zip(steps, drawn, strict=True)], dtype)

    def member(number: int) -> list[Grads]:
        return [run(sums[number], step, grads[number], dtype) for step, grads in zip(steps, drawn, strict=True)]

    found = at_once(*(lambda number=number: member(number) for number in range(count)))
    for step in steps:
        for number, shape in enumerate(SHAPES):
            total = by_hand(drawn[step], number)
            for member_, (own, other) in enumerate(zip(found, expected, strict=True)):
                where = f"seed {seed} step {step} parameter {number} {shape} member {member_}"
                assert_same(other[step][number], total, f"by messages: {where}")
                assert_same(own[step][number], total, where)


@pytest.mark.parametrize("count", [2, 3, MOST_MEMBERS])
@pytest.mark.parametrize("seed", range(2))
def test_sums_are_those_of_messages(meet: Meet, count: int, seed: int):
    mails = meet(count)
    sums = sums_of(mails)
    check_equality(mails, sums, seed=seed)
    assert all(one._circle is not None for one in sums)


@pytest.mark.parametrize(
    ("count", "given"),
    [
        (2, {"far": (1,)}), (3, {"far": (0,)}), (3, {"options": {1: {"share": False}}}), (MOST_MEMBERS + 1, {}),
    ],
    ids=["two machines", "one of three elsewhere", "one shares nothing", "many"],
)  # fmt: skip
def test_messages_are_used_where_a_circle_is_none(meet: Meet, count: int, given: dict[str, Any]):
    """By all, whoever it is that cannot take part."""
    mails = meet(count, **given)
    sums = sums_of(mails)
    check_equality(mails, sums, seed=7)
    assert all(one._circle is None for one in sums)


def test_doubles_go_by_messages(meet: Meet):
    mails = meet(2)
    sums = sums_of(mails)
    check_equality(mails, sums, seed=8, dtype=torch.float64)
    assert all(one._circle is None for one in sums)


def test_no_room_for_one_sends_all_to_messages(meet: Meet, monkeypatch: pytest.MonkeyPatch):
    mails = meet(3)
    monkeypatch.setattr(mails[1], "lend", lambda nbytes: None)
    sums = sums_of(mails)
    check_equality(mails, sums, seed=9)
    assert all(one._circle is None for one in sums)


def test_no_parameters_are_no_sum(meet: Meet):
    """Whoever has none does not even meet the others."""
    (one, _) = sums_of(meet(2))
    later = one(0, [])
    assert later.ready()
    later.get()


def test_parameters_without_numbers_have_gradients_without_numbers(meet: Meet):
    """Where a member has one, as with messages."""
    check_one(meet(2), [torch.zeros(3, 0), None])


def test_a_zero_has_the_sign_that_it_has_in_messages(meet: Meet):
    """Who has no gradient sends zeros there, which make a positive zero of a negative one; who has one need not."""
    check_one(meet(2), [torch.tensor([-0.0, 1.0, -2.0])] * 2)
    check_one(meet(2), [torch.tensor([-0.0, 1.0, -2.0]), None])


def check_one(mails: list[Mail], grads: Grads) -> None:
    """One parameter, whose sum all have by messages, too."""
    shape, seats, sums = next(one.shape for one in grads if one is not None), seats_of(len(mails)), sums_of(mails)

    def member(number: int) -> list[Tensor | None]:
        found: list[Tensor | None] = []
        for step, add in enumerate((sums[number], by_mail(mails[number], seats, seats[number]))):
            (parameter,) = parameters_of([tuple(shape)])
            give([parameter], [grads[number]])
            add(step, [parameter]).get()
            found.append(parameter.grad)
        return found

    for number, (one, other) in enumerate(at_once(*(lambda n=n: member(n) for n in range(len(mails))))):
        assert_same(one, other, f"member {number}")


def started(sums: list[CircleSum], members: list[list[Tensor]], values: Sequence[float]) -> list[Later[None]]:
    """The first sum of all, each with gradients of one value, as far as it goes before it is taken."""
    for parameters, value in zip(members, values, strict=True):
        fill(parameters, value)
    return at_once(*(lambda n=n: sums[n](0, members[n]) for n in range(len(sums))))


def fill(parameters: Sequence[Tensor], value: float) -> None:
    for one in parameters:
        one.grad = torch.full_like(one, value)


def test_sums_may_overlap(meet: Meet):
    """The next ones start before the first is taken; each is ready when all have put theirs down."""
    sums = sums_of(meet(2))
    members = [parameters_of([(5,), (2, 2)]) for _ in sums]
    firsts = started(sums, members, [1.0, 10.0])
    assert all(later.ready() for later in firsts)
    fill(members[0], 2.0)
    second = sums[0](1, members[0])
    fill(members[0], 3.0)
    third = sums[0](2, members[0])
    assert all(one.grad is None for one in members[0])
    assert firsts[0].ready()
    assert not second.ready()
    assert not third.ready()
    fill(members[1], 20.0)
    others = [firsts[1], sums[1](1, members[1])]
    assert second.ready()
    assert not third.ready()
    fill(members[1], 30.0)
    others.append(sums[1](2, members[1]))
    for parameters, laters in zip(members, ([firsts[0], second, third], others), strict=True):
        for later, total in zip(laters, (11.0, 22.0, 33.0), strict=True):
            assert later.ready()
            later.get()
            for one in parameters:
                assert one.grad is not None
                assert torch.equal(one.grad, torch.full_like(one, total))


def test_what_was_given_stays_the_callers(meet: Meet):
    """A sum of a parameter is in nobody else's memory: who clips it changes no other's, nor the next sum's."""
    sums = sums_of(meet(2))
    members = [parameters_of([(5,)]) for _ in sums]
    first, other = started(sums, members, [1.0, 2.0])
    first.get()
    assert members[0][0].grad is not None
    members[0][0].grad.mul_(100.0)
    other.get()
    assert members[1][0].grad is not None
    assert torch.equal(members[1][0].grad, torch.full((5,), 3.0))


@pytest.fixture(params=["gradients of others", "room"])
def waiting(request: pytest.FixtureRequest, meet: Meet) -> Waiting:
    """Two mails, and a call of the first one's replica that waits for the second one's, which does nothing more."""
    mails = meet(2)
    sums = sums_of(mails)
    members = [parameters_of([(5,)]) for _ in sums]
    started(sums, members, [1.0, 10.0])
    laters = []
    for step in range(1, SLOTS):
        fill(members[0], 1.0)
        laters.append(sums[0](step, members[0]))
    fill(members[0], 1.0)
    return mails, (
        laters[0].get if request.param == "gradients of others" else lambda: sums[0](SLOTS, members[0]).get()
    )


def ended(mail: Mail, call: Callable[[], None], end: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> str:
    """Why a call of a mail's owner ends, once something happens that does so after it was found waiting."""
    looked, check = threading.Event(), mail.check

    def checked(since_s: float, what: str) -> None:
        looked.set()
        check(since_s, what)

    monkeypatch.setattr(mail, "check", checked)
    errors: list[BaseException | None] = []

    def waits() -> None:
        try:
            call()
            errors.append(None)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=waits, daemon=True)  # one that waits for ever ends with the tests
    thread.start()
    assert looked.wait(PATIENCE_S)
    assert thread.is_alive()
    end()
    thread.join(PATIENCE_S)
    (error,) = errors
    assert isinstance(error, PeerLost)
    return str(error)


def test_a_mail_that_closes_ends_the_wait(waiting: Waiting, monkeypatch: pytest.MonkeyPatch):
    (mail, _), call = waiting
    assert ended(mail, call, mail.close, monkeypatch) == "the run ended"


def test_a_peer_that_is_lost_ends_the_wait(waiting: Waiting, monkeypatch: pytest.MonkeyPatch):
    (mail, other), call = waiting
    mail.send(Seat(0, 1), Message("hello", 0, "0", {"x": torch.ones(1)}))
    assert wait_for(lambda: Seat(0, 1) in mail._met)
    assert "stage 0 replica 1 broke" in ended(mail, call, other.close, monkeypatch)


def test_nobody_waits_for_ever(waiting: Waiting, monkeypatch: pytest.MonkeyPatch):
    (mail, _), call = waiting

    def over() -> None:
        mail._timeout_s = 0.0

    assert "nothing came within 0 s of gradients of s" in ended(mail, call, over, monkeypatch)


# The core alone.

FLOATS = [5, 0, 3]


class Members:
    """Members of a circle over plain memory."""

    def __init__(self, count: int) -> None:
        nbytes = Circle.bytes(FLOATS)
        self._memory = [aligned(nbytes) for _ in range(count)]
        self.circles = [Circle(self._memory, me, FLOATS) for me in range(count)]

    def put(self, member: int, values: Sequence[float | None], most_ms: int = PATIENCE_MS) -> bool:
        arrays = [
            None if value is None else np.full(size, value, np.float32)
            for size, value in zip(FLOATS, values, strict=True)
        ]
        return self.circles[member].put([0 if one is None else one.ctypes.data for one in arrays], most_ms)

    def take(self, member: int, number: int) -> list[float | None]:
        """The values that all numbers of each array have; 0 of an empty one."""
        assert self.circles[member].wait(number, PATIENCE_MS)
        sums = [np.full(size, np.nan, np.float32) for size in FLOATS]
        missing = self.circles[member].take(number, [one.ctypes.data for one in sums])
        for one in sums:
            assert len(np.unique(one)) <= 1
        return [
            None if nobody else float(one.sum() / max(1, one.size)) for one, nobody in zip(sums, missing, strict=True)
        ]


def aligned(nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Zeros at the beginning of a line, as blocks of shared memory are."""
    memory = np.zeros(nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + nbytes]


def test_a_member_that_lags_is_waited_for():
    """By who has put down as many as there are slots; what found no room has written over nothing."""
    members = Members(2)
    for number in range(SLOTS):
        assert all(members.put(member, [number, None, 10.0 * member]) for member in range(2))
        assert members.take(0, number) == [2.0 * number, None, 10.0]
    for number in range(SLOTS):
        for most_ms in (0, 10):
            assert not members.put(0, [99.0, 99.0, 99.0], most_ms)
        assert not members.circles[1].wait(SLOTS + number, 0)
        assert members.take(1, number) == [2.0 * number, None, 10.0]
        assert members.put(0, [number, None, None], 0)
    for number in range(SLOTS):
        assert members.put(1, [None, 0.0, 1.0], 0)
        for member in range(2):
            assert members.take(member, SLOTS + number) == [number, 0.0, 1.0]


def test_who_waits_for_room_goes_on_when_there_is_some():
    members = Members(2)
    for number in range(SLOTS):
        assert all(members.put(member, [number, 0.0, 1.0]) for member in range(2))
        assert members.take(0, number) == [2.0 * number, 0.0, 2.0]
    with ThreadPoolExecutor(1) as pool:
        put = pool.submit(members.put, 0, [1.0, None, 2.0])
        assert not put.done()
        assert members.take(1, 0) == [0.0, 0.0, 2.0]
        assert put.result(PATIENCE_S)
    for number in range(1, SLOTS):
        assert members.take(1, number) == [2.0 * number, 0.0, 2.0]
    assert members.put(1, [None, None, 3.0])
    assert [members.take(member, SLOTS) for member in range(2)] == [[1.0, None, 5.0]] * 2


def test_who_waits_for_others_goes_on_when_they_are_there():
    members = Members(3)
    assert members.put(0, [1.0, None, None])
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(members.take, 0, 0)
        assert members.put(2, [None, None, 2.0])
        assert not members.circles[0].wait(0, 10)
        assert not taken.done()
        assert members.put(1, [4.0, None, 3.0])
        assert taken.result(PATIENCE_S) == [5.0, None, 5.0]


def test_circles_that_make_no_sense_are_refused():
    memory = [aligned(Circle.bytes(FLOATS)) for _ in range(2)]
    with pytest.raises(ValueError, match="no such member"):
        Circle(memory, 2, FLOATS)
    with pytest.raises(ValueError, match="too little memory"):
        Circle([memory[0], memory[1][:-1]], 0, FLOATS)
    circle = Circle(memory, 0, FLOATS)
    for call in (lambda: circle.put([0], 0), lambda: circle.take(0, [0])):
        with pytest.raises(ValueError, match="other arrays"):
            call()
