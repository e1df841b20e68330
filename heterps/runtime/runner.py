"""The thread that stages run in: usually one each; those whose calls only start things share one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch

from heterps._native import Inbox
from heterps.runtime.placement import StageSpec
from heterps.runtime.worker import Message, Worker


class Runner(threading.Thread):
    """Runs the workers of one or more stages, whichever has something to do, until it is told to stop.

    Threads that take turns with the interpreter wait for each other longer than a short call takes, so stages that
    have nothing but short calls are better off with a single one.
    """

    def __init__(self, workers: Sequence[Worker], on_failure: Callable[[BaseException, StageSpec], None]) -> None:
        """Makes the thread.

        Args:
            workers: to run; where several could go on, the last one does.
            on_failure: called, in the thread, with what a stage raised.
        """
        super().__init__(name=", ".join(str(worker.stage.spec) for worker in workers), daemon=True)
        self.workers = tuple(reversed(workers))
        self.started = threading.Event()
        self._on_failure = on_failure
        self._inbox = Inbox()
        for worker in workers:
            worker.connect(self._inbox)
        self._stopped = False

    def send(self, worker: Worker, message: Message) -> None:
        """Hands a message to one of its workers; from any thread."""
        if not self._stopped:
            self._inbox.put((worker, message))

    def stop(self) -> None:
        """Ends the thread after what it is doing; from any thread."""
        self._stopped = True
        self._inbox.ring()

    def run(self) -> None:
        """Works until told to stop; an error ends it, too."""
        worker = self.workers[0]
        try:
            for worker in self.workers:
                if worker.stage.spec.device.type == "cuda":
                    torch.cuda.set_device(worker.stage.spec.device)
                elif not worker.stage.only_starts:
                    torch.set_num_threads(worker.stage.spec.threads)
            self.started.set()
            idle = False
            while not self._stopped:
                self._listen(wait=idle)
                idle = True
                for worker in self.workers:
                    if worker.work():
                        idle = False
        except BaseException as error:  # whatever it is, nobody may wait for this stage any longer
            self.started.set()
            self._on_failure(error, worker.stage.spec)
        finally:
            self._stopped = True
            while self._inbox.get(wait=False) is not None:
                pass  # what nobody reads would keep everything alive that it points to

    def _listen(self, *, wait: bool) -> None:
        """Takes the messages that are there; with `wait`, not before there is one or something was done elsewhere."""
        while (letter := self._inbox.get(wait)) is not None:
            worker, message = letter
            worker.take(message)
            wait = False
