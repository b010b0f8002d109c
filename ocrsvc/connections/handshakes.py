"""The handshakes of one event loop: begun, continued while there is time, counted, and refusals logged."""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from typing import Final

from ocrsvc.connections.certificates import key_of, keys_by_name, names_of
from ocrsvc.connections.tls_socket import NotTls, TlsSocket
from ocrsvc.telemetry.metrics import TLS_HANDSHAKES
from ocrsvc.telemetry.metrics_store import WorkerMetrics

TURN_S: Final = 0.005
"""How long the handshakes may take of one turn of a loop: an RSA key costs a millisecond for each."""

_LOG_INTERVAL_S: Final = 10.0


class Handshakes:
    """For the loop's thread. `names` is the setting tls_names."""

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        names: Iterable[str],
        metrics: WorkerMetrics,
        log: logging.Logger,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._context, self._keys = context, keys_by_name(names)
        self._metrics, self._log = metrics, log
        self._clock, self._wall_clock = clock, wall_clock
        self._left_s = TURN_S
        self._quiet_until_s = -_LOG_INTERVAL_S

    def begin(self, sock: socket.socket) -> TlsSocket:
        """A socket for a new connection, with the certificate that these get."""
        return TlsSocket(sock, self._context())

    def begin_turn(self) -> None:
        """The loop has served every connection once."""
        self._left_s = TURN_S

    def go_on(self, sock: TlsSocket, client: object) -> bool:
        """Continue a handshake, unless this turn's time is used up; whether it is over. Raises as the socket's."""
        if self._left_s <= 0:
            return False
        began_s = self._clock()
        try:
            if not sock.handshake():
                return False
            certificate = sock.peer_certificate()
            expired = certificate and ssl.cert_time_to_seconds(certificate["notAfter"]) <= self._wall_clock()
            if sock.is_resumed and expired:
                raise ssl.SSLError("the certificate of a resumed session has expired")
            sock.client_name = key_of(names_of(certificate), self._keys)
        except OSError as error:
            self._note_failure(sock, error, client)
            raise
        finally:
            self._left_s -= self._clock() - began_s
        self._metrics.count(TLS_HANDSHAKES, "ok")
        return True

    def note_end(self, sock: TlsSocket) -> None:
        """A connection ends; count it if its client has not come to the end of its handshake."""
        if not sock.established and not sock.refused:
            self._metrics.count(TLS_HANDSHAKES, "unfinished")

    def _note_failure(self, sock: TlsSocket, error: OSError, client: object) -> None:
        if not isinstance(error, NotTls | ssl.SSLError):
            # The client has gone: counted when the connection ends.
            return
        sock.refused = True
        self._metrics.count(TLS_HANDSHAKES, "not_tls" if isinstance(error, NotTls) else "refused")
        now_s = self._clock()
        if now_s >= self._quiet_until_s:
            self._quiet_until_s = now_s + _LOG_INTERVAL_S
            reason = getattr(error, "verify_message", "") or getattr(error, "reason", "") or str(error)
            self._log.info("A TLS handshake failed: %s, client %s", str(reason).lower().replace("_", " "), client)
