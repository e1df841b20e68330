"""The side of the command that asked for a run: follows its coordinator, which is elsewhere, and goes on without it."""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import suppress
from typing import Any

from heterps.runtime.cluster import registry
from heterps.runtime.cluster._ray import CONTROL, exceptions, ray
from heterps.runtime.cluster.coordinator import RunFailed
from heterps.runtime.cluster.journal import Cursor, replay
from heterps.runtime.cluster.policy import Limits
from heterps.runtime.cluster.tally import Outcome
from heterps.runtime.settings import Settings
from heterps.telemetry import Progress, Recorder

POLL_S = 0.5
"""Longest that a coordinator without news lets us wait for its answer. One question is always under way, so that the
death of its process is seen at once."""


class Follower:
    """Follows one coordinator to the end of its run."""

    def __init__(self, actor: Any, settings: Settings, limits: Limits) -> None:
        self._actor, self._settings, self._limits = actor, settings, limits
        self._recorder = settings.recorder or Recorder()
        self._me = uuid.uuid4().hex[:8]
        self._cursor: Cursor | None = None
        self._patience_s = limits.start_s
        """Seconds to wait for the next answer: more for a process that has yet to start."""

    def follow(self, stop: threading.Event) -> Outcome:
        """Records and shows how the run goes; `stop` asks it to save and end."""
        settings, outcome = self._settings, None
        with Progress(total=settings.steps, quiet=not settings.progress) as progress:
            while outcome is None:
                news = self._ask("news", self._cursor, POLL_S, self._me)
                if news is None:
                    continue
                self._cursor = news["cursor"]
                replay(news["entries"], self._recorder, on_log=settings.on_log)
                if news["loss"] is not None:
                    progress.update(**{key: news[key] for key in ("step", "samples", "loss", "auc", "busy")})
                if stop.is_set() and not news["stopping"]:
                    self._call("stop")
                if news["over"] and not news["entries"]:
                    outcome = self._ask("result")
        assert isinstance(outcome, Outcome)
        return outcome

    def leave(self) -> bool:
        """Follows no more; whether somebody else does. One that does not answer has nobody."""
        with suppress(exceptions.RayError):
            return bool(registry.ask(self._actor, "leave", self._me))
        return False

    def _ask(self, method: str, *args: Any) -> Any:
        """What the coordinator answers; None if it has to be asked again, as another process."""
        try:
            found = ray.get(self._call(method, *args), timeout=self._patience_s)
        except exceptions.GetTimeoutError:
            self._recorder.event("restart", reason=f"the coordinator gave no answer for {self._patience_s:.0f} s")
            ray.kill(self._actor, no_restart=False)
        except exceptions.ActorUnavailableError:
            time.sleep(POLL_S)
        except exceptions.RayActorError as error:
            lines = str(error).strip().splitlines()
            raise RunFailed(f"the coordinator is gone: {lines[-1 if 'creation' in lines[0] else 0]}") from None
        except exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from None
        else:
            self._patience_s = self._limits.frozen_s + POLL_S
            return found
        self._patience_s = self._limits.start_s
        return None

    def _call(self, method: str, *args: Any) -> Any:
        return getattr(self._actor, method).options(concurrency_group=CONTROL).remote(*args)
