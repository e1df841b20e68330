"""Watches the coordinator from a replica: while no command follows it, nobody else would notice that it is frozen."""

from __future__ import annotations

import logging
import threading

from heterps.runtime.cluster._ray import CONTROL, exceptions, ray
from heterps.runtime.cluster.registry import NAMESPACE

log = logging.getLogger("heterps.cluster")

EVERY_S = 2.0
"""Between two questions."""


class Guard:
    """Asks a coordinator, by its name, whether it is there, from a thread of its own.

    One that gives no answer for `patience_s` is ended, and Ray starts another one, which takes the run over.
    """

    def __init__(self, name: str, patience_s: float) -> None:
        self._name, self._patience_s = name, patience_s
        threading.Thread(target=self._watch, name="guard", daemon=True).start()

    def _watch(self) -> None:
        pause = threading.Event()
        while not pause.wait(EVERY_S):
            try:
                actor = ray.get_actor(self._name, namespace=NAMESPACE)
                ray.get(actor.over.options(concurrency_group=CONTROL).remote(), timeout=self._patience_s)
            except exceptions.GetTimeoutError:
                log.warning("the coordinator gave no answer for %.0f s; another one takes over", self._patience_s)
                ray.kill(actor, no_restart=False)
            except exceptions.ActorUnavailableError:
                continue  # it is being started
            except (exceptions.RayActorError, ValueError):
                return  # it is gone for good, and the run with it
