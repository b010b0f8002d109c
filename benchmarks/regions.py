"""Simulates a day of a service in five regions: near callers or in one place, a lost region, autoscaling.

    python benchmarks/regions.py [--seed 1] [--part near|lost|scaling] [--quick] [--out regions.json]

1,000 workers with a core each run on 100 hosts in 5 regions. Page times are drawn from data/page_times.json, which is
measured; all other assumptions (load over a day, round trips, start time of a host) are printed first. Queue, refusals,
priorities and retries follow the service and its client (bench/fleet.py), autoscaling follows Kubernetes
(bench/autoscaling.py). The same seed gives the same figures. --quick simulates minutes of a few hosts, to check that it
runs. The figures are in docs/regions.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from bench.autoscaling import Autoscaler, Rule, cpu_share, load_per_worker, mean_wait_s
from bench.fleet import Fleet, FleetSettings, Outcome
from bench.results import write_result
from bench.service import ROOT

WORKERS, HOSTS, PLACES = 10, 20, 64
PEAK_SHARE: Final = 0.65
BATCH: Final = 0.2
PATIENCE_S, BATCH_PATIENCE_S, NOTICED_S = 60.0, 600.0, 30.0
START_S: Final = 120.0
MIN_HOSTS, MAX_HOSTS = 3, 40
DAY_S: Final = 86400.0
BURST_S, BURST_LASTS_S = 20 * 3600.0, 1800.0
UPLOAD_BYTES: Final = 300_000

REGIONS: Final = ("America, west", "America, east", "Europe", "South Asia", "East Asia")
UTC_OFFSETS_H: Final = (-8.0, -5.0, 1.0, 5.5, 8.0)
ROUND_TRIPS_MS: Final = (
    (15, 65, 145, 225, 120),
    (65, 15, 80, 190, 170),
    (145, 80, 15, 120, 180),
    (225, 190, 120, 15, 60),
    (120, 170, 180, 60, 15),
)
# Share of the peak load by local hour, on an office day.
DAY: Final = (0.25, 0.22, 0.2, 0.2, 0.22, 0.28, 0.4, 0.6, 0.85, 1.0, 1.0, 0.95)
DAY_AFTER_NOON: Final = (0.85, 0.9, 1.0, 1.0, 0.95, 0.85, 0.7, 0.6, 0.5, 0.42, 0.35, 0.3)

Rate = Callable[[float], float]


def page_times_s() -> np.ndarray:
    """Measured processor seconds of the corpus pages."""
    data = json.loads((ROOT / "benchmarks" / "data" / "page_times.json").read_text("utf-8"))
    return np.array(data["page_cpu_ms"]) / 1000


def day_share(local_s: float) -> float:
    """Share of a region's peak load at a second of its local day."""
    hours = (*DAY, *DAY_AFTER_NOON)
    return float(np.interp(local_s / 3600 % 24, range(25), (*hours, hours[0])))


def arrivals(
    rates: Sequence[Rate], begin_s: float, end_s: float, seed: int
) -> Iterator[tuple[float, int, bool, float]]:
    """Pages of all regions in order of time: a Poisson process whose rate changes every five seconds."""
    random, works_s, step_s = np.random.default_rng(seed), page_times_s(), 5.0
    for at_s in np.arange(begin_s, end_s, step_s):
        per_s = np.array([rate(float(at_s)) for rate in rates])
        count = random.poisson(per_s.sum() * step_s)
        times_s = np.sort(random.uniform(at_s, at_s + step_s, count))
        regions = random.choice(len(rates), count, p=per_s / per_s.sum())
        batch = random.random(count) < BATCH
        works = random.choice(works_s, count)
        yield from zip(times_s.tolist(), regions.tolist(), batch.tolist(), works.tolist(), strict=True)


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of a simulation: the full one or a quick one."""

    hosts: int
    window_s: float
    day_s: float
    step_s: float

    @property
    def peak_per_s(self) -> float:
        """Pages per second that a region's callers send at its peak."""
        return PEAK_SHARE * self.hosts * WORKERS / float(page_times_s().mean())


