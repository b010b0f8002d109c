"""Sends requests to several services: each to the one with the least in flight, on to another when that one fails."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ssl import SSLContext
from typing import Final, TypeVar
from urllib.parse import urlencode

import h11

from ocrsvc.client.balancing.address import Services
from ocrsvc.client.balancing.attempts import Attempts
from ocrsvc.client.balancing.balancer import Balancer, HostState
from ocrsvc.client.balancing.discovery import Discovery
from ocrsvc.client.balancing.hedging import Hedging
from ocrsvc.client.balancing.rules import Rules
from ocrsvc.client.model_list import MODELS_PATH, ModelList, model_list_of
from ocrsvc.client.request import PATH, Options, headers_of, query_of
from ocrsvc.client.request_steps import RequestSteps, Shared
from ocrsvc.client.response import Answer, answer_of
from ocrsvc.client.transport.connection import Request, Response
from ocrsvc.client.transport.pool import ConnectionPool
from ocrsvc.client.transport.waits import Steps
from ocrsvc.errors import BadOption

T = TypeVar("T")

_AGENT: Final = {"User-Agent": "ocrsvc-client"}


def addresses_of_name(name: str, port: int) -> list[str]:
    """The IP addresses of a name, by the system's resolver. Raises OSError."""
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What balancing takes from outside.

    Attributes:
        clock: Seconds, from any beginning.
        chance: Gives random numbers in [0, 1).
        resolve: Gives the IP addresses of a name, for connections to a port; raises OSError.
    """

    clock: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.random
    resolve: Callable[[str, int], Sequence[str]] = addresses_of_name


SURROUNDINGS: Final = Surroundings()
"""This machine's."""


class SeveralServices:
    """Several services that give the same answers; for any thread, or any task of one event loop.

    What it gives are steps, which `transport.runners` runs.

    Args:
        services: Which.
        headers: Sent with every request.
        tls: What certificates are checked with; None where no service is asked by https.
        rules: How requests are balanced.
        surroundings: Time, chance, and the resolver.

    Attributes:
        headers: Sent with every request, in their usual spelling.

    Raises:
        BadOption: A header cannot be sent.
    """

    def __init__(
        self,
        services: Services,
        headers: Mapping[str, str],
        tls: SSLContext | None,
        rules: Rules,
        surroundings: Surroundings,
    ) -> None:
        self.headers: Final = _AGENT | checked_headers(headers)
        self._rules, self._around = rules, surroundings
        balancer = Balancer(services.fixed, rules, surroundings.clock, surroundings.chance)
        discovery = Discovery(services, balancer, rules.refresh_s, surroundings.clock, surroundings.resolve)
        pool = ConnectionPool(tls, rules.connect_s)
        self._shared = Shared(balancer, discovery, Hedging(rules, surroundings.clock), pool, surroundings.clock)

    def read(self, body: bytes, options: Options, timeout_s: float) -> Steps[Answer]:
        """The reading of an image or document; arguments and errors as of `Client.read`."""
        target = f"{PATH}?{urlencode(query)}" if (query := query_of(options)) else PATH

        def request(left_s: float) -> Request:
            return Request("POST", target, self.headers | headers_of(left_s), body)

        return self.ask(request, lambda came: answer_of(came.status, came.retry_after, came.body), timeout_s)

    def models(self, timeout_s: float) -> Steps[ModelList]:
        """The models that a service has; errors as of `Client.read`."""
        request = Request("GET", MODELS_PATH, self.headers)
        return self.ask(
            lambda _: request, lambda came: model_list_of(came.status, came.retry_after, came.body), timeout_s
        )

    def ask(
        self,
        make_request: Callable[[float], Request],
        parse: Callable[[Response], T],
        timeout_s: float,
        parts: int = 1,
    ) -> Steps[T]:
        """Send a request until a service answers it.

        Args:
            make_request: The request, for so many seconds that are left.
            parse: What the response holds; raises OcrsvcError.
            timeout_s: How long it may take, everything included.
            parts: How many times as long as others it may take before it is sent to a second service.

        Raises:
            OcrsvcError: As `Client.read`.
        """
        around = self._around
        attempts = Attempts(self._shared.balancer, timeout_s, self._rules, around.clock, around.chance)
        return RequestSteps(self._shared, attempts, make_request, parse, parts).steps()

    def capacity(self) -> int:
        """How many requests the services take at once, as far as is known."""
        return self._shared.balancer.capacity()

    def states(self) -> tuple[HostState, ...]:
        """How each service is now."""
        return self._shared.balancer.states()

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._shared.pool.close()


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers in their usual spelling, so that none is sent twice. Raises BadOption, without their values."""
    for name, value in headers.items():
        try:
            h11.Request(method="GET", target="/", headers=[("Host", "x"), ("X-" + name, value)])
        except (h11.LocalProtocolError, UnicodeEncodeError) as error:
            raise BadOption(f"The header {name!r} cannot be sent.", "Use visible ASCII on one line.") from error
    return {name.title(): value for name, value in headers.items()}
