"""Chooses the service for each request: the one with the least in flight among those that can be asked.

The least is meant in proportion to what each takes at once. That is the same for all until one refuses a request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from ocrsvc.client.balancing.address import Address
from ocrsvc.client.balancing.changes import Changes
from ocrsvc.client.balancing.health import HEALTHY, Health, Outcome, after
from ocrsvc.client.balancing.rules import Rules
from ocrsvc.errors import Refused

_WAITED_IN_VAIN: Final = (Outcome.SILENT, Outcome.OVERTAKEN)
# A refusal costs the time that its Retry-After says: more is not tried often.
_MORE_AGAIN_S: Final = 30.0
# More than wait.
_MANY: Final = 1 << 30
# Those that are late together are late for one reason.
_LATE_TOGETHER_S: Final = 5.0


@dataclass(slots=True, eq=False)
class Host:
    """One service, and what this client has to do with it now.

    Attributes:
        address: Where it is.
        health: Whether it takes part.
        in_flight: Requests of this client under way there.
        probing: Whether one of them tries it after it was ejected.
        refused_until_s: Until when it asked not to be sent anything, by the clock.
        refusal: With what it asked so.
        answered_s: When it last answered anything, by the clock.
        at_once: How many requests it takes at once, as far as is known; the part below 1 is on the way to one more.
        more_s: From when on it may be sent more at once, by the clock.
        fewer_s: From when on an answer that is late halves how much that is, by the clock.
    """

    address: Address
    at_once: float
    health: Health = HEALTHY
    in_flight: int = 0
    probing: bool = False
    refused_until_s: float = float("-inf")
    refusal: Refused | None = None
    answered_s: float = float("-inf")
    more_s: float = float("-inf")
    fewer_s: float = float("-inf")


@dataclass(frozen=True, slots=True)
class Place:
    """A request's place at a service, to be given back.

    Attributes:
        host: Where.
        probe: Whether the request tries a service that was ejected.
        began_s: When, by the clock.
    """

    host: Host = field(repr=False)
    probe: bool
    began_s: float

    @property
    def address(self) -> Address:
        """Where the request goes."""
        return self.host.address


@dataclass(frozen=True, slots=True)
class HostState:
    """How a service is now, for people: `state` is open, refusing or ejected."""

    url: str
    state: str
    in_flight: int


class Balancer:
    """The services of one client; for any thread.

    Args:
        addresses: Of the services; more may come, and some go, with `replace`.
        rules: When a service is ejected, and for how long.
        clock: Seconds, from any beginning.
        chance: Gives random numbers in [0, 1).

    Attributes:
        room: Told when `take` may give a place that it did not give before, but for what time alone changes.
    """

    def __init__(
        self, addresses: Iterable[Address], rules: Rules, clock: Callable[[], float], chance: Callable[[], float]
    ) -> None:
        self._rules, self._clock, self._chance = rules, clock, chance
        self.room: Final = Changes()
        # The garbage collector may end a request that was abandoned while this thread is in here.
        self._lock = threading.RLock()
        self._hosts = {address: Host(address, rules.at_once) for address in addresses}

    def replace(self, addresses: Iterable[Address]) -> None:
        """These are the services from now on; what is known of those that stay is kept."""
        with self._lock:
            known, at_once = self._hosts, self._rules.at_once
            self._hosts = {address: known.get(address) or Host(address, at_once) for address in addresses}
        self.tell_room()

    def take(self, avoid: Collection[Address] = (), *, ejected: bool = False) -> Place | None:
        """A place at the service to ask now, to be given back with `end` or `refuse`; None where there is none.

        Args:
            avoid: Not these.
            ejected: Where every other is ejected or avoided, the one that comes back first, before its time.
        """
        with self._lock:
            now_s = self._clock()
            hosts = [host for host in self._hosts.values() if host.address not in avoid]
            free = self._free(hosts, now_s)
            if not free and ejected:
                free = _first_to_return(hosts)
            return self._placed(min(free, key=self._order), now_s) if free else None

    def take_second(self, first: Place, avoid: Collection[Address]) -> Place | None:
        """A place at a service that may well answer sooner than the one that has the request; None where none does.

        Where that one takes part and has answered others since, the request waits behind those that came before it, and
        would do so anywhere that has no less to do.
        """
        with self._lock:
            now_s, host = self._clock(), first.host
            free = self._free((host for host in self._hosts.values() if host.address not in avoid), now_s)
            if host.health.ejected_until_s is None and host.answered_s >= first.began_s:
                free = [each for each in free if _load(each) < _load(host)]
            return self._placed(min(free, key=self._order), now_s) if free else None

    def end(self, place: Place, outcome: Outcome) -> None:
        """Give a place back, with what the request says about the service."""
        with self._lock:
            self._leave(place, outcome)
        self.tell_room()

    def refuse(self, place: Place, refusal: Refused, wait_s: float) -> None:
        """Give a place back at a service that asks for nothing to be sent for so many seconds."""
        with self._lock:
            self._leave(place, Outcome.ANSWERED)
            host, now_s = place.host, self._clock()
            host.refused_until_s, host.refusal = max(host.refused_until_s, now_s + wait_s), refusal
            host.at_once, host.more_s = max(1, min(int(host.at_once), host.in_flight)), now_s + _MORE_AGAIN_S
        # The answer may have brought back one that was ejected, and others may have room.
        self.tell_room()

    def tell_room(self) -> None:
        """Wake as many of those that wait for a place as there are; also by those that were woken and take none."""
        with self._lock:
            places = sum(map(self._places_at, self._hosts.values()))
        if places:
            self.room.tell(places)

    def opens_s(self) -> float:
        """Seconds until time alone makes one of them ready to be asked; infinite where that is for none so."""
        with self._lock:
            now_s = self._clock()
            waited = (_free_from_s(host) - now_s for host in self._hosts.values())
            return min((left_s for left_s in waited if left_s > 0), default=float("inf"))

    def blame(self, place: Place) -> None:
        """A service whose place is given back already was at fault: another one answered the same request."""
        with self._lock:
            self._judge(place.host, Outcome.FAULTY, probe=False)

    def refusal(self) -> tuple[Refused, float] | None:
        """Where those that take part all refuse: the refusal that ends first, and the seconds until then."""
        with self._lock:
            open_hosts = [host for host in self._hosts.values() if host.health.ejected_until_s is None]
            first = min(open_hosts, key=lambda host: host.refused_until_s, default=None)
            if first is None or first.refusal is None or (left_s := first.refused_until_s - self._clock()) <= 0:
                return None
            return first.refusal, left_s

    def is_full(self) -> bool:
        """Whether one takes part and does not refuse, and has as many requests as it has shown that it takes."""
        with self._lock:
            now_s = self._clock()
            return any(_is_free(host, now_s) and not self._has_room(host) for host in self._hosts.values())

    def is_ejected(self, place: Place) -> bool:
        """Whether the service of this place does not take part now."""
        return place.host.health.ejected_until_s is not None

    def capacity(self) -> int:
        """How many requests those that take part take at once, as far as is known; at least 1."""
        with self._lock:
            open_hosts = [host for host in self._hosts.values() if host.health.ejected_until_s is None]
            return max(1, sum(int(host.at_once) for host in open_hosts))

    def states(self) -> tuple[HostState, ...]:
        """How each service is."""
        with self._lock:
            now_s = self._clock()
            return tuple(
                HostState(each.address.url, _state(each, now_s), each.in_flight) for each in self._hosts.values()
            )

    def __len__(self) -> int:
        return len(self._hosts)

    def _free(self, hosts: Iterable[Host], now_s: float) -> list[Host]:
        return [host for host in hosts if _is_free(host, now_s) and self._has_room(host)]

    def _has_room(self, host: Host) -> bool:
        """A service that has not refused anything yet may take more than is known."""
        return host.in_flight < int(host.at_once) or host.at_once >= self._rules.at_once

    def _places_at(self, host: Host) -> int:
        if not _is_free(host, self._clock()):
            return 0
        if host.health.ejected_until_s is not None:
            return 1
        if host.at_once >= self._rules.at_once:
            return _MANY
        return max(0, int(host.at_once) - host.in_flight)

    def _order(self, host: Host) -> tuple[bool, float, float]:
        """Whose time to come back has come goes first: nobody else finds out."""
        return host.health.ejected_until_s is None, _load(host), self._chance()

    def _placed(self, host: Host, now_s: float) -> Place:
        host.in_flight += 1
        host.probing = probe = host.health.ejected_until_s is not None
        return Place(host, probe, now_s)

    def _leave(self, place: Place, outcome: Outcome) -> None:
        place.host.in_flight -= 1
        if place.probe:
            place.host.probing = False
        if outcome is Outcome.ANSWERED:
            self._note_answer(place.host)
        if outcome is Outcome.SILENT:
            self._note_late(place.host)
        if outcome in _WAITED_IN_VAIN and not self._is_silent_alone(place):
            outcome = Outcome.UNKNOWN
        self._judge(place.host, outcome, probe=place.probe)

    def _note_answer(self, host: Host) -> None:
        host.answered_s = now_s = self._clock()
        if host.in_flight + 1 >= int(host.at_once) < self._rules.at_once and now_s >= host.more_s:
            host.at_once += 1 / host.at_once

    def _note_late(self, host: Host) -> None:
        """It had more than it could answer in time, perhaps: it is sent fewer at once."""
        if (now_s := self._clock()) >= host.fewer_s:
            host.at_once, host.fewer_s = max(1, host.at_once // 2), now_s + _LATE_TOGETHER_S
            host.more_s = now_s + _MORE_AGAIN_S

    def _is_silent_alone(self, place: Place) -> bool:
        """Whether since the place was taken others have answered, and its service nothing: the page is not to blame."""
        answered = [host for host in self._hosts.values() if host.answered_s >= place.began_s]
        return bool(answered) and place.host not in answered

    def _judge(self, host: Host, outcome: Outcome, *, probe: bool) -> None:
        host.health = after(host.health, outcome, self._rules, self._clock(), self._chance(), probe=probe)


def _load(host: Host) -> float:
    """What it has in proportion to what it takes at once."""
    return host.in_flight / int(host.at_once)


def _is_free(host: Host, now_s: float) -> bool:
    until_s = host.health.ejected_until_s
    may_ask = until_s is None or (now_s >= until_s and not host.probing)
    return may_ask and now_s >= host.refused_until_s


def _free_from_s(host: Host) -> float:
    """From when on it may be asked, by the clock, whatever it says until then; one that is tried just now says more."""
    until_s = host.health.ejected_until_s
    return host.refused_until_s if until_s is None or host.probing else max(until_s, host.refused_until_s)


def _first_to_return(hosts: list[Host]) -> list[Host]:
    ejected = [host for host in hosts if host.health.ejected_until_s is not None]
    if len(ejected) < len(hosts):
        return []
    waiting = [host for host in ejected if not host.probing]
    return [min(waiting, key=lambda host: host.health.ejected_until_s or 0.0)] if waiting else []


def _state(host: Host, now_s: float) -> str:
    if host.health.ejected_until_s is not None:
        return "ejected"
    return "refusing" if now_s < host.refused_until_s else "open"
