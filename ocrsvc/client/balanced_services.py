"""Several services as a client asks them: from a thread that waits, and from tasks of an event loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ssl import SSLContext

from httpx import create_ssl_context

from ocrsvc.client.balancing.address import services_of
from ocrsvc.client.balancing.balancer import HostState
from ocrsvc.client.balancing.changes import Left
from ocrsvc.client.balancing.rules import Rules
from ocrsvc.client.model_list import ModelList
from ocrsvc.client.request import Options
from ocrsvc.client.response import Answer
from ocrsvc.client.several_services import SURROUNDINGS, SeveralServices, Surroundings
from ocrsvc.client.transport.runners import run, run_async


class BalancedServices:
    """Several services; for any thread. Arguments and errors are those of `open_services`."""

    def __init__(
        self,
        urls: str | Sequence[str],
        headers: Mapping[str, str],
        tls: SSLContext | None,
        rules: Rules,
        surroundings: Surroundings = SURROUNDINGS,
    ) -> None:
        self._several = open_services(urls, headers, tls, rules, surroundings)

    def read(self, body: bytes, options: Options, timeout_s: float, left: Left) -> Answer:
        """As `Client.read`; no pause any more once nobody waits."""
        return run(self._several.read(body, options, timeout_s), left)

    def models(self, timeout_s: float) -> ModelList:
        """As `Client.models`."""
        return run(self._several.models(timeout_s), Left())

    def states(self) -> tuple[HostState, ...]:
        """How each is now."""
        return self._several.states()

    def close(self) -> None:
        """Close the connections."""
        self._several.close()


class AsyncBalancedServices:
    """The same for tasks of an event loop."""

    def __init__(
        self,
        urls: str | Sequence[str],
        headers: Mapping[str, str],
        tls: SSLContext | None,
        rules: Rules,
        surroundings: Surroundings = SURROUNDINGS,
    ) -> None:
        self._several = open_services(urls, headers, tls, rules, surroundings)

    async def read(self, body: bytes, options: Options, timeout_s: float) -> Answer:
        """As `Client.read`."""
        return await run_async(self._several.read(body, options, timeout_s))

    async def models(self, timeout_s: float) -> ModelList:
        """As `Client.models`."""
        return await run_async(self._several.models(timeout_s))

    def states(self) -> tuple[HostState, ...]:
        """How each is now."""
        return self._several.states()

    async def close(self) -> None:
        """Close the connections."""
        self._several.close()


def open_services(
    urls: str | Sequence[str],
    headers: Mapping[str, str],
    tls: SSLContext | None,
    rules: Rules,
    surroundings: Surroundings = SURROUNDINGS,
) -> SeveralServices:
    """The services of these addresses, to be closed.

    Args:
        urls: http://host:port, or dns+http://name:port for all addresses of a name; https as well.
        headers, rules, surroundings: As of SeveralServices.
        tls: What certificates are checked with; None is as httpx does it.

    Raises:
        BadOption: An address, or a header, cannot be one.
    """
    services = services_of(urls)
    secure = any(each.scheme == "https" for each in (*services.fixed, *services.names))
    # Reading the authorities takes some milliseconds.
    return SeveralServices(services, headers, tls or create_ssl_context() if secure else None, rules, surroundings)
