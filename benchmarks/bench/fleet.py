"""Discrete-event simulation of a service with many hosts in several regions: queues, refusals, retries, a lost region.

A day has millions of pages, so the simulation is written by hand: a page costs about 3 microseconds here, and 10 in
simpy. A host has one queue for all its workers. In the real service each worker has its own, but workers leave new
connections to the least loaded one. The queue's rules and constants are the service's own.
"""

from __future__ import annotations

import math
import random
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final

from ocrsvc.serving.work_queue import BATCH_EVERY, BATCH_SHARE, PACE_WEIGHT

Page = tuple[float, float, int, bool]
"""Time first sent, seconds of work, the caller's region, whether the page is batch work."""

Event = tuple[float, int, "Host | None", "Page | None", float, "Callable[[float], None] | None"]
"""Time, sequence number, host, page, the page's wait, action.

The host finishes the page; without a host, the page is sent; without a page, the action is called.
"""

CLOSED: Final = 1 << 40
"""Added to the load of a closed host, so that its load is never the lowest."""


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """Settings shared by all hosts and callers.

    Attributes:
        workers: Workers per host, with one core each.
        places: Places per host in the queue.
        patience_s, batch_patience_s: Seconds after which a caller gives up.
        tries_next: Whether a refused caller tries the next region before it waits.
        round_trips_s: Round-trip times, by the caller's region and the host's region.
        noticed_s: Seconds until callers notice a lost region; until then they wait for it.
    """

    workers: int
    places: int
    patience_s: float
    batch_patience_s: float
    tries_next: bool
    round_trips_s: Sequence[Sequence[float]]
    noticed_s: float


@dataclass(slots=True, eq=False)
class Host:
    """A host: its waiting pages, with batch pages apart, and its number of free workers."""

    region: int
    number: int
    free: int
    waiting: deque[tuple[float, Page]] = field(default_factory=deque)
    batch: deque[tuple[float, Page]] = field(default_factory=deque)
    skipped: int = 0
    pace_s: float = 0.0

    def next_page(self) -> tuple[float, Page] | None:
        """Take the next page from the queue: interactive pages first, but every fifth is a batch page."""
        if self.batch and (not self.waiting or self.skipped >= BATCH_EVERY - 1):
            self.skipped = 0
            return self.batch.popleft()
        if not self.waiting:
            return None
        self.skipped = self.skipped + 1 if self.batch else 0
        return self.waiting.popleft()


@dataclass(slots=True, eq=False)
class Region:
    """The hosts of a region; `loads` counts each host's pages in flight, plus `CLOSED` for a host that takes none."""

    hosts: list[Host]
    loads: list[int]
    is_lost: bool = False
    lost_s: float = 0.0
    busy_s: float = 0.0
    wait_s: float = 0.0
    started: int = 0
    host_s: float = 0.0
    changed_s: float = 0.0
    paid: int = 0

    def pay(self, now_s: float, change: int = 0) -> None:
        """Add up the paid host seconds until now, then change the number of paid hosts."""
        self.host_s += self.paid * (now_s - self.changed_s)
        self.changed_s = now_s
        self.paid += change


@dataclass(slots=True)
class Outcome:
    """Seconds that each page spent in the queue, and from first sending to the answer, network included."""

    waits_s: array[float] = field(default_factory=lambda: array("f"))
    took_s: array[float] = field(default_factory=lambda: array("f"))
    refused: int = 0
    given_up: int = 0


