"""Kubernetes' horizontal pod autoscaler, simulated for one region of hosts.

Follows the documentation of HPA and KEDA: wanted = ceil(replicas x measured / target), no change within 10 % of the
target, growth to at most twice the replicas (or four more) every 15 s, and shrinking to the highest number wanted in
the last five minutes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from bench.fleet import CLOSED, Fleet, Region

INTERVAL_S: Final = 15.0
WINDOW_S: Final = 60.0
DOWN_WINDOW_S: Final = 300.0
TOLERANCE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters of a region at one moment."""

    at_s: float
    busy_s: float
    wait_s: float
    started: int


@dataclass(frozen=True, slots=True)
class Rule:
    """A metric to scale on.

    Attributes:
        name: Name in the printed table.
        target: Target value of the metric.
        measure: Computes the metric over the last minute from the first sample, the last sample and the number of
            workers.
    """

    name: str
    target: float
    measure: Callable[[Sample, Sample, int], float]


def cpu_share(first: Sample, last: Sample, workers: int) -> float:
    """Share of the workers' time that was busy, at most 1."""
    return min(1.0, (last.busy_s - first.busy_s) / (last.at_s - first.at_s) / max(1, workers))


def mean_wait_s(first: Sample, last: Sample, _workers: int) -> float:
    """Mean seconds that pages of the last minute waited."""
    return (last.wait_s - first.wait_s) / max(1, last.started - first.started)


def load_per_worker(first: Sample, last: Sample, workers: int) -> float:
    """Mean number of pages waiting or being read, per worker (Little's law)."""
    seconds = last.busy_s - first.busy_s + last.wait_s - first.wait_s
    return seconds / (last.at_s - first.at_s) / max(1, workers)


@dataclass(slots=True)
class Autoscaler:
    """Adds and removes hosts of one region.

    Attributes:
        rules: Metrics; the one that wants the most hosts decides.
        least, most: Bounds of the number of hosts.
        start_s: Seconds from ordering a host to its first page; the host is paid for from the order on.
        step_down: Hosts that may be removed per minute; None for no limit.
    """

    fleet: Fleet
    number: int
    rules: tuple[Rule, ...]
    least: int
    most: int
    start_s: float
    step_down: int | None = None
    ordered: int = 0
    history: list[tuple[float, int]] = field(default_factory=list)
    _samples: deque[Sample] = field(default_factory=deque)
    _wanted: deque[tuple[float, int]] = field(default_factory=deque)
    _downs: deque[float] = field(default_factory=deque)

    def begin(self, now_s: float) -> None:
        """Start sampling the region."""
        self.ordered = self.region.paid
        self.history.append((now_s, self.ordered))
        self._look(now_s)

    @property
    def region(self) -> Region:
        """The region that is scaled."""
        return self.fleet.regions[self.number]

    def _look(self, now_s: float) -> None:
        region = self.region
        self._samples.append(Sample(now_s, region.busy_s, region.wait_s, region.started))
        while self._samples[0].at_s < now_s - WINDOW_S:
            self._samples.popleft()
        if len(self._samples) > 1 and not region.is_lost:
            self._scale(now_s)
        self.fleet.at(now_s + INTERVAL_S, self._look)

    def _scale(self, now_s: float) -> None:
        wanted = max(self._want(rule) for rule in self.rules)
        self._wanted.append((now_s, wanted))
        while self._wanted[0][0] < now_s - DOWN_WINDOW_S:
            self._wanted.popleft()
        if wanted > self.ordered:
            self._order(now_s, min(wanted, self.most, max(2 * self.ordered, self.ordered + 4)))
        else:
            self._remove(now_s, max(self.least, *(count for _, count in self._wanted)))

    def _want(self, rule: Rule) -> int:
        open_hosts = sum(load < CLOSED for load in self.region.loads)
        workers = open_hosts * self.fleet.settings.workers
        value = rule.measure(self._samples[0], self._samples[-1], workers) / rule.target
        # The metric is a mean over serving hosts, so multiply it by their number.
        return self.ordered if abs(value - 1) <= TOLERANCE else math.ceil(open_hosts * value)

    def _order(self, now_s: float, wanted: int) -> None:
        if wanted <= self.ordered:
            return
        self.region.pay(now_s, wanted - self.ordered)
        for _ in range(wanted - self.ordered):
            self.fleet.at(now_s + self.start_s, self._open)
        self.ordered = wanted
        self.history.append((now_s, self.ordered))

    def _open(self, _now_s: float) -> None:
        region = self.region
        if region.is_lost:
            return
        # Reuse a closed host; one that still drains is paid for anyway.
        place = min(index for index, load in enumerate(region.loads) if load >= CLOSED)
        region.loads[place] -= CLOSED

    def _remove(self, now_s: float, wanted: int) -> None:
        while self._downs and self._downs[0] < now_s - 60:
            self._downs.popleft()
        open_hosts = [index for index, load in enumerate(self.region.loads) if load < CLOSED]
        count = min(self.ordered - wanted, len(open_hosts) - 1)
        if self.step_down is not None:
            count = min(count, self.step_down - len(self._downs))
        for place in open_hosts[len(open_hosts) - max(0, count) :]:
            # Its remaining pages are still read, which takes seconds.
            self.region.loads[place] += CLOSED
            self.region.pay(now_s, -1)
            self.ordered -= 1
            self._downs.append(now_s)
        if count > 0:
            self.history.append((now_s, self.ordered))
