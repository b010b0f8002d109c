"""Kills processes of a real service under load: a crash may fail only the image that caused it.

    python benchmarks/chaos.py                         engine children killed every 0.5 s, and 1 % poison images
    python benchmarks/chaos.py --victims fork_servers  the processes that fork them, every 5 s
    python benchmarks/chaos.py --victims workers       workers killed with -9 every 5 s, the engine in their threads

Every answer is checked against its image. A poison image ends the process that reads it, and must be answered with 422.
With children or fork servers as victims no other request may fail; with workers only requests in flight on a killed
worker may. Finally the arbiter is killed with SIGKILL, and every process of the service must be gone within 5 s. The
last line of stdout is the result as JSON; exit code 1 if any other request failed or a process survived.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from bench.machine import print_machine
from bench.processes import children_of, family_of
from soak import KINDS, WORKERS, Client, Picture, Service, make_pictures, serve, wait_until

SETTLE_S = 30.0
BLOCK = 100  # images per poison image
POISONS = 40
EVERY_S = {"children": 0.5, "fork_servers": 5.0, "workers": 5.0}


class NumbersUntil:
    """Thread-safe counter from 0 that stops at a point in time."""

    def __init__(self, end_s: float) -> None:
        self._end_s = end_s
        self._numbers = iter(range(1 << 62))

    def __iter__(self) -> Iterator[int]:
        while time.monotonic() < self._end_s:
            yield next(self._numbers)

    def end(self) -> None:
        """Stop now."""
        self._end_s = 0.0


class ChaosClient(Client):
    """A client of soak.py that also expects poison images to be answered with 422."""

    def __init__(self, port: int, pictures: list[Picture], turns: Iterable[int], number: int) -> None:
        super().__init__(port, KINDS[number % len(KINDS)], pictures, turns, number)
        self.refused = 0

    def _exchange(self, picture: Picture, *, keep: bool) -> str:
        failure = super()._exchange(picture, keep=keep)
        if picture.text:
            return failure
        self.refused += failure == "status 422"
        return "" if failure == "status 422" else f"a poison image: {failure or 'read'}"


@dataclass(frozen=True)
class Load:
    """The images to send, and the fake engine's texts of those that end a process."""

    pictures: list[Picture]
    poison: list[str]


def make_load(*, poisonous: bool) -> Load:
    """Blocks of 100 images; the last of each block is a distinct poison image without a text."""
    good, poisons, hashes = make_pictures(tr=False), [], []
    for number in range(POISONS if poisonous else 0):
        pixels = np.random.default_rng(1000 + number).integers(0, 256, (32, 64, 3), np.uint8)
        poisons.append(Picture(cv2.imencode(".png", pixels)[1].tobytes(), ""))
        hashes.append(f"{zlib.crc32(pixels.tobytes()):08x}")
    blocks = [[*(good[turn % len(good)] for turn in range(BLOCK - 1)), poison] for poison in poisons]
    return Load([picture for block in blocks for picture in block] or good, hashes)


def state_of(pid: int) -> str:
    """The letter of a process's state, Z for a zombie; empty if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def victims(service: Service, kind: str) -> list[int]:
    """The running processes of one kind."""
    workers = service.workers()
    fork_servers = [pid for worker in workers for pid in children_of(worker)]
    return {
        "workers": workers,
        "fork_servers": fork_servers,
        "children": [pid for fork_server in fork_servers for pid in children_of(fork_server)],
    }[kind]


class Killer(threading.Thread):
    """Repeatedly kills a random process of one kind."""

    def __init__(self, service: Service, kind: str, every_s: float, end_s: float) -> None:
        super().__init__(name="killer")
        self._service, self._kind, self._every_s, self._end_s = service, kind, every_s, end_s
        self.kills = 0

    def run(self) -> None:
        """Kill until shortly before the end, so that the effects of the last kill are seen."""
        while time.monotonic() + 2 * self._every_s < self._end_s:
            time.sleep(self._every_s)
            living = victims(self._service, self._kind)
            if living:
                with suppress(ProcessLookupError):
                    os.kill(random.choice(living), signal.SIGKILL)
                    self.kills += 1


def run(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run load and kills, then kill the arbiter; returns the result."""
    load = make_load(poisonous=args.victims != "workers")
    before = set(Path("/dev/shm").iterdir())
    with serve(settings(args, load), folder) as service:
        end_s = time.monotonic() + args.seconds
        killer = Killer(service, args.victims, args.every or EVERY_S[args.victims], end_s)
        turns = NumbersUntil(end_s)
        clients = [ChaosClient(service.port, load.pictures, turns, number) for number in range(args.clients)]
        for thread in (killer, *clients):
            thread.start()
        for thread in (killer, *clients):
            thread.join()
        wait_until(lambda: len(service.workers()) == WORKERS, SETTLE_S, service.text)
        text = service.text()
        with idle_connections(service.port, load.pictures[0]):
            gone_s = kill_arbiter(service, args.gone)
    left = sorted(str(file) for file in set(Path("/dev/shm").iterdir()) - before - shared_memory_in_use())
    return {**figures(clients, args.seconds), **deaths(text), "kills": killer.kills, "gone_s": gone_s, "left": left}


