"""Keeps connections that are not in use, by the address of their service."""

from __future__ import annotations

import ssl
import threading
from typing import Final

from ocrsvc.client.balancing.address import Address
from ocrsvc.client.transport.connection import Connection, Request, Response
from ocrsvc.client.transport.opening import open_connection, remedy_of
from ocrsvc.client.transport.waits import Exchange
from ocrsvc.errors import Unreachable

KEPT: Final = 32
"""Connections that are kept for each service while they are not in use."""


class ConnectionPool:
    """The connections of one client, for any thread; nobody waits for one.

    Args:
        tls: What certificates are checked with; None where no service is asked by https.
        connect_s: How long one connection may take to come about.
    """

    def __init__(self, tls: ssl.SSLContext | None, connect_s: float) -> None:
        self._tls, self._connect_s = tls, connect_s
        # The garbage collector may end a request that was abandoned while this thread is in here.
        self._lock = threading.RLock()
        self._idle: dict[Address, list[Connection]] = {}
        self._closed = False

    def exchange(self, address: Address, request: Request) -> Exchange[Response]:
        """Send a request to a service over a connection that is kept, or a new one; closing it closes the connection.

        Raises:
            NotConnected: Nothing was sent.
            Unreachable: The connection broke before the response was there.
            ServerError: The response is larger than any of this service.
        """
        connection = self._take(address) or (yield from open_connection(address, self._tls, self._connect_s))
        try:
            response = yield from connection.exchange(request)
        except OSError as error:
            connection.close()
            reason = error.strerror or str(error)
            raise Unreachable(f"{address.url} cannot be reached: {reason}.", remedy_of(str(error))) from error
        except BaseException:
            connection.close()
            raise
        self._give(address, connection)
        return response

    def drop(self, address: Address) -> None:
        """Close what is kept for a service."""
        with self._lock:
            dropped = self._idle.pop(address, [])
        for connection in dropped:
            connection.close()

    def close(self) -> None:
        """Close what is kept, and from now on what is given back."""
        with self._lock:
            self._closed = True
            addresses = list(self._idle)
        for address in addresses:
            self.drop(address)

    def _take(self, address: Address) -> Connection | None:
        while True:
            with self._lock:
                kept = self._idle.get(address)
                connection = kept.pop() if kept else None
            if connection is None or connection.is_idle():
                return connection
            connection.close()

    def _give(self, address: Address, connection: Connection) -> None:
        if connection.reset():
            with self._lock:
                kept = self._idle.setdefault(address, [])
                if not self._closed and len(kept) < KEPT:
                    kept.append(connection)
                    return
        connection.close()
