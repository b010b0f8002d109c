"""Outgoing connections to a URL's host: resolve its name once, check every address, connect to a checked one.

DNS rebinding, a name whose address changes after the check, therefore has no effect. All waiting has a deadline.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Final, TypeVar

from ocrsvc.connections.policy import LookUp, OutgoingPolicy
from ocrsvc.connections.url import IpAddress, Url
from ocrsvc.errors import DeadlineExceeded, ResourcesExhausted, UrlUnavailable
from ocrsvc.results import Check, no_check

T = TypeVar("T")

LOGGER: Final = logging.getLogger("ocrsvc.connections")

# Limits the threads that a hanging resolver can occupy.
_PERMITS: Final = threading.BoundedSemaphore(16)
_MAX_ADDRESSES: Final = 4
_STEP_S: Final = 0.25


class Deadline:
    """The time limit of one exchange with its redirects: `limit_s` is the caller's, `max_s` the operator's.

    `check` is called while waiting, and raises to end the exchange, such as ClientGone.
    """

    def __init__(self, limit_s: float, max_s: float, check: Check = no_check) -> None:
        self._check = check
        self._end_s = time.monotonic() + min(limit_s, max_s)
        self._is_callers = limit_s <= max_s

    def step_s(self) -> float:
        """How long to wait at most before the next call. Raises DeadlineExceeded, UrlUnavailable, and as `check`."""
        self._check()
        left_s = self._end_s - time.monotonic()
        if left_s > 0:
            return min(left_s, _STEP_S)
        if self._is_callers:
            raise DeadlineExceeded(
                "The deadline passed while the URL was fetched.",
                "Allow the request more time, or send the file itself.",
            )
        raise UrlUnavailable("The URL could not be fetched in time.", "Send the file itself, or try again later.")

    def repeat(self, wire: socket.socket, act: Callable[[], T]) -> T:
        """Repeat a socket call until it does not time out; returns its result. Raises as `step_s`, and OSError."""
        while True:
            wire.settimeout(self.step_s())
            try:
                return act()
            except TimeoutError:
                continue


def connect(url: Url, policy: OutgoingPolicy, deadline: Deadline) -> socket.socket:
    """Connect to the host of a URL, with TLS for https.

    Raises UrlRefused for a host that is not allowed, UrlUnavailable if its addresses are not allowed or not reachable
    (only the log says which), ResourcesExhausted for too many look-ups, and as `Deadline.step_s`.
    """
    policy.check_host(url)
    addresses = [url.address] if url.address is not None else _look_up(url, policy.look_up, deadline)
    if not addresses or not all(map(policy.allows, addresses)):
        raise unavailable(url, "it has no address, or one that is not public")
    reason: OSError | None = None
    for address in addresses[:_MAX_ADDRESSES]:
        try:
            return _connect(address, url, policy, deadline)
        except OSError as error:
            reason = error
    raise unavailable(url, str(reason)) from reason


def unavailable(url: Url, reason: str) -> UrlUnavailable:
    """The same error for all reasons, as a reason could reveal internal networks; it is logged instead."""
    LOGGER.info("not reached: host=%s port=%s: %s", url.host, url.port, reason)
    return UrlUnavailable("The host of the URL cannot be reached.", "Check the address, or send the file itself.")


def _look_up(url: Url, look_up: LookUp, deadline: Deadline) -> list[IpAddress]:
    """Resolve the host's addresses. Raises as `connect`."""
    future = _begin_look_up(look_up, url.host)
    while True:
        try:
            return future.result(deadline.step_s())
        except TimeoutError:
            continue
        except (OSError, UnicodeError) as error:
            raise unavailable(url, f"its name cannot be resolved: {error}") from error


def _begin_look_up(look_up: LookUp, host: str) -> Future[list[IpAddress]]:
    """Resolve a host name in a new thread, as resolvers cannot be interrupted. Raises ResourcesExhausted."""
    if not _PERMITS.acquire(blocking=False):
        raise ResourcesExhausted("Too many host names are being resolved.", "Send the request again in a moment.")
    future: Future[list[IpAddress]] = Future()

    def run() -> None:
        try:
            future.set_result(look_up(host))
        except BaseException as error:  # noqa: BLE001  raised in the waiting thread
            future.set_exception(error)
        finally:
            _PERMITS.release()

    try:
        threading.Thread(target=run, name="look-up", daemon=True).start()
    except RuntimeError as error:
        _PERMITS.release()
        raise ResourcesExhausted("No thread is left to resolve a name.", "Send the request again later.") from error
    return future


def _connect(address: IpAddress, url: Url, policy: OutgoingPolicy, deadline: Deadline) -> socket.socket:
    """Connect to this address, with TLS for https. Raises OSError, UrlUnavailable, and as `Deadline.step_s`."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with ExitStack() as unfinished:
        wire = unfinished.enter_context(socket.socket(family, socket.SOCK_STREAM))
        wire.setblocking(False)
        code = wire.connect_ex((str(address), url.port))
        if code in (errno.EINPROGRESS, errno.EAGAIN):
            poll = select.poll()
            poll.register(wire, select.POLLOUT)
            while not poll.poll(1000 * deadline.step_s()):
                pass
            code = wire.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        if url.scheme == "https":
            wire = secured = policy.tls().wrap_socket(wire, server_hostname=url.host, do_handshake_on_connect=False)
            unfinished.enter_context(secured)
            try:
                deadline.repeat(secured, secured.do_handshake)
            except ssl.CertificateError as error:
                LOGGER.info("not reached: host=%s port=%s: %s", url.host, url.port, error)
                raise UrlUnavailable(
                    "The certificate of the URL's host is not valid.", "Check the address, or send the file itself."
                ) from error
        unfinished.pop_all()
        return wire