def settings(args: argparse.Namespace, load: Load) -> dict[str, str]:
    """The service's settings: two workers with four engine threads; an image waits, or ends the process."""
    env = {
        "OCRSVC_ENGINE": "fake",
        "OCRSVC_WORKERS": str(WORKERS),
        "OCRSVC_ENGINE_THREADS": "4",
        "OCRSVC_FAKE_LATENCY_S": str(args.latency),
    }
    if args.victims == "workers":
        return env
    poison = {"OCRSVC_FAKE_FAULT": "segfault", "OCRSVC_FAKE_FAULT_ON": ",".join(load.poison)}
    # Short enough that each poison image kills repeatedly.
    return {**env, **poison, "OCRSVC_ISOLATION": "process", "OCRSVC_CRASH_DENYLIST_S": "5"}


@contextmanager
def idle_connections(port: int, picture: Picture, count: int = 4) -> Iterator[None]:
    """Keep connections open that have received an answer."""
    clients = [ChaosClient(port, [picture], (), number) for number in range(count)]
    failures = [failure for client in clients if (failure := client._exchange(picture, keep=True))]  # noqa: SLF001
    assert not failures, failures
    yield
    for client in clients:
        client._hang_up()  # noqa: SLF001


def shared_memory_in_use() -> set[Path]:
    """Shared-memory files that any process has open or mapped."""
    found: set[Path] = set()
    for process in Path("/proc").glob("[0-9]*"):
        # A process may end meanwhile, or belong to another user.
        with suppress(OSError):
            mapped = re.findall(r"\s(/dev/shm/.*)$", (process / "maps").read_text(), re.MULTILINE)
            found.update(map(Path, mapped), (link.readlink() for link in (process / "fd").iterdir()))
    return found


def kill_arbiter(service: Service, max_s: float) -> float | None:
    """Kill the arbiter; returns seconds until all processes have ended, None after `max_s` (then kills them)."""
    family, began_s = list(family_of(service.process.pid)), time.monotonic()
    service.process.kill()
    service.process.wait()

    def all_ended() -> bool:
        # A zombie holds no resources.
        return not [pid for pid in family if state_of(pid) not in ("", "Z")]

    try:
        wait_until(all_ended, max_s, lambda: "processes have not ended")
    except TimeoutError:
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return None
    return round(time.monotonic() - began_s, 2)


def figures(clients: list[ChaosClient], seconds: float) -> dict[str, Any]:
    """Counts and latencies of the clients."""
    latencies = sorted(latency for client in clients for latency in client.tally.latencies_s)
    failures: Counter[str] = sum((client.tally.failures for client in clients), Counter())
    return {
        "answered": len(latencies),
        "per_s": round(len(latencies) / seconds, 1),
        "refused_poison": sum(client.refused for client in clients),
        **{f"p{share}_ms": round(1000 * latencies[len(latencies) * share // 100], 1) for share in (50, 99)},
        "max_ms": round(1000 * latencies[-1], 1),
        "failures": dict(failures),
    }


def deaths(text: str) -> dict[str, Any]:
    """Crashes and denylisted images in the service's log."""
    return {
        "children_lost": dict(Counter(re.findall(r"CHILD \d+ LOST: ([\w ]+)", text))),
        "denied": len(re.findall("DENYLISTED", text)),
    }


def is_failed(result: dict[str, Any], kind: str, clients: int) -> bool:
    """Whether a request failed that must not, or processes or shared memory were left."""
    failures: dict[str, int] = result["failures"]
    allowed = clients * result["kills"] if kind == "workers" else 0
    is_wrong = any("connection" not in name for name in failures)
    return is_wrong or sum(failures.values()) > allowed or result["gone_s"] is None or bool(result["left"])


def main() -> int:
    """Run the benchmark and print the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--victims", choices=tuple(EVERY_S), default="children")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--every", type=float, help="seconds between two kills")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--latency", type=float, default=0.03, help="seconds an image waits in the engine")
    parser.add_argument("--gone", type=float, default=5.0, help="seconds until all processes must have ended")
    parser.add_argument("--log", type=Path, help="file to copy the service's log to")
    args = parser.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory() as folder:
        result = {"victims": args.victims, **run(args, Path(folder))}
        if args.log:
            args.log.write_bytes(next(Path(folder).glob("*.log")).read_bytes())
    print(json.dumps(result))
    return int(is_failed(result, args.victims, args.clients))


if __name__ == "__main__":
    sys.exit(main())