FULL: Final = Scale(HOSTS, 1200.0, DAY_S, 3600.0)
QUICK: Final = Scale(2, 20.0, 900.0, 300.0)


def settings(
    places: int = PLACES, *, tries_next: bool = False, trips_ms: Sequence[Sequence[int]] = ROUND_TRIPS_MS
) -> FleetSettings:
    """Settings of hosts and callers."""
    trips_s = [[ms / 1000 for ms in row] for row in trips_ms]
    return FleetSettings(WORKERS, places * WORKERS, PATIENCE_S, BATCH_PATIENCE_S, tries_next, trips_s, NOTICED_S)


def quantile_s(values: Sequence[Sequence[float]], share: float) -> float:
    """Quantile over all values of several sequences; 0 without values."""
    every = np.concatenate([np.asarray(row) for row in values])
    return round(float(np.quantile(every, share)), 3) if len(every) else 0.0


def figures(outcomes: Sequence[Outcome], batch: Sequence[Outcome] = ()) -> dict[str, float | int]:
    """Figures of the callers: waits, answer times, refusals and pages given up."""
    found: dict[str, float | int] = {}
    for name, group in (("", outcomes), ("batch ", batch)):
        if group:
            found[f"{name}wait p50, s"] = quantile_s([one.waits_s for one in group], 0.5)
            found[f"{name}wait p99, s"] = quantile_s([one.waits_s for one in group], 0.99)
    found["answer p50, s"] = quantile_s([one.took_s for one in outcomes], 0.5)
    found["answer p99, s"] = quantile_s([one.took_s for one in outcomes], 0.99)
    every = (*outcomes, *batch)
    answered = sum(len(one.waits_s) for one in every)
    given_up = sum(one.given_up for one in every)
    found["refused tries a page"] = round(sum(one.refused for one in every) / max(1, answered + given_up), 3)
    found["given up, %"] = round(100 * given_up / max(1, answered + given_up), 2)
    return found


Row = dict[str, float | int | str]


def regional(scale: Scale) -> list[Rate]:
    """Pages per second of each region, by second of the UTC day."""
    return [
        lambda at_s, offset_h=offset_h: scale.peak_per_s * day_share(at_s + 3600 * offset_h)  # type: ignore[misc]
        for offset_h in UTC_OFFSETS_H
    ]


def busiest_s(rates: Sequence[Rate]) -> float:
    """The second of the UTC day with the highest total load."""
    return max((300.0 * number for number in range(288)), key=lambda at_s: sum(rate(at_s) for rate in rates))


def near(scale: Scale, seed: int) -> list[Row]:
    """Five regions near their callers, compared with one place (Europe) for all, at the busiest time."""
    rates = regional(scale)
    begin_s = busiest_s(rates)
    end_s = begin_s + scale.window_s / 2
    most_together = sum(rate(begin_s) for rate in rates)
    share = most_together / (len(REGIONS) * scale.peak_per_s)
    fewer = round(len(REGIONS) * scale.hosts * share)
    rows = []
    for name, hosts in (
        ("five regions", [scale.hosts] * 5),
        ("Europe alone", [0, 0, 5 * scale.hosts, 0, 0]),
        ("Europe alone, 65 % of it used", [0, 0, fewer, 0, 0]),
    ):
        for connection, trips in (("kept", 1), ("new", round_trips(UPLOAD_BYTES))):
            trips_ms = [[trips * ms for ms in row] for row in ROUND_TRIPS_MS]
            fleet = Fleet(settings(trips_ms=trips_ms), hosts, 5 * scale.hosts, seed, begin_s)
            for number in range(len(REGIONS)):
                if not hosts[number]:
                    fleet.remove(number, begin_s)
            fleet.run(arrivals(rates, begin_s, end_s, seed), end_s + PATIENCE_S)
            about: Row = {"hosts in": name, "hosts": sum(hosts), "connection": connection, "round trips": trips}
            rows.append({**about, **figures(fleet.interactive)})
    return rows


