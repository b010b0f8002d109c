"""What API keys cost, and that what is counted is exact while workers are replaced and killed.

    python benchmarks/access.py [--rounds 8] [--requests 1000] [--clients 4] [--most 0.15]
    python benchmarks/access.py --paired 8000 --clients 64 --workers 4 [--most 0.3]
    python benchmarks/access.py --exact 100000 [--upheavals 60] --workers 2 [--redis]

The first compares services without keys, with keys in SQLite and with keys in a Redis of its own; of the latter two a
key without limits and one with all four. They run side by side and are asked in turn, in another order each round; of
each slice the processor time of the service's processes for a request is taken, and from it that of the service without
keys in the same round. Exit code 1 when a key with limits costs more than --most.

The second measures how long a client waits: each sends the same request to a service without keys, to one with keys in
SQLite and to one with keys in Redis, one after the other in turning order, with pauses that leave the machine idle half
of the time. Exit code 1 when the median of the differences, or the difference of the 99th percentiles, exceeds --most.

The third sends requests to one service until so many are answered, and meanwhile asks a worker for a successor or
kills one with SIGKILL, in turn. Each client has a key of its own, so that at most one of its requests is under way. A
page counts when its answer is made: of each client as many must be counted as were answered, and of those requests that
broke off with a worker some, which is said. Exit code 1 when that is not so, or anything stays reserved.
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
# None of them is reached: a request that is refused would cost less.
LIMITS = KeyLimits(requests_per_s=1e6, concurrency=1000, pages_a_day=10**9, pages_a_month=10**9)
# Those of a killed worker are given back when its successor begins; without one, when its lease ends.
_RETURN_S = 10.0
_WARM_ROUNDS = 5
_PAUSE_S = 1.5
_LOCK = threading.Lock()


@dataclass
class Side:
    """One service with one key.

    Attributes:
        cpu_ms: Of each round: processor time of the service for a request.
    """

    name: str
    service: Service
    clients: list[KeyedClient]
    cpu_ms: list[float] = field(default_factory=list)

    def run(self, requests: int) -> None:
        """One slice."""
        began = sum(client.tally.answered for client in self.clients)
        before_s = self.service.processes.cpu_s()
        send_all(self.clients, began + requests)
        spent_s = self.service.processes.cpu_s() - before_s
        self.cpu_ms.append(spent_s * 1000 / (sum(client.tally.answered for client in self.clients) - began))
        if sum(client.tally.refused + client.tally.broken for client in self.clients):
            sys.exit(f"WRONG: a request to {self.name} was not answered with 200")


@contextlib.contextmanager
def running_redis(folder: Path) -> Iterator[str]:
    """The URL of a Redis of our own; exits where there is none."""
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
    """The addresses of both stores, by name."""
    with running_redis(folder) as redis:
        yield {"SQLite": f"sqlite:{folder}/keys.sqlite", "Redis": redis}


@contextlib.contextmanager
def all_sides(arguments: argparse.Namespace) -> Iterator[list[Side]]:
    """A service without keys, and one for each store with its two keys."""
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
    """The second run; 0 when a client with a key waits no longer than it may."""
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
    print(f"load {os.getloadavg()[0]:.1f}, {len(bare)} requests to each")
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
    """One client's requests: the same to each service, of which each is first as often as it is last."""
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
    """What 99 of 100 values do not exceed."""
    return statistics.quantiles(values, n=100)[98]


def measure(arguments: argparse.Namespace) -> int:
    """The first run; 0 when a key with limits costs no more than it may."""
    with all_sides(arguments) as sides:
        for number in range(arguments.rounds + 1):
            # Each is first as often as it is last.
            for side in sides if number % 2 else reversed(sides):
                side.run(arguments.requests)
    for side in sides:
        # The first round warms up.
        del side.cpu_ms[0]
    return show(sides, arguments)


