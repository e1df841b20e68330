"""The store across processes and hosts: servers hold shards of tables, clients use them like local ones."""

from __future__ import annotations

from heterps.ps.client import Client
from heterps.ps.errors import InvalidRequest, ServerError, ServerTimeout, WireError
from heterps.ps.keys import Keys
from heterps.ps.remote import RemoteTable
from heterps.ps.server import Server

__all__ = ["Client", "InvalidRequest", "Keys", "RemoteTable", "Server", "ServerError", "ServerTimeout", "WireError"]