def round_trips(size_bytes: int) -> int:
    """Round trips of an upload on a new connection: TCP, TLS 1.3, slow start from 10 segments of 1,460 bytes."""
    sent, window, trips = 0, 10 * 1460, 2
    while sent < size_bytes:
        sent, window, trips = sent + window, 2 * window, trips + 1
    return trips


LOST: Final = REGIONS.index("South Asia")
BESIDE: Final = REGIONS.index("East Asia")


def lost(scale: Scale, seed: int) -> list[Row]:
    """South Asia is lost at its peak, when East Asia, its nearest region, is close to its own."""
    rates = regional(scale)
    lost_s = (10.5 - UTC_OFFSETS_H[LOST]) * 3600
    rows = []
    for case in LOSSES:
        hosts = max(1, round(scale.hosts * case.hosts_share))
        fleet = Fleet(settings(case.places, tries_next=case.tries_next), [hosts] * 5, 4 * hosts, seed, lost_s)
        if case.grows:
            for number in range(len(REGIONS)):
                Autoscaler(fleet, number, (LOAD,), hosts, 2 * hosts, START_S).begin(lost_s - 60)
        if case.is_lost:
            fleet.at(lost_s, lambda now_s, fleet=fleet: fleet.lose(LOST, now_s))  # type: ignore[misc]
        fleet.run(arrivals(rates, lost_s - 60, lost_s + scale.window_s, seed), lost_s + scale.window_s + PATIENCE_S)
        about: Row = {
            "hosts a region": hosts,
            "South Asia": "lost" if case.is_lost else "there",
            "refused callers": "ask the next region" if case.tries_next else "wait",
            "places a worker": case.places,
            "hosts are added": "yes" if case.grows else "no",
        }
        rows.append({**about, **figures([fleet.interactive[LOST], fleet.interactive[BESIDE]])})
    return rows


@dataclass(frozen=True, slots=True)
class Loss:
    """One row of the lost region; `hosts_share` is relative to the usual number of hosts."""

    hosts_share: float = 1.0
    tries_next: bool = False
    places: int = PLACES
    grows: bool = False
    is_lost: bool = True


LOSSES: Final = (
    Loss(is_lost=False),
    Loss(0.8),
    Loss(),
    Loss(1.5),
    Loss(2.0),
    Loss(tries_next=True),
    Loss(places=8),
    Loss(0.8, tries_next=True, places=8),
    Loss(tries_next=True, places=8),
    Loss(grows=True),
    Loss(tries_next=True, places=8, grows=True),
)
LOAD, HIGHER_LOAD = (Rule(f"load {target}", target, load_per_worker) for target in (0.7, 0.85))
WAIT: Final = Rule("wait 0.5 s", 0.5, mean_wait_s)
CPU: Final = tuple(Rule(f"CPU {target:.0%}", target, cpu_share) for target in (0.6, 0.7, 0.8))
CHOICES: Final[Sequence[tuple[str, tuple[Rule, ...], int | None]]] = (
    ("none", (), None),
    *((rule.name, (rule,), None) for rule in CPU),
    (f"{WAIT.name}, any number down", (WAIT,), None),
    (f"{WAIT.name}, one down a minute", (WAIT,), 1),
    (f"CPU 70% and {WAIT.name}", (CPU[1], WAIT), None),
    (LOAD.name, (LOAD,), None),
    (HIGHER_LOAD.name, (HIGHER_LOAD,), None),
)


def scaling(scale: Scale, seed: int) -> list[Row]:
    """One region over its local day, with double load for half an hour in the evening; one process per core."""
    day = partial(scaled_day, scale, seed)
    if scale is QUICK:
        return [day(*choice) for choice in CHOICES]
    with ProcessPoolExecutor() as pool:
        return list(pool.map(day, *zip(*CHOICES, strict=True)))


def evening_rate(scale: Scale, at_s: float) -> float:
    """Pages per second of the region, by second of its local day."""
    burst = 2 if 0 <= at_s - BURST_S < BURST_LASTS_S else 1
    return burst * scale.peak_per_s * day_share(at_s)


