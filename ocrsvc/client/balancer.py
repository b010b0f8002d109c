"""Sends each request to the service with the fewest requests in flight relative to its capacity."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ocrsvc.client.address import Address
from ocrsvc.errors import Refused

Clock = Callable[[], float]

NEVER: Final = float("-inf")
# Time after a refusal or timeout during which a service's concurrency limit does not grow.
_GROW_AGAIN_S: Final = 30.0
# Several timeouts within this many seconds halve a service's concurrency limit only once.
_SAME_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Rules:
    """A client's rules for balancing and retries. An ejected service gets no requests for a while.

    Attributes:
        connect_s: Time limit for opening a connection.
        patience_s: How long a request is retried while no service is reachable, at most until its deadline.
        failures: Consecutive failures that eject a service; a single failed connection ejects it too.
        first_ejection_s: Length of the first ejection, which doubles each time a probe fails.
        longest_ejection_s: Maximum length of an ejection.
        at_once: Assumed capacity of a service in concurrent requests, until a refusal or timeout lowers it.
        refresh_s: Interval of DNS lookups.
    """

    connect_s: float = 2.0
    patience_s: float = 10.0
    failures: int = 3
    first_ejection_s: float = 1.0
    longest_ejection_s: float = 30.0
    at_once: int = 16
    refresh_s: float = 30.0


class Outcome(Enum):
    """How a request ended, which decides whether its service is ejected."""

    ANSWERED = "answered"
    NOT_CONNECTED = "not connected"
    BROKEN = "broken"
    SILENT = "silent"
    FAULTY = "faulty"
    UNKNOWN = "unknown"


@dataclass(slots=True, eq=False)
class Host:
    """One service and its state. Times are those of the balancer's clock.

    Attributes:
        at_once: Estimated limit of concurrent requests, rounded down when it is applied.
        probing: Whether a request is testing it after an ejection.
        more_s: Time from which `at_once` may grow again.
        failures: Number of consecutive failures.
        ejection_s: Length of its last ejection; 0 again once it has worked for that long.
        ejected_until_s: Time from which a request may probe it; None unless it is ejected.
    """

    address: Address
    at_once: float
    in_flight: int = 0
    probing: bool = False
    refusal: Refused | None = None
    refused_until_s: float = NEVER
    answered_s: float = NEVER
    more_s: float = NEVER
    failures: int = 0
    ejected_until_s: float | None = None
    ejection_s: float = 0.0
    returned_s: float = 0.0

    @property
    def is_ejected(self) -> bool:
        """Whether the service is ejected."""
        return self.ejected_until_s is not None

    def is_free(self, now_s: float) -> bool:
        """Whether the service may get a request now: neither ejected nor refusing. Ignores its concurrency limit."""
        may_ask = self.ejected_until_s is None or (now_s >= self.ejected_until_s and not self.probing)
        return may_ask and now_s >= self.refused_until_s

    def state(self, now_s: float) -> str:
        """The state for display: open, refusing or ejected."""
        return "ejected" if self.is_ejected else "refusing" if now_s < self.refused_until_s else "open"

    def note_answer(self, now_s: float, max_at_once: int) -> None:
        """Record an answer; if the service is at its concurrency limit, raise the limit slightly."""
        self.answered_s = now_s
        if self.in_flight + 1 >= int(self.at_once) < max_at_once and now_s >= self.more_s:
            self.at_once += 1 / self.at_once

    def note_late(self, now_s: float) -> None:
        """Record a timeout, perhaps due to overload: halve the limit, at most once in five seconds."""
        if now_s >= self.more_s - _GROW_AGAIN_S + _SAME_TIMEOUT_S and 2 * (self.in_flight + 1) >= int(self.at_once):
            self.at_once, self.more_s = max(1, self.at_once // 2), now_s + _GROW_AGAIN_S

    def note_refusal(self, refusal: Refused, now_s: float, wait_s: float) -> None:
        """Record a refusal: pause for `wait_s`, and lower the limit to the number of other requests in flight."""
        self.refused_until_s, self.refusal = max(self.refused_until_s, now_s + wait_s), refusal
        self.at_once, self.more_s = max(1, min(int(self.at_once), self.in_flight - 1)), now_s + _GROW_AGAIN_S

    def judge(self, outcome: Outcome, rules: Rules, now_s: float, chance: float, *, probe: bool) -> None:
        """Decide from a finished request whether to eject or readmit the service; `probe` if it was a probe.

        `chance` in [0, 1) lengthens the ejection, so that clients that ejected it together do not return together.
        """
        if outcome is Outcome.ANSWERED:
            self._recover(now_s)
        # Failures of requests that were in flight when the service was ejected do not count again.
        elif outcome is not Outcome.UNKNOWN and (probe or not self.is_ejected):
            self.failures = rules.failures if outcome is Outcome.NOT_CONNECTED else self.failures + 1
            if probe or self.failures >= rules.failures:
                self._eject(rules, now_s, chance)

    def _recover(self, now_s: float) -> None:
        self.failures = 0
        if self.is_ejected:
            self.ejected_until_s, self.returned_s = None, now_s
        elif now_s - self.returned_s > self.ejection_s:
            self.ejection_s = 0.0

    def _eject(self, rules: Rules, now_s: float, chance: float) -> None:
        self.ejection_s = min(rules.longest_ejection_s, 2 * self.ejection_s or rules.first_ejection_s)
        self.ejected_until_s = now_s + self.ejection_s * (1 + chance / 4)
        self.failures = 0


@dataclass(frozen=True, slots=True)
class Place:
    """One request's slot at a service, to be released; `probe` says whether the request tests an ejected service."""

    host: Host
    probe: bool
    began_s: float


