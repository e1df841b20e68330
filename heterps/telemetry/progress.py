"""The line that shows how training goes."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Column

_REFRESH_S = 0.2
"""Least time between two draws on a terminal (assumed: more is not read)."""

_WINDOW_S = 5.0
"""Stretch over which samples a second are averaged (assumed: steady to look at, and quick to follow)."""


class Progress:
    """Shows step, samples a second, loss, AUC and how busy each stage is.

    On a terminal it is one line that is redrawn at most five times a second. Elsewhere (a file, a pipe) it is a plain
    line at most every `every_s` seconds. Either way the last state is shown at the end. It has no thread: all is done
    in `update`, which costs a look at the clock when nothing is due. Once it cannot be shown it is quiet.

    Args:
        total: steps in all; None if that is not known.
        stages: what to call stages, by number, such as `{0: "cpu × 2"}`; their numbers by default.
        samples: seen before, when a run is resumed: they do not count as speed. When a run goes back to a checkpoint,
            speed is measured anew from there.
        quiet: show nothing.
        every_s: seconds between plain lines.
        clock: seconds, from any zero.
        console: where to show it; standard error by default.
    """

    def __init__(
        self,
        total: int | None = None,
        *,
        stages: Mapping[int, str] | None = None,
        samples: int = 0,
        quiet: bool = False,
        every_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        console: Console | None = None,
    ) -> None:
        self._total, self._stages, self._quiet, self._clock = total, dict(stages or {}), quiet, clock
        self._console = console or Console(stderr=True)
        self._bar: Bar | None = None
        self._every_s = _REFRESH_S if self._console.is_terminal else every_s
        self._step, self._samples = 0, samples
        self._loss: float | None = None
        self._auc: float | None = None
        self._busy: dict[int, float] = {}
        self._shown_s = clock()
        """When the line was shown; at first, when it was made."""
        self._seen: deque[tuple[float, int]] = deque([(self._shown_s, samples)])
        """(time, samples) at the start and whenever the line was shown, as far back as the window goes."""
        self._stale = False
        """Whether there is news that was not shown."""

    def update(
        self,
        *,
        step: int,
        samples: int | None = None,
        loss: float | None = None,
        auc: float | None = None,
        busy: Mapping[int, float] | None = None,
    ) -> None:
        """Tells how far training is: steps done, samples seen in all. What is None stays as it was."""
        self._step, self._stale = step, True
        if samples is not None:
            if samples < self._samples:  # back to a checkpoint: what came after it is no speed any more
                self._seen = deque([(self._clock(), samples)])
            self._samples = samples
        self._loss = self._loss if loss is None else loss
        self._auc = self._auc if auc is None else auc
        self._busy = self._busy if busy is None else dict(busy)
        if self.due():
            self._try_to_show()

    def due(self) -> bool:
        """Whether the next update is shown; only then is it worth computing what it shows (AUC, busy shares)."""
        return not self._quiet and self._clock() - self._shown_s >= self._every_s

    def close(self) -> None:
        """Shows the last state, and leaves the line."""
        if self._stale and not self._quiet:
            self._try_to_show()
        bar, self._bar, self._quiet = self._bar, None, True
        if bar:
            with contextlib.suppress(OSError):
                bar.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _try_to_show(self) -> None:
        try:
            self._show()
        except OSError:  # a full disk, a terminal that is gone: no reason to end the training
            self._quiet = True

    def _show(self) -> None:
        now = self._clock()
        while len(self._seen) > 1 and self._seen[1][0] <= now - _WINDOW_S:
            self._seen.popleft()
        self._seen.append((now, self._samples))
        self._shown_s, self._stale = now, False
        if not self._console.is_terminal:
            self._console.print(self._line(), highlight=False, markup=False, soft_wrap=True)
            return
        if self._bar is None:
            text = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, ratio=1))
            self._bar = Bar(BarColumn(bar_width=20), text, console=self._console, auto_refresh=False, expand=True)
            self._bar.add_task("", total=self._total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=self._step, description=self._line())
        self._bar.refresh()

    def _line(self) -> str:
        parts = [f"step {self._step:,}" + (f"/{self._total:,}" if self._total else "")]
        (first_t, first), (last_t, last) = self._seen[0], self._seen[-1]
        if last_t > first_t:
            parts.append(f"{(last - first) / (last_t - first_t):,.0f} samples/s")
        if self._loss is not None:
            parts.append(f"loss {self._loss:.4f}")
        if self._auc is not None:
            parts.append(f"AUC {self._auc:.4f}")
        if self._busy:
            shares = (f"{self._stages.get(stage, stage)}: {share:.0%}" for stage, share in sorted(self._busy.items()))
            parts.append("busy " + ", ".join(shares))
        return " · ".join(parts)
