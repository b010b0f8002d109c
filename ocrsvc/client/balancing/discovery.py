"""Looks up the names of services: before the first request, and now and then in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from ocrsvc.client.balancing.address import Address, Services
from ocrsvc.client.balancing.balancer import Balancer
from ocrsvc.errors import NotConnected


class Discovery:
    """Tells the balancer which addresses the names have; for any thread.

    A name that cannot be looked up keeps the addresses that it had.

    Args:
        services: Those with an address, and the names.
        balancer: That is told.
        refresh_s: How often names are looked up again.
        clock: Seconds, from any beginning.
        resolve: Gives the IP addresses of a name, for connections to a port; raises OSError.
    """

    def __init__(
        self,
        services: Services,
        balancer: Balancer,
        refresh_s: float,
        clock: Callable[[], float],
        resolve: Callable[[str, int], Sequence[str]],
    ) -> None:
        self._services, self._balancer, self._refresh_s = services, balancer, refresh_s
        self._clock, self._resolve = clock, resolve
        self._lock = threading.Lock()
        self._found: dict[Address, tuple[Address, ...]] = {}
        self._begun_s = float("-inf")
        self._thread: threading.Thread | None = None

    def needed(self) -> Callable[[], None] | None:
        """What has to be called before a request can be sent, and may block; None where addresses are known."""
        if not self._services.names or self._services.fixed or self._found:
            self.refresh(self._refresh_s)
            return None
        return self.look_up_first

    def refresh(self, older_than_s: float) -> None:
        """Have the names looked up in the background, if the last time was so many seconds ago."""
        if not self._services.names or self._clock() - self._begun_s < older_than_s:
            return
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return
            self._begun_s = self._clock()
            self._thread = threading.Thread(target=self._look_up, name="ocrsvc-client-dns", daemon=True)
            self._thread.start()

    def look_up_first(self) -> None:
        """Look up every name, now. Raises NotConnected when none has an address."""
        with self._lock:
            if self._found:
                return
            self._begun_s = self._clock()
            reason = self._look_up()
            if not self._found:
                names = ", ".join(each.name for each in self._services.names)
                raise NotConnected(f"No address is known for {names}: {reason}.", "Check the name.")

    def wait(self, timeout_s: float) -> None:
        """Wait for a look-up that is under way."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _look_up(self) -> str:
        """Why a name has no address, if one has none."""
        reason = ""
        for name in self._services.names:
            try:
                hosts = self._resolve(name.host, name.port)
            except OSError as error:
                reason = error.strerror or str(error)
                continue
            if hosts:
                self._found = self._found | {name: tuple(name.at(host) for host in hosts)}
        if self._found:
            looked_up = (address for addresses in self._found.values() for address in addresses)
            self._balancer.replace(dict.fromkeys([*self._services.fixed, *looked_up]))
        return reason or "it has none"
