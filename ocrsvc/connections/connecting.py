"""Connects to a URL's host: looks its name up, checks every address, and connects to one of these and to no other.

The name is looked up once. What was checked is what is connected to, so that a name whose address changes in between
(DNS rebinding) leads nowhere else.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import ssl
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import Final

from ocrsvc.connections.deadline import Deadline
from ocrsvc.connections.policy import LookUp, OutgoingPolicy
from ocrsvc.connections.url import IpAddress, Url
from ocrsvc.errors import ResourcesExhausted, UrlUnavailable

LOGGER: Final = logging.getLogger("ocrsvc.connections")

# A resolver that hangs takes a thread for each name, and no more than these.
_LOOK_UPS: Final = 16
_PERMITS: Final = threading.BoundedSemaphore(_LOOK_UPS)
_MOST_ADDRESSES: Final = 4


def connect(url: Url, policy: OutgoingPolicy, deadline: Deadline) -> socket.socket:
    """A connection to the host of a URL, with TLS for https.

    Raises:
        UrlRefused: The host is not on the list.
        UrlUnavailable: No connection came about, or none may: which of them is in the log alone.
        ResourcesExhausted: Too many names are looked up already.
        OcrsvcError: As the deadline.
    """
    policy.check_host(url)
    addresses = _addresses(url, policy, deadline)
    if not addresses or not all(map(policy.allows, addresses)):
        raise unavailable(url, "it has no address, or one that is not public")
    reason: OSError | None = None
    for address in addresses[:_MOST_ADDRESSES]:
        try:
            return _connect(address, url, policy, deadline)
        except OSError as error:
            reason = error
    raise unavailable(url, str(reason)) from reason


def unavailable(url: Url, reason: str) -> UrlUnavailable:
    """The one answer to everything that keeps a host from being reached: it tells nothing of networks behind it."""
    LOGGER.info("not reached: host=%s port=%s: %s", url.host, url.port, reason)
    return UrlUnavailable("The host of the URL cannot be reached.", "Check the address, or send the file itself.")


def _addresses(url: Url, policy: OutgoingPolicy, deadline: Deadline) -> list[IpAddress]:
    """Those of the host, looked up once. Raises as `connect`."""
    if url.address is not None:
        return [url.address]
    found = _begin_look_up(policy.look_up, url.host)
    while True:
        try:
            return found.result(deadline.step_s())
        except NotYet:
            continue
        except (OSError, UnicodeError) as error:
            raise unavailable(url, f"its name is not known: {error}") from error


def _begin_look_up(look_up: LookUp, host: str) -> Future[list[IpAddress]]:
    """On a thread of its own, for no resolver can be interrupted. Raises ResourcesExhausted."""
    if not _PERMITS.acquire(blocking=False):
        raise ResourcesExhausted("Too many names of hosts are being looked up.", "Send the request again in a moment.")
    found: Future[list[IpAddress]] = Future()

    def run() -> None:
        try:
            found.set_result(look_up(host))
        except BaseException as error:  # noqa: BLE001  whoever waits raises it
            found.set_exception(error)
        finally:
            _PERMITS.release()

    try:
        threading.Thread(target=run, name="look-up", daemon=True).start()
    except RuntimeError as error:
        _PERMITS.release()
        raise ResourcesExhausted("No thread is left to look up a name.", "Send the request again later.") from error
    return found


def _connect(address: IpAddress, url: Url, policy: OutgoingPolicy, deadline: Deadline) -> socket.socket:
    """A connection to this address. Raises OSError, and as the deadline."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    wire = socket.socket(family, socket.SOCK_STREAM)
    try:
        wire.setblocking(False)
        code = wire.connect_ex((str(address), url.port))
        if code in (errno.EINPROGRESS, errno.EAGAIN):
            deadline.wait_until_writable(wire)
            code = wire.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        return wire if url.scheme == "http" else _with_tls(wire, url, policy.tls(), deadline)
    except BaseException:
        wire.close()
        raise


def _with_tls(wire: socket.socket, url: Url, context: ssl.SSLContext, deadline: Deadline) -> socket.socket:
    """TLS with a certificate for the URL's host, whatever address was connected to. Raises OSError."""
    secured = context.wrap_socket(wire, server_hostname=url.host, do_handshake_on_connect=False)
    try:
        deadline.repeat(secured, secured.do_handshake)
    except ssl.CertificateError as error:
        secured.close()
        LOGGER.info("not reached: host=%s port=%s: %s", url.host, url.port, error)
        raise UrlUnavailable(
            "The certificate of the URL's host is not valid.", "Check the address, or send the file itself."
        ) from error
    except BaseException:
        secured.close()
        raise
    return secured