@dataclass(frozen=True, slots=True)
class HostState:
    """A service's state for display: open, refusing or ejected."""

    url: str
    state: str
    in_flight: int


class Balancer:
    """The services of one client, for tasks of one event loop; any thread may call `states` and `capacity`.

    `clock` returns monotonic seconds, `chance` random numbers in [0, 1).
    """

    def __init__(self, addresses: Iterable[Address], rules: Rules, clock: Clock, chance: Clock) -> None:
        self._rules, self._clock, self._chance = rules, clock, chance
        self._hosts = {address: Host(address, rules.at_once) for address in addresses}
        self._waiting: deque[asyncio.Event] = deque()

    def replace(self, addresses: Iterable[Address]) -> None:
        """Replace the list of services; services in both lists keep their state."""
        known, at_once = self._hosts, self._rules.at_once
        self._hosts = {address: known.get(address) or Host(address, at_once) for address in addresses}
        self._wake_waiting()

    def take(self, avoid: Collection[Address] = (), *, ejected: bool = False) -> Place | None:
        """Take a slot at the best service, to be released with `end` or `refuse`; None if no service has a slot.

        With `ejected`, if all services are ejected, probe early the service whose ejection ends first.
        """
        now_s = self._clock()
        hosts = [host for host in self._hosts.values() if host.address not in avoid]
        free = [host for host in hosts if host.is_free(now_s) and self._has_room(host)]
        if not free and ejected:
            free = _first_to_return(hosts)
        if not free:
            return None
        # Prefer a service that is due for a probe.
        host = min(free, key=lambda each: (not each.is_ejected, each.in_flight / int(each.at_once), self._chance()))
        host.in_flight += 1
        host.probing = probe = host.is_ejected
        return Place(host, probe, now_s)

    def end(self, place: Place, outcome: Outcome) -> None:
        """Release a slot, and update its service's state by the outcome."""
        host = place.host
        host.in_flight -= 1
        if place.probe:
            host.probing = False
        if outcome is Outcome.ANSWERED:
            host.note_answer(self._clock(), self._rules.at_once)
        if outcome is Outcome.SILENT:
            host.note_late(self._clock())
            outcome = outcome if self._is_silent_alone(place) else Outcome.UNKNOWN
        self._judge(host, outcome, probe=place.probe)
        self._wake_waiting()

    def refuse(self, place: Place, refusal: Refused, wait_s: float) -> None:
        """Release the slot of a refused request, and send the service no request for `wait_s`."""
        # Record the refusal before `end` wakes a waiting request, which would otherwise go to this service.
        place.host.note_refusal(refusal, self._clock(), wait_s)
        self.end(place, Outcome.ANSWERED)

    def blame(self, place: Place) -> None:
        """Count a failure of the service that had the slot `place`, because another one answered the same request."""
        self._judge(place.host, Outcome.FAULTY, probe=False)

    async def wait_for_room(self, timeout_s: float) -> None:
        """Wait until a slot may be free, at most `timeout_s`."""
        woken = asyncio.Event()
        self._waiting.append(woken)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await woken.wait()
        finally:
            with suppress(ValueError):
                self._waiting.remove(woken)

    def refusal(self) -> tuple[Refused, float] | None:
        """The refusal that ends first, and the seconds until then; None unless all open services refuse requests."""
        first = min(self._open(), key=lambda host: host.refused_until_s, default=None)
        if first is None or first.refusal is None or (left_s := first.refused_until_s - self._clock()) <= 0:
            return None
        return first.refusal, left_s

    def is_busy(self) -> bool:
        """Whether a service is at its concurrency limit."""
        now_s = self._clock()
        return any(host.is_free(now_s) and not self._has_room(host) for host in self._hosts.values())

    def is_probing(self) -> bool:
        """Whether a request is testing an ejected service."""
        return any(host.probing for host in self._hosts.values())

    def capacity(self) -> int:
        """The sum of the concurrency limits of all services that are not ejected, at least 1."""
        return max(1, sum(int(host.at_once) for host in self._open()))

    def states(self) -> tuple[HostState, ...]:
        """The state of each service."""
        now_s = self._clock()
        return tuple(HostState(each.address.url, each.state(now_s), each.in_flight) for each in self._hosts.values())

    def __len__(self) -> int:
        return len(self._hosts)

    def _open(self) -> list[Host]:
        return [host for host in self._hosts.values() if not host.is_ejected]

    def _has_room(self, host: Host) -> bool:
        """Whether the service is below its limit; until a refusal or timeout lowers `at_once`, there is no limit."""
        return host.in_flight < int(host.at_once) or host.at_once >= self._rules.at_once

    def _wake_waiting(self) -> None:
        """Wake one waiting task, oldest first, for each service that is below its limit."""
        now_s = self._clock()
        for host in self._hosts.values():
            if self._waiting and host.is_free(now_s) and self._has_room(host):
                self._waiting.popleft().set()

    def _is_silent_alone(self, place: Place) -> bool:
        """Whether a slot's service is at fault: since the slot was taken, others have answered but not this service."""
        answered = [host for host in self._hosts.values() if host.answered_s >= place.began_s]
        return bool(answered) and place.host not in answered

    def _judge(self, host: Host, outcome: Outcome, *, probe: bool) -> None:
        # Ignore failures of the only service: it must never be ejected.
        if len(self._hosts) > 1 or outcome is Outcome.ANSWERED:
            host.judge(outcome, self._rules, self._clock(), self._chance(), probe=probe)


def _first_to_return(hosts: list[Host]) -> list[Host]:
    if not all(host.is_ejected for host in hosts):
        return []
    return sorted((host for host in hosts if not host.probing), key=lambda host: host.ejected_until_s or 0.0)[:1]
