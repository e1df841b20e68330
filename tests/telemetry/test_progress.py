"""The progress line, on a terminal and elsewhere, with a clock of its own."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from heterps.telemetry import Progress
from tests.telemetry.fakes import Clock


class Screen:
    def __init__(self, *, terminal: bool) -> None:
        self.file = io.StringIO()
        self.console = Console(file=self.file, force_terminal=terminal, width=140, _environ={})

    def lines(self) -> list[str]:
        return self.file.getvalue().splitlines()

    def draws(self) -> list[str]:
        """Steps as they were drawn, one after another."""
        return re.findall(r"step (\S+)", self.file.getvalue())


def test_a_plain_line_says_everything():
    clock, screen = Clock(), Screen(terminal=False)
    with Progress(
        1000, stages={0: "cpu × 2", 1: "[v100]"}, every_s=10, clock=clock, console=screen.console
    ) as progress:
        clock.now += 10.0
        progress.update(step=120, samples=491_520, loss=0.43219, auc=0.76543, busy={1: 0.4123, 0: 0.931})
    (line,) = screen.lines()
    assert line == "step 120/1,000 · 49,152 samples/s · loss 0.4322 · AUC 0.7654 · busy cpu × 2: 93%, [v100]: 41%"


def test_plain_lines_come_at_most_every_so_often_and_at_the_end():
    clock, screen = Clock(), Screen(terminal=False)
    with Progress(every_s=10, clock=clock, console=screen.console) as progress:
        for step in range(1, 36):
            clock.now += 1.0
            progress.update(step=step)
    assert screen.lines() == [
        "step 10 · 0 samples/s",
        "step 20 · 0 samples/s",
        "step 30 · 0 samples/s",
        "step 35 · 0 samples/s",
    ]


def test_the_last_state_is_not_shown_twice_and_nothing_after_the_end():
    clock, screen = Clock(), Screen(terminal=False)
    with Progress(every_s=1, clock=clock, console=screen.console) as progress:
        clock.now += 1.0
        progress.update(step=1)
    clock.now += 5.0
    progress.update(step=2)
    progress.close()
    assert len(screen.lines()) == 1


def test_what_is_not_given_stays():
    clock, screen = Clock(), Screen(terminal=False)
    progress = Progress(every_s=1, clock=clock, console=screen.console)
    for step, news in enumerate(
        ({"loss": 0.5, "auc": 0.7, "samples": 10}, {"loss": 0.25}, {"busy": {0: 1.0}}), start=1
    ):
        clock.now += 1.0
        progress.update(step=step, **news)  # type: ignore[arg-type]
    assert screen.lines()[1].endswith("loss 0.2500 · AUC 0.7000")
    assert screen.lines()[2].endswith("loss 0.2500 · AUC 0.7000 · busy 0: 100%")


def test_speed_is_that_of_the_last_seconds_and_of_this_run():
    clock, screen = Clock(), Screen(terminal=False)
    progress = Progress(every_s=1, samples=1_000_000, clock=clock, console=screen.console)
    samples = 1_000_000
    for step in range(1, 21):
        clock.now += 1.0
        samples += 100 if step <= 10 else 300
        progress.update(step=step, samples=samples)
    speeds = [int(re.findall(r"(\d+) samples/s", line)[0]) for line in screen.lines()]
    assert speeds[:10] == [100] * 10
    assert speeds[-5:] == [300] * 5


def test_speed_is_measured_anew_after_samples_go_back():
    """To a checkpoint: what came after it is no speed, and a rate is never below zero."""
    clock, screen = Clock(), Screen(terminal=False)
    progress = Progress(every_s=10, clock=clock, console=screen.console)
    for step, samples in ((10, 1_000), (7, 700), (12, 1_200)):
        clock.now += 10.0
        progress.update(step=step, samples=samples)
    assert screen.lines() == ["step 10 · 100 samples/s", "step 7", "step 12 · 50 samples/s"]


def test_speed_is_measured_anew_if_they_went_back_between_two_lines():
    clock, screen = Clock(), Screen(terminal=False)
    progress = Progress(every_s=10, clock=clock, console=screen.console)
    for seconds, step, samples in ((10.0, 10, 1_000), (5.0, 0, 0), (5.0, 11, 1_100)):
        clock.now += seconds
        progress.update(step=step, samples=samples)
    assert screen.lines() == ["step 10 · 100 samples/s", "step 11 · 220 samples/s"]


def test_a_terminal_is_drawn_at_most_five_times_a_second():
    clock, screen = Clock(), Screen(terminal=True)
    with Progress(500, clock=clock, console=screen.console) as progress:
        for step in range(1, 501):
            clock.now += 0.01
            progress.update(step=step, samples=step * 10, loss=0.5, busy={0: 0.5})
    draws = {*screen.draws()}
    assert 20 <= len(draws) <= 27  # 5 seconds
    assert "500/500" in draws
    assert "loss 0.5000" in screen.file.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_quiet_shows_nothing(terminal: bool):
    clock, screen = Clock(), Screen(terminal=terminal)
    with Progress(10, quiet=True, clock=clock, console=screen.console) as progress:
        clock.now += 100.0
        assert not progress.due()
        progress.update(step=5, samples=10)
    assert screen.file.getvalue() == ""


def test_due_tells_when_the_next_update_is_shown():
    clock, screen = Clock(), Screen(terminal=False)
    progress = Progress(every_s=10, clock=clock, console=screen.console)
    clock.now += 9.0
    assert not progress.due()
    clock.now += 1.0
    assert progress.due()
    progress.update(step=1)
    assert not progress.due()


def test_a_screen_that_is_gone_does_not_end_the_training():
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    clock = Clock()
    with Progress(every_s=1, clock=clock, console=Console(file=Gone())) as progress:
        clock.now += 1.0
        progress.update(step=1)
        assert not progress.due()
