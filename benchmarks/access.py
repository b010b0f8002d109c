"""Measures the cost of API keys, and checks that usage counts stay exact while workers are replaced and killed.

    python benchmarks/access.py [--rounds 8] [--requests 1000] [--clients 4] [--most 0.15]
    python benchmarks/access.py --paired 8000 --clients 64 --workers 4 [--most 0.3]
    python benchmarks/access.py --exact 100000 [--upheavals 60] --workers 2 [--redis]

The first run compares processor time per request of a service without keys, one with keys in SQLite and one with keys
in its own Redis. Each store has a key without limits and a key with all four. The services run side by side and are
loaded in turn, in another order each round; each figure is compared with the service without keys in the same round.
Exit code 1 if a key with limits costs more than --most.

The second run measures how long a client waits. Each client sends the same request to all services one after the other,
in rotating order, with pauses that leave the machine idle half of the time. Exit code 1 if the median of the
differences, or the difference of the 99th percentiles, exceeds --most.

The third run sends requests to one service until --exact are answered, and meanwhile alternately replaces a worker and
kills one with SIGKILL. Each client has its own key, so at most one request per key is in flight. A page is counted when
its answer is made: every answered request must be counted, and of the requests that broke off with a worker some may
be; their number is printed. Exit code 1 if a count is wrong or a reservation remains.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.keyed_clients import KeyedClient, send_all
from bench.machine import print_machine
from bench.pages import tiny_png
from bench.results import write_result
from bench.service import ROOT, Service, started

sys.path.insert(0, str(ROOT))

from ocrsvc.access.api_keys import KeyEntry, KeyLimits
from ocrsvc.access.key_store import KeyStore, day_of
from ocrsvc.access.manage_keys import add_key, check_store, open_store

ENVIRONMENT = {"OCRSVC_ENGINE": "fake"}
# High enough never to be reached: a refused request would cost less.
LIMITS = KeyLimits(requests_per_s=1e6, concurrency=1000, pages_a_day=10**9, pages_a_month=10**9)
# A killed worker's reservations are released when its successor starts, or else when its lease ends.
_RETURN_S = 10.0
_WARM_ROUNDS = 5
_PAUSE_S = 1.5
_LOCK = threading.Lock()


@dataclass
class Side:
    """One service with one key.

    Attributes:
        cpu_ms: Processor time of the service per request, one value per round.
    """

    name: str
    service: Service
    clients: list[KeyedClient]
    cpu_ms: list[float] = field(default_factory=list)

    def run(self, requests: int) -> None:
        """Send `requests` requests and record the processor time per request."""
        began = sum(client.tally.answered for client in self.clients)
        before_s = self.service.processes.cpu_s()
        send_all(self.clients, began + requests)
        spent_s = self.service.processes.cpu_s() - before_s
        self.cpu_ms.append(spent_s * 1000 / (sum(client.tally.answered for client in self.clients) - began))
        if sum(client.tally.refused + client.tally.broken for client in self.clients):
            sys.exit(f"WRONG: a request to {self.name} was not answered with 200")


@contextlib.contextmanager
def running_redis(folder: Path) -> Iterator[str]:
    """Start a Redis server; yields its URL. Exits if Redis is not installed."""
    program = shutil.which("redis-server")
    if program is None:
        sys.exit("redis-server is not installed: apt-get install redis-server")
    wire = folder / "redis.sock"
    command = [program, "--port", "0", "--unixsocket", str(wire), "--save", "", "--appendonly", "no"]
    with subprocess.Popen([*command, "--dir", str(folder)], stdout=subprocess.DEVNULL) as server:
        while not wire.exists():
            time.sleep(0.01)
        try:
            yield f"unix://{wire}"
        finally:
            server.terminate()


@contextlib.contextmanager
def stores(folder: Path) -> Iterator[dict[str, str]]:
    """Addresses of the SQLite and the Redis store, by name."""
    with running_redis(folder) as redis:
        yield {"SQLite": f"sqlite:{folder}/keys.sqlite", "Redis": redis}


@contextlib.contextmanager
def all_sides(arguments: argparse.Namespace) -> Iterator[list[Side]]:
    """A service without keys, and one service per store, each with two keys."""
    env = {**ENVIRONMENT, "OCRSVC_WORKERS": str(arguments.workers)}
    with tempfile.TemporaryDirectory() as folder, stores(Path(folder)) as addresses, ExitStack() as stack:
        bare = stack.enter_context(started(env))
        sides = [Side("no keys", bare, clients_of(bare, [None] * arguments.clients))]
        for name, address in addresses.items():
            check_store(address)
            with contextlib.closing(open_store(address)) as store:
                plain, limited = add_key(store, KeyEntry("plain")), add_key(store, KeyEntry("limited", limits=LIMITS))
            service = stack.enter_context(started({**env, "OCRSVC_KEYS": address}))
            for key, secret in (("no limits", plain), ("four limits", limited)):
                sides.append(Side(f"{name}, {key}", service, clients_of(service, [secret] * arguments.clients)))
        yield sides


def measure_pairs(arguments: argparse.Namespace) -> int:
    """The second run; returns 0 if no client with a key waits longer than --most."""
    with all_sides(arguments) as sides:
        waits_ms: list[list[float]] = [[] for _ in sides]
        rounds = max(1, arguments.paired // arguments.clients)
        threads = [
            threading.Thread(
                target=send_pairs, args=([side.clients[number] for side in sides], waits_ms, rounds, number)
            )
            for number in range(arguments.clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    bare, rows, worst_ms = waits_ms[0], list[dict[str, object]](), 0.0
    print(f"load {os.getloadavg()[0]:.1f}, {len(bare)} requests per service")
    for side, waits in zip(sides, waits_ms, strict=True):
        extra_ms = statistics.median([one - other for one, other in zip(waits, bare, strict=True)])
        extra_p99_ms = percentile_99(waits) - percentile_99(bare)
        worst_ms = max(worst_ms, extra_ms, extra_p99_ms)
        row = {"median_ms": statistics.median(waits), "p99_ms": percentile_99(waits)}
        row |= {"extra_ms": extra_ms, "extra_p99_ms": extra_p99_ms}
        rows.append({"keys": side.name, **row})
        print(f"{side.name:22} {' '.join(f'{name} {value:.3f}' for name, value in row.items())}")
    write_result("access_paired", {"requests": len(bare), "clients": arguments.clients, "rows": rows}, arguments.out)
    return int(worst_ms > arguments.most)


def send_pairs(clients: Sequence[KeyedClient], waits_ms: Sequence[list[float]], rounds: int, number: int) -> None:
    """Send one client's requests to every service; each service is first as often as last."""
    order = list(range(len(clients)))
    for turn in range(-_WARM_ROUNDS, rounds):
        time.sleep(_PAUSE_S * (1 + number % 7 / 7))
        found = dict[int, float]()
        for side in order if (turn + number) % 2 else reversed(order):
            began_s = time.perf_counter()
            clients[side].send()
            found[side] = (time.perf_counter() - began_s) * 1000
        order = [*order[1:], order[0]]
        if turn >= 0:
            with _LOCK:
                for side, waited_ms in found.items():
                    waits_ms[side].append(waited_ms)