def show(sides: Sequence[Side], arguments: argparse.Namespace) -> int:
    """Print the figures, write them down, and judge them."""
    rows, bare = list[dict[str, object]](), sides[0]
    for side in sides:
        extra = [one - other for one, other in zip(side.cpu_ms, bare.cpu_ms, strict=True)]
        row = {"keys": side.name, "cpu_ms": statistics.median(side.cpu_ms), "extra_ms": statistics.median(extra)}
        # What disturbs only ever adds.
        row["extra_of_least_ms"] = min(side.cpu_ms) - min(bare.cpu_ms)
        rows.append(row | {"least_extra_ms": min(extra), "most_extra_ms": max(extra)})
        print(
            f"{side.name:22} {row['cpu_ms']:.3f} ms CPU a request; beside no keys {row['extra_ms']:+.3f} ms "
            f"(rounds: {min(extra):+.3f} to {max(extra):+.3f}; least round of each: {row['extra_of_least_ms']:+.3f})"
        )
    write_result("access", {"rounds": arguments.rounds, "requests": arguments.requests, "rows": rows}, arguments.out)
    return int(any(row["extra_ms"] > arguments.most for row in rows if "four" in str(row["keys"])))


def clients_of(service: Service, secrets: Sequence[str | None]) -> list[KeyedClient]:
    """A client for each key."""
    return [KeyedClient(service, tiny_png(), secret) for secret in secrets]


@dataclass
class Upheaval:
    """Replaces and kills workers, evenly over a run.

    Attributes:
        replaced, killed: How many workers so far.
    """

    service: Service
    every: float
    replaced: int = 0
    killed: int = 0

    def watch(self, answered: int) -> None:
        """Do what is due after so many answers."""
        if answered < (self.replaced + self.killed + 1) * self.every:
            return
        workers = self.service.processes.workers()
        if not workers:
            return
        is_kill = self.replaced > self.killed
        with contextlib.suppress(ProcessLookupError):
            # The oldest: a young one may not have its handlers yet.
            os.kill(workers[0], signal.SIGKILL if is_kill else signal.SIGUSR2)
            self.killed += is_kill
            self.replaced += not is_kill


def check_exact(arguments: argparse.Namespace) -> int:
    """The third run; 0 when every page is counted once."""
    with tempfile.TemporaryDirectory() as folder, stores(Path(folder)) as addresses:
        address = addresses["Redis" if arguments.redis else "SQLite"]
        check_store(address)
        with contextlib.closing(open_store(address)) as store:
            names = [f"client{number}" for number in range(arguments.clients)]
            secrets = [add_key(store, KeyEntry(name, limits=LIMITS)) for name in names]
            env = {**ENVIRONMENT, "OCRSVC_KEYS": address, "OCRSVC_WORKERS": str(arguments.workers)}
            with started(env) as service:
                clients = clients_of(service, secrets)
                upheaval = Upheaval(service, arguments.exact / (arguments.upheavals + 1))
                send_all(clients, arguments.exact, upheaval.watch)
                counted = [settled_usage(store, name) for name in names]
    return judge(arguments, clients, counted, upheaval)


def settled_usage(store: KeyStore, name: str) -> int:
    """Pages counted for a key, once nothing is reserved for it any more; exits when something stays."""
    until_s = time.monotonic() + _RETURN_S
    while (usage := store.usage(name, day_of(time.time()))).requests or usage.reserved:
        if time.monotonic() > until_s:
            sys.exit(f"WRONG: {usage} stays reserved for {name}")
        time.sleep(0.1)
    return usage.this_month


def judge(
    arguments: argparse.Namespace, clients: Sequence[KeyedClient], counted: Sequence[int], upheaval: Upheaval
) -> int:
    """Print the figures, write them down, and judge them."""
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
    """Run once; 0 when what the description promises holds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=8, help="each asks every service")
    parser.add_argument("--requests", type=int, default=1000, help="of a slice")
    parser.add_argument("--clients", type=int, default=4, help="at once")
    parser.add_argument("--most", type=float, default=0.15, help="milliseconds that a key with limits may cost")
    parser.add_argument("--paired", type=int, default=0, metavar="N", help="the second run, N requests to each service")
    parser.add_argument("--exact", type=int, default=0, metavar="N", help="the third run, until N are answered")
    parser.add_argument("--upheavals", type=int, default=60, help="workers replaced or killed in the third run")
    parser.add_argument("--workers", type=int, default=1, help="of each service")
    parser.add_argument("--redis", action="store_true", help="keys in Redis in the third run; in SQLite by default")
    parser.add_argument("--out", type=Path, help="the JSON file; results/access.json or access_exact.json if left out")
    given = parser.parse_args(arguments)
    print_machine()
    if given.paired:
        return measure_pairs(given)
    return check_exact(given) if given.exact else measure(given)


if __name__ == "__main__":
    sys.exit(main())
