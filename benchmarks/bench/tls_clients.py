"""TLS clients that complete handshakes, stop halfway, or send requests continuously."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Self

from bench.service import Service, connect

_LIMIT_S = 30.0


def client_context(version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    """A context without verification, which would only cost the client; `version` fixes the TLS version."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if version is not None:
        context.minimum_version = context.maximum_version = version
    return context


def shake_hands(address: tuple[str, int], version: int, seconds: float) -> int:
    """Number of handshakes that one client completes, each on a new connection."""
    context, until_s, count = client_context(ssl.TLSVersion(version)), time.monotonic() + seconds, 0
    while time.monotonic() < until_s:
        with socket.create_connection(address, timeout=_LIMIT_S) as wire, context.wrap_socket(wire):
            count += 1
    return count


def handshakes(service: Service, version: ssl.TLSVersion, clients: int, seconds: float) -> int:
    """Total number of handshakes of `clients` client processes."""
    with ProcessPoolExecutor(clients, mp_context=get_context("spawn")) as pool:
        # Start all processes before the measurement.
        list(pool.map(time.sleep, [0.2] * clients))
        address = (service.host, service.port)
        made = [pool.submit(shake_hands, address, int(version), seconds) for _ in range(clients)]
        return sum(one.result() for one in made)


@contextlib.contextmanager
def half_handshakes(service: Service, count: int) -> Iterator[None]:
    """Keep `count` handshakes incomplete: silent, after half a ClientHello, or after a whole one without a reply."""
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        client_context().wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    hello = outgoing.read()
    with contextlib.ExitStack() as stack:
        for number in range(count):
            wire = stack.enter_context(socket.create_connection((service.host, service.port), timeout=_LIMIT_S))
            wire.sendall((b"", hello[:100], hello)[number % 3])
        yield


def latencies_s(service: Service, requests: int) -> list[float]:
    """Seconds of each of `requests` health checks in a row on a kept-alive connection."""
    connection, found = connect(service.url, _LIMIT_S), []
    for _ in range(requests):
        began_s = time.perf_counter()
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        found.append(time.perf_counter() - began_s)
    connection.close()
    return found


class LoadClients:
    """Clients that send requests until the block ends, half of them on kept-alive and half on new connections.

    Attributes:
        answers: Number of successful answers.
        failures: What went wrong, as text.
    """

    def __init__(self, service: Service, page: bytes, clients: int) -> None:
        self.answers = 0
        self.failures: list[str] = []
        self._service = service
        self._page = page
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number % 2 == 0,)) for number in range(clients)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, keep: bool) -> None:  # noqa: FBT001  a thread's argument
        connection = connect(self._service.url, _LIMIT_S)
        while not self._done.is_set():
            try:
                connection.request("POST", "/v1/ocr", self._page)
                response = connection.getresponse()
                response.read()
                if response.status == http.client.OK:
                    self.answers += 1
                else:
                    self.failures.append(str(response.status))
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                keep_this = False
            else:
                keep_this = keep
            if not keep_this:
                connection.close()
        connection.close()