def percentile_99(values: Sequence[float]) -> float:
    """The 99th percentile."""
    return statistics.quantiles(values, n=100)[98]


def measure(arguments: argparse.Namespace) -> int:
    """The first run; returns 0 if no key with limits costs more than --most."""
    with all_sides(arguments) as sides:
        for number in range(arguments.rounds + 1):
            # Each service is first as often as last.
            for side in sides if number % 2 else reversed(sides):
                side.run(arguments.requests)
    for side in sides:
        # Drop the warm-up round.
        del side.cpu_ms[0]
    return show(sides, arguments)


def show(sides: Sequence[Side], arguments: argparse.Namespace) -> int:
    """Print and write the figures; returns 1 if a goal is missed."""
    rows, bare = list[dict[str, object]](), sides[0]
    for side in sides:
        extra = [one - other for one, other in zip(side.cpu_ms, bare.cpu_ms, strict=True)]
        row = {"keys": side.name, "cpu_ms": statistics.median(side.cpu_ms), "extra_ms": statistics.median(extra)}
        # Disturbances only add time, so compare the fastest rounds as well.
        row["extra_of_least_ms"] = min(side.cpu_ms) - min(bare.cpu_ms)
        rows.append(row | {"least_extra_ms": min(extra), "most_extra_ms": max(extra)})
        print(
            f"{side.name:22} {row['cpu_ms']:.3f} ms CPU per request; compared with no keys {row['extra_ms']:+.3f} ms "
            f"(rounds: {min(extra):+.3f} to {max(extra):+.3f}; fastest rounds: {row['extra_of_least_ms']:+.3f})"
        )
    write_result("access", {"rounds": arguments.rounds, "requests": arguments.requests, "rows": rows}, arguments.out)
    return int(any(row["extra_ms"] > arguments.most for row in rows if "four" in str(row["keys"])))


