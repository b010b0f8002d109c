"""Looks up the names of services: before the first request, and now and then beside the requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain

from ocrsvc.client.balancing.address import Address
from ocrsvc.client.balancing.balancer import Balancer
from ocrsvc.errors import NotConnected


class NameLookup:
    """Gives the balancer the addresses of the names; one that cannot be looked up keeps those that it had.

    `resolve` gives the IP addresses of a name, for connections to a port; it may block, and raises OSError.
    """

    def __init__(
        self,
        services: Sequence[Address],
        balancer: Balancer,
        refresh_s: float,
        clock: Callable[[], float],
        resolve: Callable[[str, int], Sequence[str]],
    ) -> None:
        self._names = [each for each in services if each.is_looked_up]
        self._found = {each: [each] for each in services if not each.is_looked_up}
        self._balancer, self._refresh_s = balancer, refresh_s
        self._clock, self._resolve = clock, resolve
        self._begun_s = float("-inf")
        self._running: asyncio.Task[None] | None = None
        self._reason = "it has none"

    async def ready(self, most_s: float) -> None:
        """Have names looked up that are due, and wait for it where no address is known. Raises NotConnected."""
        self.refresh(self._refresh_s if self._found else 0.0)
        if self._running is not None and not self._found:
            # The look-up goes on when its caller gives up.
            await asyncio.wait([self._running], timeout=most_s)
        if not self._found:
            names = ", ".join(each.name for each in self._names)
            raise NotConnected(f"No address is known for {names}: {self._reason}.", "Check the name.")

    def refresh(self, older_than_s: float) -> None:
        """Begin to look names up, if the last time was so many seconds ago."""
        is_running = self._running is not None and not self._running.done()
        if self._names and not is_running and self._clock() - self._begun_s >= older_than_s:
            self._begun_s = self._clock()
            self._running = asyncio.create_task(self._look_up())

    async def _look_up(self) -> None:
        for name in self._names:
            try:
                hosts = await asyncio.to_thread(self._resolve, name.host, name.port)
            except (OSError, UnicodeError) as error:
                self._reason = getattr(error, "strerror", None) or str(error)
                continue
            if hosts:
                self._found[name] = [name.at(host) for host in hosts]
        if self._found:
            self._balancer.replace(dict.fromkeys(chain.from_iterable(self._found.values())))