class Fleet:
    """The hosts, the pending events, and the outcomes of the pages.

    Args:
        settings: Settings of hosts and callers.
        hosts: Open hosts per region.
        most: Highest number of hosts in a region.
        seed: Seed of the callers' pauses between tries.
        counted_from_s: Pages sent before this time are read but not counted.

    Attributes:
        interactive, of_batch: Outcomes by the caller's region.
    """

    def __init__(
        self, settings: FleetSettings, hosts: Sequence[int], most: int, seed: int, counted_from_s: float = 0.0
    ) -> None:
        self.settings = settings
        self.counted_from_s = counted_from_s
        self.random = random.Random(seed)
        self.regions = [self._region(number, count, most) for number, count in enumerate(hosts)]
        self._nearest = [sorted(range(len(hosts)), key=row.__getitem__) for row in settings.round_trips_s]
        self._events: list[Event] = []
        self._number = 0
        self.interactive = [Outcome() for _ in hosts]
        self.of_batch = [Outcome() for _ in hosts]

    def _region(self, number: int, count: int, most: int) -> Region:
        hosts = [Host(number, place, self.settings.workers) for place in range(most)]
        return Region(hosts, [0] * count + [CLOSED] * (most - count), paid=count)

    def at(self, when_s: float, action: Callable[[float], None]) -> None:
        """Schedule a call of `action` with the time."""
        self._push(when_s, None, None, action=action)

    def run(self, arrivals: Iterator[tuple[float, int, bool, float]], end_s: float) -> None:
        """Send the pages (time, region, whether batch, seconds of work), and handle events until `end_s`."""
        events = self._events
        for now_s, region, is_batch, work_s in arrivals:
            while events and events[0][0] <= now_s:
                self._handle()
            self._send(now_s, (now_s, work_s, region, is_batch))
        while events and events[0][0] <= end_s:
            self._handle()
        for one in self.regions:
            one.pay(end_s)

    def remove(self, number: int, now_s: float) -> None:
        """Remove a region from the start: its callers know that it does not exist."""
        self.regions[number].is_lost = True
        self.regions[number].lost_s = now_s - self.settings.noticed_s

    def lose(self, number: int, now_s: float) -> None:
        """Lose a region: its pages are sent again once their callers notice."""
        region = self.regions[number]
        region.is_lost, region.lost_s = True, now_s
        region.pay(now_s, -region.paid)
        region.loads = [CLOSED] * len(region.loads)
        lost = [event for event in self._events if event[2] is not None and event[2].region == number]
        self._events[:] = [event for event in self._events if event[2] is None or event[2].region != number]
        heapify(self._events)
        pages = [event[3] for event in lost if event[3]]
        pages += [page for host in region.hosts for _, page in (*host.waiting, *host.batch)]
        for host in region.hosts:
            host.waiting.clear()
            host.batch.clear()
        for page in pages:
            self._push(now_s + self.settings.noticed_s, None, page)

    def _push(
        self,
        when_s: float,
        host: Host | None,
        page: Page | None,
        wait_s: float = 0.0,
        action: Callable[[float], None] | None = None,
    ) -> None:
        self._number += 1
        heappush(self._events, (when_s, self._number, host, page, wait_s, action))

    def _handle(self) -> None:
        now_s, _, host, page, wait_s, action = heappop(self._events)
        if host is not None and page is not None:
            self._count(now_s, wait_s, host, page)
            self._finish(now_s, host)
        elif page is not None:
            self._send(now_s, page)
        elif action is not None:
            action(now_s)

    def _send(self, now_s: float, page: Page) -> None:
        """Send the page to the nearest live region; after a refusal try the next one if callers do so."""
        first_s = 0.0
        for number in self._nearest[page[2]]:
            region = self.regions[number]
            if region.is_lost:
                if now_s < region.lost_s + self.settings.noticed_s:
                    self._push(region.lost_s + self.settings.noticed_s, None, page)
                    return
                continue
            least = min(region.loads)
            host = region.hosts[region.loads.index(least)]
            if self._admits(host, least, page[3]):
                region.loads[host.number] += 1
                self._take(now_s, host, region, page)
                return
            first_s = first_s or max(1, math.ceil(least * host.pace_s / self.settings.workers))
            if not self.settings.tries_next:
                break
        self._refuse(now_s, page, first_s)

    def _outcome(self, page: Page) -> Outcome:
        if page[0] < self.counted_from_s:
            return Outcome()
        return (self.of_batch if page[3] else self.interactive)[page[2]]

    def _admits(self, host: Host, load: int, is_batch: bool) -> bool:  # noqa: FBT001  a page's own field
        places = self.settings.places
        if load - self.settings.workers >= places:
            return False
        return not is_batch or len(host.batch) < places * BATCH_SHARE

    def _refuse(self, now_s: float, page: Page, retry_after_s: float) -> None:
        """Let a refused caller wait as the client library does, or give up."""
        outcome = self._outcome(page)
        outcome.refused += 1
        again_s = now_s + retry_after_s * (1 + self.random.random() / 4)
        if again_s > page[0] + (self.settings.batch_patience_s if page[3] else self.settings.patience_s):
            outcome.given_up += 1
        else:
            self._push(again_s, None, page)

    def _take(self, now_s: float, host: Host, region: Region, page: Page) -> None:
        if host.free:
            host.free -= 1
            self._start(now_s, 0.0, host, region, page)
        elif page[3]:
            host.batch.append((now_s, page))
        else:
            host.waiting.append((now_s, page))

    def _start(self, now_s: float, wait_s: float, host: Host, region: Region, page: Page) -> None:
        work_s = page[1]
        region.busy_s += work_s
        region.wait_s += wait_s
        region.started += 1
        host.pace_s += (PACE_WEIGHT if host.pace_s else 1.0) * (work_s - host.pace_s)
        self._push(now_s + work_s, host, page, wait_s)

    def _count(self, now_s: float, wait_s: float, host: Host, page: Page) -> None:
        """Record the times of a page that was read."""
        sent_s, _, caller, is_batch = page
        if sent_s >= self.counted_from_s:
            outcome = (self.of_batch if is_batch else self.interactive)[caller]
            outcome.waits_s.append(wait_s)
            outcome.took_s.append(now_s - sent_s + self.settings.round_trips_s[caller][host.region])

    def _finish(self, now_s: float, host: Host) -> None:
        """Free a worker, which takes the next page whose caller still waits."""
        region = self.regions[host.region]
        region.loads[host.number] -= 1
        while (waiting := host.next_page()) is not None:
            queued_s, page = waiting
            patience_s = self.settings.batch_patience_s if page[3] else self.settings.patience_s
            if now_s <= page[0] + patience_s:
                self._start(now_s, now_s - queued_s, host, region, page)
                return
            region.loads[host.number] -= 1
            self._outcome(page).given_up += 1
        host.free += 1
