"""The keys of a job: who may talk to its parameter servers.

A job has two CURVE key pairs, one of its servers and one of its clients. Whoever holds the key file is in: a server
admits no other client key, and a client talks to no server with another key. CURVE also encrypts, so it is
mandatory over tcp. `ipc` sockets never leave the machine: the directory they lie in protects them, which only its
owner may enter.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import zmq

from heterps.errors import InvalidInput
from heterps.ps.wire import MAX_FRAME_BYTES, PIECE_BYTES

FORMAT = "heterps.keys/1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Keys:
    """Both key pairs of a job, each key 40 characters of Z85; secrets stay out of `repr`."""

    server_public: str
    server_secret: str = field(repr=False)
    client_public: str
    client_secret: str = field(repr=False)

    def __post_init__(self) -> None:
        for side in ("server", "client"):
            public, secret = getattr(self, f"{side}_public"), getattr(self, f"{side}_secret")
            if not _is_pair(public, secret):
                raise InvalidInput(f"keys: {side}_public and {side}_secret are no CURVE key pair; make one with keygen")

    @classmethod
    def generate(cls) -> Keys:
        """New random keys."""
        server, client = zmq.curve_keypair(), zmq.curve_keypair()
        return cls(
            server_public=server[0].decode(), server_secret=server[1].decode(),
            client_public=client[0].decode(), client_secret=client[1].decode(),
        )  # fmt: skip

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Keys:
        """Reads a key file; refuses one that others than its owner may read."""
        try:
            mode = Path(path).stat().st_mode
            data = json.loads(Path(path).read_text())
        except (OSError, ValueError) as error:
            raise InvalidInput(f"key file {path}: {error}") from None
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise InvalidInput(f"key file {path}: others may read it (mode {mode & 0o777:o}); chmod 600 {path}")
        names = {f.name for f in fields(cls)}
        if not isinstance(data, dict) or data.get("format") != FORMAT or set(data) != names | {"format"}:
            raise InvalidInput(f"key file {path}: not a {FORMAT} file with {', '.join(sorted(names))}")
        return cls(**{name: str(data[name]) for name in names})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a new key file that only its owner may read; never over another file."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise InvalidInput(f"key file {path}: {error.strerror}") from None
        with os.fdopen(descriptor, "w") as file:
            json.dump({"format": FORMAT, **asdict(self)}, file, indent=1)
            file.write("\n")


def _is_pair(public: str, secret: str) -> bool:
    try:
        return zmq.curve_public(secret.encode()).decode() == public
    except (zmq.ZMQError, ValueError):
        return False


def protect(socket: zmq.Socket[bytes], address: str, keys: Keys | None, *, server: bool) -> None:
    """Sets the keys on a socket that will bind or connect to `address`, or checks that it needs none.

    tcp needs keys. ipc uses none; a server's socket must lie in a directory that only its owner may enter (made if
    missing).
    """
    if address.startswith("ipc://"):
        if server:
            _private_directory(Path(address.removeprefix("ipc://")).parent)
        return
    if not address.startswith("tcp://"):
        raise InvalidInput(f"address {address!r}: tcp://host:port or ipc:///directory/socket")
    _check_port(address, server=server)
    if keys is None:
        raise InvalidInput(
            f"address {address!r}: tcp needs the job's keys (--key-file; make one with heterps ps keygen)"
        )
    if server:
        socket.curve_server = True
        socket.curve_publickey, socket.curve_secretkey = keys.server_public.encode(), keys.server_secret.encode()
    else:
        socket.curve_serverkey = keys.server_public.encode()
        socket.curve_publickey, socket.curve_secretkey = keys.client_public.encode(), keys.client_secret.encode()


def _check_port(address: str, *, server: bool) -> None:
    """Refuses a tcp address without a host or a port that exists; libzmq takes 99999 for another one."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    known = port.isascii() and port.isdigit() and (0 if server else 1) <= int(port) <= 65_535
    if not host or not (known or (server and port == "*")):
        ports = "1 to 65535, or * for any that is free" if server else "1 to 65535"
        raise InvalidInput(f"address {address!r}: tcp://host:port with a port from {ports}")


def piece_bytes(address: str) -> int:
    """Largest pieces in which arrays travel to or from `address`."""
    return PIECE_BYTES if address.startswith("tcp://") else MAX_FRAME_BYTES


def _private_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = directory.stat().st_mode
    except OSError as error:
        raise InvalidInput(f"directory {directory}: {error.strerror}") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InvalidInput(
            f"directory {directory}: others may enter it (mode {mode & 0o777:o}), and an ipc socket in it has no other "
            f"protection; chmod 700 {directory}, or bind to a socket in a directory of its own"
        )
