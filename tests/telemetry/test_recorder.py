"""Recording: exact totals from many threads, and nothing that goes wrong in a sink reaches the one who records."""

from __future__ import annotations

import gc
import logging
import threading
import time

import pytest

from heterps.errors import InvalidInput
from heterps.telemetry import Recorder, Total
from tests.telemetry.fakes import LIMIT_S, Clock, Failing, Kept, Stuck


def work(
    recorder: Recorder, clock: Clock, name: str, seconds: float, *, fail: bool = False, **where: int | None
) -> None:
    with recorder.span(name, **where):
        clock.now += seconds
        if fail:
            raise KeyError


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "heterps.telemetry"]


def test_every_kind_reaches_a_sink_with_its_time():
    clock, sink = Clock(), Kept()
    with Recorder([sink], clock=clock) as recorder:
        clock.now += 1.0
        work(recorder, clock, "forward", 0.25, stage=1, step=7, micro_batch=3)
        recorder.scalar("loss", 0.5, step=7)
        recorder.event("checkpoint", step=7, path=("a", "b"), name="x")
        recorder.count("rows", 5)
        recorder.count("rows", 6)
    (span,), (scalar,) = sink.of("span"), sink.of("scalar")
    assert (span.t, span.duration_s, span.name) == (1.0, 0.25, "forward")
    assert (span.stage, span.step, span.micro_batch) == (1, 7, 3)
    assert (scalar.t, scalar.name, scalar.value, scalar.step) == (1.25, "loss", 0.5, 7)
    start, checkpoint, end = sink.of("event")
    assert (start.t, start.name, start.fields["format"]) == (0.0, "start", "heterps.telemetry/1")
    assert checkpoint.fields == {"step": 7, "path": ["a", "b"], "name": "x"}
    assert (end.name, end.fields) == ("end", {"dropped": 0})
    assert sink.of("count")[-1].total == 11
    assert recorder.counts() == {"rows": 11}
    assert sink.closed.is_set()
    assert recorder.dropped == 0


def test_fields_of_events_are_copied():
    sink, rows = Kept("event"), {"a": [1]}
    with Recorder([sink]) as recorder:
        recorder.event("rows", rows=rows)
        rows["a"].append(2)
    assert sink.records[1].fields == {"rows": {"a": [1]}}


def test_totals_count_every_span_and_an_error_passes_through():
    clock = Clock()
    recorder = Recorder(clock=clock)
    work(recorder, clock, "forward", 1.0, stage=0)
    work(recorder, clock, "forward", 2.0, stage=0)
    work(recorder, clock, "read", 4.0)
    with pytest.raises(KeyError):
        work(recorder, clock, "forward", 8.0, stage=1, fail=True)
    assert recorder.totals() == {
        (0, "forward"): Total(2, 3.0),
        (None, "read"): Total(1, 4.0),
        (1, "forward"): Total(1, 8.0),
    }


def test_busy_counts_nested_work_once_and_waiting_not_at_all():
    clock = Clock()
    recorder = Recorder(clock=clock)
    with recorder.span("forward", stage=0):
        clock.now += 1.0
        work(recorder, clock, "pull", 2.0, stage=0)
        work(recorder, clock, "decode", 1.0, stage=0)
    work(recorder, clock, "wait", 4.0, stage=0)
    work(recorder, clock, "forward", 2.0, stage=1)
    assert recorder.busy(0) == pytest.approx(0.4)
    assert recorder.busy(1) == pytest.approx(0.2)
    assert recorder.busy(2) == 0.0
    assert recorder.busy_s(0) == pytest.approx(4.0)


def test_busy_is_since_the_last_call_and_counts_what_is_open():
    clock = Clock()
    recorder = Recorder(clock=clock)
    assert recorder.busy(0) == 0.0  # no time has passed
    clock.now += 1.0
    with recorder.span("backward", stage=0):
        clock.now += 3.0
        assert recorder.busy(0) == pytest.approx(0.75)
        clock.now += 1.0
    clock.now += 1.0
    assert recorder.busy(0) == pytest.approx(0.5)
    clock.now += 1.0
    assert recorder.busy(0) == 0.0
    assert recorder.busy_s(0) == pytest.approx(4.0)


def test_work_that_was_done_elsewhere_counts_when_it_is_told():
    """Two seconds, and two more that overlap by one: three busy, four in the totals."""
    recorder = Recorder()
    now = time.perf_counter()
    recorder.worked(0, "forward", 7, now + 1.0, now + 3.0)
    recorder.worked(0, "forward", 8, now + 2.0, now + 4.0)
    recorder.worked(1, "update", 7, now, now + 1.0)
    assert recorder.busy_s(0) == pytest.approx(3.0)
    totals = recorder.totals()
    assert totals[0, "forward"] == Total(2, pytest.approx(4.0))
    assert totals[1, "update"] == Total(1, pytest.approx(1.0))


def test_busy_is_the_union_over_the_threads_of_a_stage():
    """Work from 0 to 2 in one thread and 1 to 4 in another, of 8 seconds: 4 busy, 5 in the totals."""
    clock = Clock()
    recorder = Recorder(clock=clock)
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with recorder.span("push", stage=0):
            inside.set()
            assert leave.wait(LIMIT_S)

    thread = threading.Thread(target=other)
    with recorder.span("forward", stage=0):
        clock.now += 1.0
        thread.start()
        assert inside.wait(LIMIT_S)
        clock.now += 1.0
    clock.now += 2.0
    leave.set()
    thread.join()
    clock.now += 4.0
    assert recorder.busy(0) == pytest.approx(0.5)
    assert sum(total.seconds for total in recorder.totals().values()) == pytest.approx(5.0)