def clients_of(service: Service, secrets: Sequence[str | None]) -> list[KeyedClient]:
    """One client per key."""
    return [KeyedClient(service, tiny_png(), secret) for secret in secrets]


@dataclass
class WorkerUpheaval:
    """Replaces and kills workers, evenly spread over a run.

    Attributes:
        replaced, killed: Number of workers so far.
    """

    service: Service
    every: float
    replaced: int = 0
    killed: int = 0

    def watch(self, answered: int) -> None:
        """Replace or kill a worker if one is due after `answered` answers."""
        if answered < (self.replaced + self.killed + 1) * self.every:
            return
        workers = self.service.processes.workers()
        if not workers:
            return
        is_kill = self.replaced > self.killed
        with contextlib.suppress(ProcessLookupError):
            # Signal the oldest worker: a young one may not have its signal handlers yet.
            os.kill(workers[0], signal.SIGKILL if is_kill else signal.SIGUSR2)
            self.killed += is_kill
            self.replaced += not is_kill


def check_exact(arguments: argparse.Namespace) -> int:
    """The third run; returns 0 if every page is counted once."""
    with tempfile.TemporaryDirectory() as folder, stores(Path(folder)) as addresses:
        address = addresses["Redis" if arguments.redis else "SQLite"]
        check_store(address)
        with contextlib.closing(open_store(address)) as store:
            names = [f"client{number}" for number in range(arguments.clients)]
            secrets = [add_key(store, KeyEntry(name, limits=LIMITS)) for name in names]
            env = {**ENVIRONMENT, "OCRSVC_KEYS": address, "OCRSVC_WORKERS": str(arguments.workers)}
            with started(env) as service:
                clients = clients_of(service, secrets)
                upheaval = WorkerUpheaval(service, arguments.exact / (arguments.upheavals + 1))
                send_all(clients, arguments.exact, upheaval.watch)
                counted = [settled_usage(store, name) for name in names]
    return judge(arguments, clients, counted, upheaval)


def settled_usage(store: KeyStore, name: str) -> int:
    """Pages counted for a key, once it has no reservations; exits if one remains."""
    until_s = time.monotonic() + _RETURN_S
    while (usage := store.usage(name, day_of(time.time()))).requests or usage.reserved:
        if time.monotonic() > until_s:
            sys.exit(f"WRONG: {usage} stays reserved for {name}")
        time.sleep(0.1)
    return usage.this_month


def judge(
    arguments: argparse.Namespace, clients: Sequence[KeyedClient], counted: Sequence[int], upheaval: WorkerUpheaval
) -> int:
    """Print and write the figures; returns 1 if a count is wrong."""
    tallies = [client.tally for client in clients]
    answered, broken = sum(tally.answered for tally in tallies), sum(tally.broken for tally in tallies)
    beyond = [pages - tally.answered for pages, tally in zip(counted, tallies, strict=True)]
    wrong = sum(not 0 <= more <= tally.broken for more, tally in zip(beyond, tallies, strict=True))
    figures: dict[str, object] = {
        "store": "Redis" if arguments.redis else "SQLite",
        "answered": answered,
        "refused": sum(tally.refused for tally in tallies),
        "counted": sum(counted),
        "replaced": upheaval.replaced,
        "killed": upheaval.killed,
        "broken": broken,
        "counted_of_broken": sum(beyond),
        "keys_with_a_wrong_count": wrong,
    }
    print(", ".join(f"{name} {value}" for name, value in figures.items()))
    write_result("access_exact", figures, arguments.out)
    return int(wrong > 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0 if no goal is missed and no count is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=8, help="in each, every service is loaded once")
    parser.add_argument("--requests", type=int, default=1000, help="per service and round")
    parser.add_argument("--clients", type=int, default=4, help="at once")
    parser.add_argument("--most", type=float, default=0.15, help="milliseconds that a key with limits may cost")
    parser.add_argument("--paired", type=int, default=0, metavar="N", help="the second run, N requests to each service")
    parser.add_argument("--exact", type=int, default=0, metavar="N", help="the third run, until N are answered")
    parser.add_argument("--upheavals", type=int, default=60, help="workers replaced or killed in the third run")
    parser.add_argument("--workers", type=int, default=1, help="per service")
    parser.add_argument("--redis", action="store_true", help="keys in Redis in the third run; in SQLite by default")
    parser.add_argument("--out", type=Path, help="JSON output file; default results/access.json or access_exact.json")
    given = parser.parse_args(arguments)
    print_machine()
    if given.paired:
        return measure_pairs(given)
    return check_exact(given) if given.exact else measure(given)


if __name__ == "__main__":
    sys.exit(main())
