"""What goes wrong between clients and servers."""

from __future__ import annotations

from heterps.errors import HeterPSError, InvalidInput


class WireError(HeterPSError):
    """A message that does not follow the wire format."""


class ServerError(HeterPSError):
    """A server answered a request with an error."""


class InvalidRequest(ServerError, InvalidInput):
    """A server found a request invalid: the same rule that a local table states as an `InvalidInput`."""

    exit_code = 2


class ServerTimeout(HeterPSError, TimeoutError):
    """A server gave no answer within the time and the retries allowed; the request may have been applied."""