def scaled_day(scale: Scale, seed: int, name: str, rules: tuple[Rule, ...], step_down: int | None) -> Row:
    """Simulate one day with one way of scaling."""
    rate = partial(evening_rate, scale)
    begin_s = BURST_S - scale.day_s / 2 if scale.day_s < DAY_S else 0.0
    least = min(scale.hosts, MIN_HOSTS) if rules else scale.hosts
    begin = scale.hosts if not rules else max(least, round(scale.hosts * day_share(begin_s)))
    fleet = Fleet(settings(trips_ms=((15,),)), [begin], MAX_HOSTS + 10, seed, begin_s)
    fleet.regions[0].changed_s = begin_s
    scaler = Autoscaler(fleet, 0, rules, least, MAX_HOSTS, START_S, step_down)
    if rules:
        scaler.begin(begin_s)
    late, seen = [], 0
    for at_s in np.arange(begin_s, begin_s + scale.day_s, scale.step_s):
        end_s = float(at_s + scale.step_s)
        fleet.run(arrivals([rate], float(at_s), end_s, seed + int(at_s)), end_s)
        waits = fleet.interactive[0].waits_s
        late.append(round(100 * sum(wait_s > 1 for wait_s in waits[seen:]) / max(1, len(waits) - seen), 2))
        seen = len(waits)
    hours = fleet.regions[0].host_s / 3600
    counts = [count for _, count in scaler.history]
    return {
        "scaled on": name,
        "host hours": round(hours),
        "least and most hosts": f"{min(counts, default=begin)} to {max(counts, default=begin)}",
        "changes": max(0, len(counts) - 1),
        **figures(fleet.interactive, fleet.of_batch),
        "waited over 1 s in the worst hour, %": max(late),
    }


PARTS: Final = {"near": near, "lost": lost, "scaling": scaling}


def print_settings(scale: Scale) -> None:
    """Print all assumptions."""
    times = page_times_s()
    print(f"{len(REGIONS)} regions of {scale.hosts} hosts of {WORKERS} workers, {PLACES} places per worker")
    print(
        f"a page takes a worker {times.mean():.3f} s on average, {np.quantile(times, 0.5):.3f} s at the median, "
        f"{np.quantile(times, 0.99):.2f} s at p99 ({len(times)} measured pages)"
    )
    print(f"peak {scale.peak_per_s:.0f} pages/s per region, {PEAK_SHARE:.0%} of its workers; {BATCH:.0%} are batch")
    print(f"share of the peak by local hour: {' '.join(f'{share:g}' for share in (*DAY, *DAY_AFTER_NOON))}")
    print(f"hours from UTC: {dict(zip(REGIONS, UTC_OFFSETS_H, strict=True))}")
    print(f"round trips in ms, in the same order: {ROUND_TRIPS_MS}")
    print(f"callers give up after {PATIENCE_S:g} s, batch after {BATCH_PATIENCE_S:g} s")
    print(f"a lost region is noticed after {NOTICED_S:g} s; a host starts within {START_S:g} s")


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|---" * len(rows[0]) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(str(value) for value in row.values()) + " |" for row in rows)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the simulation; always returns 0, because the figures have no goals."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part; may be repeated")
    parser.add_argument("--quick", action="store_true", help="minutes of a few hosts")
    parser.add_argument("--out", type=Path, help="JSON output file; default results/regions.json")
    args = parser.parse_args(arguments)
    scale = QUICK if args.quick else FULL
    print_settings(scale)
    tables: dict[str, object] = {}
    for name in args.part or PARTS:
        began_s = time.monotonic()
        rows = PARTS[name](scale, args.seed)
        tables[name] = rows
        print(f"\n{name}\n\n{markdown(rows)}\n", flush=True)
        print(f"{name}: {time.monotonic() - began_s:.0f} s", file=sys.stderr)
    write_result("regions", {"seed": args.seed, "quick": args.quick, "tables": tables}, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