def test_many_threads_lose_nothing():
    threads, spans, sink = 8, 1500, Kept()
    recorder = Recorder([sink], every_s=0.001)

    def stage(number: int) -> None:
        for step in range(spans):
            with recorder.span("forward", stage=number % 3, step=step):
                recorder.count("rows", 2)

    running = [threading.Thread(target=stage, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert recorder.flush(LIMIT_S)
    assert len(sink.of("span")) == threads * spans
    assert sorted(total.count for total in recorder.totals().values()) == [2 * spans, 3 * spans, 3 * spans]
    assert recorder.counts()["rows"] == sink.of("count")[-1].total == threads * spans * 2
    recorder.close()
    assert recorder.dropped == 0


def test_a_full_queue_drops_and_counts(caplog: pytest.LogCaptureFixture):
    sink = Stuck()
    recorder = Recorder([sink], capacity=10, every_s=0.001)
    recorder.scalar("loss", 0.0, step=0)
    assert sink.entered.wait(LIMIT_S)
    for step in range(1, 31):
        recorder.scalar("loss", 0.0, step=step)
    assert recorder.dropped == 20
    sink.go.set()
    recorder.close()
    assert [record.step for record in sink.records] == list(range(11))
    assert messages(caplog) == ["telemetry falls behind: what does not fit its queue of 10 is dropped"]


def test_a_failing_sink_is_reported_once_and_the_others_go_on(caplog: pytest.LogCaptureFixture):
    good, bad = Kept("scalar"), Failing()
    with Recorder([bad, good]) as recorder:
        for step in range(5):
            recorder.scalar("loss", 0.0, step=step)
            assert recorder.flush(LIMIT_S)
        assert recorder.dropped == 5
    assert len(good.records) == 5
    assert bad.writes == 1
    (message,) = messages(caplog)
    assert "No space left on device" in message


def test_close_does_not_wait_for_a_stuck_sink(caplog: pytest.LogCaptureFixture):
    sink = Stuck()
    recorder = Recorder([sink], every_s=0.001)
    recorder.scalar("loss", 0.0, step=0)
    assert sink.entered.wait(LIMIT_S)
    assert not recorder.flush(0.01)
    recorder.close(timeout_s=0.01)
    assert not sink.go.is_set()
    assert not sink.closed.is_set()
    assert "did not finish writing within 0.01 s" in messages(caplog)[0]
    sink.go.set()
    assert sink.closed.wait(LIMIT_S)  # it still ends well when it can


def test_nonsense_is_dropped_not_raised(caplog: pytest.LogCaptureFixture):
    with Recorder([Kept()]) as recorder:
        recorder.scalar("loss", "high", step=1)  # type: ignore[arg-type]
        recorder.count("rows", "many")  # type: ignore[arg-type]
        with recorder.span(["forward"], stage=0):  # type: ignore[arg-type]
            pass
    assert recorder.dropped >= 3
    assert len(messages(caplog)) == 1


def test_what_comes_after_close_is_dropped():
    sink = Kept()
    recorder = Recorder([sink])
    recorder.close()
    recorder.close()
    written = len(sink.records)
    recorder.scalar("loss", 0.0, step=1)
    assert recorder.flush()
    assert (len(sink.records), recorder.dropped) == (written, 1)


def test_records_that_no_sink_wants_are_not_kept():
    sink = Kept("scalar")
    with Recorder([sink], capacity=1, every_s=60) as recorder:
        for _ in range(100):
            with recorder.span("forward", stage=0):
                recorder.event("x")
        recorder.scalar("loss", 0.0, step=0)
    assert len(sink.records) == 1
    assert recorder.dropped == 0


def test_no_thread_without_sinks():
    before = set(threading.enumerate())
    recorder = Recorder()
    recorder.scalar("loss", 0.0, step=0)
    assert set(threading.enumerate()) <= before
    assert recorder.flush()
    recorder.close()


def test_a_forgotten_recorder_closes_its_sinks():
    sink = Kept("scalar")
    recorder = Recorder([sink])
    recorder.scalar("loss", 0.0, step=0)
    del recorder
    gc.collect()
    assert sink.closed.wait(LIMIT_S)
    assert len(sink.records) == 1


def test_a_handler_may_record_while_its_thread_does():
    """A signal interrupts anywhere, so also where the lock is held: here in the clock that `busy` reads."""
    calls = []

    def clock() -> float:
        calls.append(None)
        if len(calls) == 3:
            recorder.count("signals")
        return float(len(calls))

    recorder = Recorder(clock=clock)
    recorder.now()
    thread = threading.Thread(target=recorder.busy, args=(0,), daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert recorder.counts() == {"signals": 1}


@pytest.mark.parametrize("options", [{"capacity": 0}, {"every_s": 0.0}])
def test_senseless_options_are_refused(options: dict[str, float]):
    with pytest.raises(InvalidInput, match="capacity of 1 or more"):
        Recorder(**options)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="heterps.telemetry")
