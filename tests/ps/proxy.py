"""A TCP relay that cuts connections: the network on a bad day."""

from __future__ import annotations

import contextlib
import socket
import threading


class Proxy:
    """Relays to `target` (tcp://host:port). Connection i is cut after `budgets[i]` bytes in all; later ones hold."""

    def __init__(self, target: str, budgets: list[int]) -> None:
        host, _, port = target.removeprefix("tcp://").partition(":")
        self._target = (host, int(port))
        self._budgets = list(budgets)
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for end in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                inner, _ = self._listener.accept()
                outer = socket.create_connection(self._target)
            except OSError:
                return
            self._open += [inner, outer]
            budget = [self._budgets.pop(0)] if self._budgets else [1 << 60]
            for source, sink in ((inner, outer), (outer, inner)):
                threading.Thread(target=self._relay, args=(source, sink, budget), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket, budget: list[int]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                allowed = data[: max(0, budget[0])]
                budget[0] -= len(data)
                sink.sendall(allowed)
                if budget[0] <= 0:
                    self.cuts += 1
                    break
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
