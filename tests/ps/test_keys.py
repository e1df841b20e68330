"""Key files, and which addresses need them."""

from __future__ import annotations

import stat

import pytest

from heterps.errors import InvalidInput
from heterps.ps.client import Client
from heterps.ps.keys import Keys
from heterps.ps.server import Server


def test_keys_are_for_their_owner_alone(tmp_path):
    keys = Keys.generate()
    keys.save(tmp_path / "keys")
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o600
    assert Keys.load(tmp_path / "keys") == keys
    assert keys.server_secret not in repr(keys)
    with pytest.raises(InvalidInput, match="exists"):
        keys.save(tmp_path / "keys")
    (tmp_path / "keys").chmod(0o640)
    with pytest.raises(InvalidInput, match="chmod 600"):
        Keys.load(tmp_path / "keys")


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": "heterps.keys/1"}'])
def test_broken_key_files_are_refused_by_name(tmp_path, text):
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(InvalidInput, match=str(path)):
        Keys.load(path)


def test_halves_of_different_pairs_are_refused():
    one, other = Keys.generate(), Keys.generate()
    with pytest.raises(InvalidInput, match="no CURVE key pair"):
        Keys(
            server_public=one.server_public, server_secret=other.server_secret,
            client_public=one.client_public, client_secret=one.client_secret,
        )  # fmt: skip


def test_tcp_needs_keys_and_ipc_a_private_directory(tmp_path):
    with pytest.raises(InvalidInput, match="keys"):
        Server("tcp://127.0.0.1:*")
    with pytest.raises(InvalidInput, match="keys"):
        Client(["tcp://127.0.0.1:5"])
    with pytest.raises(InvalidInput, match="tcp://host:port"):
        Server("udp://127.0.0.1:5", Keys.generate())
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    with pytest.raises(InvalidInput, match="chmod 700"):
        Server(f"ipc://{tmp_path}/open/socket")
    for nonsense in ("tcp://127.0.0.1:99999", "tcp://127.0.0.1", "tcp://:5", "tcp://127.0.0.1:-1", "tcp://127.0.0.1:x"):
        with pytest.raises(InvalidInput, match="port from 1 to 65535"):
            Server(nonsense, Keys.generate())
        with pytest.raises(InvalidInput, match="port from 1 to 65535"):
            Client([nonsense], Keys.generate())
    with pytest.raises(InvalidInput, match="port"):
        Client(["tcp://127.0.0.1:*"], Keys.generate())
    with pytest.raises(InvalidInput, match="cannot connect"):
        Client([f"ipc:///{'long' * 50}"])
    with pytest.raises(InvalidInput, match="an address"):
        Server([])
    with pytest.raises(InvalidInput, match="cannot bind"):
        Server("tcp://nowhere.invalid:5555", Keys.generate())
