"""Opens connections: TCP, and TLS on top of it, without blocking.

What a host that is cut off has not acknowledged for some seconds ends the connection, and so does its silence on one
that is only waited on: an answer may take as long as it likes, but the host must be there.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl
from typing import Any, Final

from ocrsvc.client.balancing.address import Address, is_ip
from ocrsvc.client.transport.connection import Connection
from ocrsvc.client.transport.waits import Call, Exchange, Expired, Wait
from ocrsvc.errors import NotConnected

# By the names that the system has for them: the first is Linux's, the second macOS's.
_KEEP_ALIVE: Final = (
    (("TCP_KEEPIDLE", "TCP_KEEPALIVE"), 3),
    (("TCP_KEEPINTVL",), 1),
    (("TCP_KEEPCNT",), 3),
    (("TCP_USER_TIMEOUT",), 6000),
)


def open_connection(address: Address, tls: ssl.SSLContext | None, limit_s: float) -> Exchange[Connection]:
    """A connection to a service.

    Args:
        address: Of the service.
        tls: What its certificate is checked with, if it is asked by https.
        limit_s: Seconds until one must be there, from each address of its name.

    Raises:
        NotConnected: None came about.
    """
    reason: Exception = OSError("its name has no address")
    for family, sockaddr in (yield from _socket_addresses(address)):
        wire = socket.socket(family, socket.SOCK_STREAM)
        try:
            yield from _connect(wire, sockaddr, limit_s)
            if tls is not None and address.scheme == "https":
                wire = tls.wrap_socket(wire, server_hostname=address.name, do_handshake_on_connect=False)
                yield from _shake_hands(wire, limit_s)
            return Connection(wire, address)
        except (OSError, ssl.CertificateError, Expired) as error:
            wire.close()
            reason = error
        except BaseException:
            wire.close()
            raise
    raise NotConnected(f"{address.url} cannot be reached: {_said(reason)}.", remedy_of(str(reason))) from reason


def remedy_of(reason: str) -> str:
    """What to do about a connection that failed for this reason."""
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return "Name the authority of its certificate with ca= (--ca), and the host as the certificate does."
    if "CERTIFICATE_REQUIRED" in reason:
        return "It asks for a certificate of yours: certificate= (--cert)."
    return "Check its address and that it runs."


def _socket_addresses(address: Address) -> Exchange[list[tuple[int, Any]]]:
    """Family and address for a socket, of each address of a host. Raises NotConnected."""
    if is_ip(address.host):
        return _looked_up(address)
    try:
        found: list[tuple[int, Any]] = yield Call(lambda: _looked_up(address))
    except OSError as error:
        raise NotConnected(f"{address.host} is not known: {_said(error)}.", "Check its name.") from error
    return found


def _looked_up(address: Address) -> list[tuple[int, Any]]:
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return [(family, sockaddr) for family, _, _, _, sockaddr in found]


def _connect(wire: socket.socket, sockaddr: Any, limit_s: float) -> Exchange[None]:
    """Raises OSError, Expired."""
    wire.setblocking(False)
    _keep_alive(wire)
    code = wire.connect_ex(sockaddr)
    if code in (errno.EINPROGRESS, errno.EAGAIN):
        yield Wait(wire.fileno(), select.POLLOUT, limit_s)
        code = wire.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))


def _keep_alive(wire: socket.socket) -> None:
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for names, value in _KEEP_ALIVE:
        for name in names:
            if hasattr(socket, name):
                wire.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
                break


def _shake_hands(wire: ssl.SSLSocket, limit_s: float) -> Exchange[None]:
    """Raises OSError, Expired."""
    while True:
        try:
            wire.do_handshake()
        except ssl.SSLWantReadError:
            yield Wait(wire.fileno(), select.POLLIN, limit_s)
        except ssl.SSLWantWriteError:
            yield Wait(wire.fileno(), select.POLLOUT, limit_s)
        else:
            return


def _said(reason: Exception) -> str:
    if isinstance(reason, Expired):
        return "it does not answer"
    return (isinstance(reason, OSError) and reason.strerror) or str(reason) or type(reason).__name__
