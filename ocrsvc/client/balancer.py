"""Chooses the service for each request: the one with the least in flight, in proportion to what each takes at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ocrsvc.client.address import Address
from ocrsvc.errors import Refused

NEVER: Final = float("-inf")
# A refusal costs the time that its Retry-After says: more is not tried often.
_MORE_AGAIN_S: Final = 30.0
_LATE_TOGETHER_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Rules:
    """How a client deals with services. Durations are seconds.

    A request goes on for `patience_s` while no service can be reached, within its deadline. So many `failures` in a
    row eject a service, and one connection that does not come about; it is left alone for `first_ejection_s`, and twice
    as long, up to `longest_ejection_s`, each time that the request which then tries it fails. One service takes
    `at_once` requests at once, until it refuses one. Names are looked up again every `refresh_s`.
    """

    connect_s: float = 2.0
    patience_s: float = 10.0
    failures: int = 3
    first_ejection_s: float = 1.0
    longest_ejection_s: float = 30.0
    at_once: int = 16
    refresh_s: float = 30.0


class Outcome(Enum):
    """How a request at one service ended, as far as that says something about the service."""

    ANSWERED = "answered"
    NOT_CONNECTED = "not connected"
    BROKEN = "broken"
    SILENT = "silent"
    FAULTY = "faulty"
    UNKNOWN = "unknown"


@dataclass(slots=True, eq=False)
class Host:
    """One service, and what this client has to do with it now. Moments are by the balancer's clock.

    Attributes:
        at_once: How many requests it takes at once, as far as is known; the part below 1 is on the way to one more.
        probing: Whether a request tries it after it was ejected.
        more_s: From when on it may be sent more at once.
        failures: In a row.
        ejection_s: How long its last ejection was; 0 once it has answered for as long since.
        ejected_until_s: When one request may try it again; None while it takes part.
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
        """Whether it takes no part now."""
        return self.ejected_until_s is not None

    def is_free(self, now_s: float) -> bool:
        """Whether it may be asked now, if it has room."""
        may_ask = self.ejected_until_s is None or (now_s >= self.ejected_until_s and not self.probing)
        return may_ask and now_s >= self.refused_until_s

    def state(self, now_s: float) -> str:
        """For people: open, refusing or ejected."""
        return "ejected" if self.is_ejected else "refusing" if now_s < self.refused_until_s else "open"

    def note_answer(self, now_s: float, most: int) -> None:
        """It has answered; where it had as much as it takes, it may slowly be sent more."""
        self.answered_s = now_s
        if self.in_flight + 1 >= int(self.at_once) < most and now_s >= self.more_s:
            self.at_once += 1 / self.at_once

    def note_late(self, now_s: float) -> None:
        """It had more than it could answer in time, perhaps: it is sent half as many at once, once in five seconds."""
        if now_s >= self.more_s - _MORE_AGAIN_S + _LATE_TOGETHER_S and 2 * (self.in_flight + 1) >= int(self.at_once):
            self.at_once, self.more_s = max(1, self.at_once // 2), now_s + _MORE_AGAIN_S

    def note_refusal(self, refusal: Refused, now_s: float, wait_s: float) -> None:
        """It asks for nothing to be sent for so many seconds, and takes no more at once than it has besides."""
        self.refused_until_s, self.refusal = max(self.refused_until_s, now_s + wait_s), refusal
        self.at_once, self.more_s = max(1, min(int(self.at_once), self.in_flight - 1)), now_s + _MORE_AGAIN_S

    def judge(self, outcome: Outcome, rules: Rules, now_s: float, chance: float, *, probe: bool) -> None:
        """Count what a request that has ended says about it; `probe` is whether the request tried an ejected service.

        `chance` is in [0, 1), so that clients that ejected it together do not come back together.
        """
        if outcome is Outcome.ANSWERED:
            self._recover(now_s)
        # What was under way when it was ejected says nothing new.
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
    """A request's place at a service, to be given back; `probe` is whether the request tries an ejected one."""

    host: Host
    probe: bool
    began_s: float


@dataclass(frozen=True, slots=True)
class HostState:
    """How a service is now, for people: `state` is open, refusing or ejected."""

    url: str
    state: str
    in_flight: int


class Balancer:
    """The services of one client; for tasks of one event loop, but `states` and `capacity` for any thread.

    `clock` gives seconds from any beginning, `chance` random numbers in [0, 1).
    """

    def __init__(
        self, addresses: Iterable[Address], rules: Rules, clock: Callable[[], float], chance: Callable[[], float]
    ) -> None:
        self._rules, self._clock, self._chance = rules, clock, chance
        self._hosts = {address: Host(address, rules.at_once) for address in addresses}
        self._waiting: deque[asyncio.Event] = deque()

    def replace(self, addresses: Iterable[Address]) -> None:
        """These are the services from now on; what is known of those that stay is kept."""
        known, at_once = self._hosts, self._rules.at_once
        self._hosts = {address: known.get(address) or Host(address, at_once) for address in addresses}
        self._wake_waiting()

    def take(self, avoid: Collection[Address] = (), *, ejected: bool = False) -> Place | None:
        """A place at the service to ask now, to be given back with `end` or `refuse`; None where there is none.

        With `ejected` it may be, where all are ejected, at the one that comes back first, before its time.
        """
        now_s = self._clock()
        hosts = [host for host in self._hosts.values() if host.address not in avoid]
        free = [host for host in hosts if host.is_free(now_s) and self._has_room(host)]
        if not free and ejected:
            free = _first_to_return(hosts)
        if not free:
            return None
        # One whose time to come back has come goes first: no other request finds out.
        host = min(free, key=lambda each: (not each.is_ejected, each.in_flight / int(each.at_once), self._chance()))
        host.in_flight += 1
        host.probing = probe = host.is_ejected
        return Place(host, probe, now_s)

    def end(self, place: Place, outcome: Outcome) -> None:
        """Give a place back, with what the request says about the service."""
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
        """Give a place back at a service that asks for nothing to be sent for so many seconds."""
        # Before others that wait could take the place.
        place.host.note_refusal(refusal, self._clock(), wait_s)
        self.end(place, Outcome.ANSWERED)

    def blame(self, place: Place) -> None:
        """A service whose place is given back already was at fault: another one answered the same request."""
        self._judge(place.host, Outcome.FAULTY, probe=False)

    async def wait_for_room(self, most_s: float) -> None:
        """Wait until there may be a place that was not there before, at most so many seconds."""
        woken = asyncio.Event()
        self._waiting.append(woken)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(most_s):
                    await woken.wait()
        finally:
            with suppress(ValueError):
                self._waiting.remove(woken)

    def refusal(self) -> tuple[Refused, float] | None:
        """Where those that take part all refuse: the refusal that ends first, and the seconds until then."""
        first = min(self._open(), key=lambda host: host.refused_until_s, default=None)
        if first is None or first.refusal is None or (left_s := first.refused_until_s - self._clock()) <= 0:
            return None
        return first.refusal, left_s

    def is_busy(self) -> bool:
        """Whether one has as many requests as it has shown that it takes, or one that tries it after an ejection."""
        now_s = self._clock()
        return any(host.probing or (host.is_free(now_s) and not self._has_room(host)) for host in self._hosts.values())

    def capacity(self) -> int:
        """How many requests those that take part take at once, as far as is known; at least 1."""
        return max(1, sum(int(host.at_once) for host in self._open()))

    def states(self) -> tuple[HostState, ...]:
        """How each service is."""
        now_s = self._clock()
        return tuple(HostState(each.address.url, each.state(now_s), each.in_flight) for each in self._hosts.values())

    def __len__(self) -> int:
        return len(self._hosts)

    def _open(self) -> list[Host]:
        return [host for host in self._hosts.values() if not host.is_ejected]

    def _has_room(self, host: Host) -> bool:
        """A service that has not refused anything yet may take more than is known."""
        return host.in_flight < int(host.at_once) or host.at_once >= self._rules.at_once

    def _wake_waiting(self) -> None:
        """Wake one of those that wait for each service that has room, those that have waited longest."""
        now_s = self._clock()
        for host in self._hosts.values():
            if self._waiting and host.is_free(now_s) and self._has_room(host):
                self._waiting.popleft().set()

    def _is_silent_alone(self, place: Place) -> bool:
        """Whether since the place was taken others have answered, and its service nothing: the page is not to blame."""
        answered = [host for host in self._hosts.values() if host.answered_s >= place.began_s]
        return bool(answered) and place.host not in answered

    def _judge(self, host: Host, outcome: Outcome, *, probe: bool) -> None:
        # An only service is never ejected: there is none to ask instead.
        if len(self._hosts) > 1 or outcome is Outcome.ANSWERED:
            host.judge(outcome, self._rules, self._clock(), self._chance(), probe=probe)


def _first_to_return(hosts: list[Host]) -> list[Host]:
    if not all(host.is_ejected for host in hosts):
        return []
    return sorted((host for host in hosts if not host.probing), key=lambda host: host.ejected_until_s or 0.0)[:1]
