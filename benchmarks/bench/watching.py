"""Starts the clients of watch_client.py, and reports latency and service memory for any period."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.service import Service

_WATCH = Path(__file__).with_name("watch_client.py")
_LIMIT_S = 30.0
_HEALTH_EVERY_S = 0.05
_MEMORY_EVERY_S = 0.05
INNOCENT, HEALTH = "innocent", "health"
# Distinct addresses, so that per-caller limits keep the clients apart.
INNOCENT_SOURCE, HEALTH_SOURCE, HOSTILE_SOURCE = "127.0.0.2", "127.0.0.3", "127.0.0.4"


@dataclass(frozen=True, slots=True)
class Seen:
    """A request of a watching client: its due time, duration and status."""

    due_s: float
    seconds: float
    status: int


class Watch:
    """Records the clients' requests and the service's memory.

    Args:
        service: The service to watch.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._seen: dict[str, list[Seen]] = {INNOCENT: [], HEALTH: []}
        self._memory_mb: list[tuple[float, float]] = []
        self._news = threading.Condition()
        self._done = threading.Event()

    def seen(self, kind: str, from_s: float, to_s: float) -> list[Seen]:
        """The requests due in this period; waits until the last of them has ended."""
        with self._news:
            self._news.wait_for(lambda: bool(self._seen[kind]) and self._seen[kind][-1].due_s >= to_s, 2 * _LIMIT_S)
            return [seen for seen in self._seen[kind] if from_s <= seen.due_s < to_s]

    def peak_mb(self, from_s: float, to_s: float) -> float:
        """Peak resident memory of all processes together in this period."""
        with self._news:
            return max((mb for at_s, mb in self._memory_mb if from_s <= at_s <= to_s), default=0.0)

    def follow(self, lines: Iterator[bytes]) -> None:
        """Record the clients' lines until the clients end."""
        for line in lines:
            kind, due_s, seconds, status = json.loads(line)
            with self._news:
                self._seen[kind].append(Seen(due_s, seconds, status))
                self._news.notify_all()

    def read_memory(self) -> None:
        """Sample the memory until `stop` is called."""
        while not self._done.wait(_MEMORY_EVERY_S):
            sample = (time.monotonic(), self._service.processes.rss_mb())
            with self._news:
                self._memory_mb.append(sample)

    def stop(self) -> None:
        """End `read_memory`."""
        self._done.set()


def quantile_ms(seen: Sequence[Seen], share: float) -> float:
    """The latency in milliseconds that this share did not exceed; 0 without requests."""
    ordered = sorted(one.seconds for one in seen)
    return 1000 * ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


@contextmanager
def watching(service: Service, message: bytes, expected: str, per_s: float) -> Iterator[Watch]:
    """Run the clients and sample the memory while the block runs.

    Args:
        service: The service to watch.
        message: The innocent client's complete request, with Connection: close.
        expected: Text that its answer must contain.
        per_s: How many times per second it is sent.
    """
    health = f"GET /healthz HTTP/1.1\r\nHost: {service.host}:{service.port}\r\nConnection: close\r\n\r\n".encode()
    with tempfile.TemporaryDirectory() as folder:
        kinds = [
            _kind(folder, INNOCENT, INNOCENT_SOURCE, 1 / per_s, message, expected),
            _kind(folder, HEALTH, HEALTH_SOURCE, _HEALTH_EVERY_S, health, ""),
        ]
        plan = Path(folder, "plan.json")
        plan.write_text(
            json.dumps({"host": service.host, "port": service.port, "limit_s": _LIMIT_S, "kinds": kinds}), "utf-8"
        )
        with _following(service, plan) as watch:
            yield watch


def _kind(folder: str, name: str, source: str, every_s: float, message: bytes, expected: str) -> dict[str, object]:
    file = Path(folder, name)
    file.write_bytes(message)
    return {"name": name, "source": source, "every_s": every_s, "message": str(file), "expected": expected}


@contextmanager
def _following(service: Service, plan: Path) -> Iterator[Watch]:
    watch = Watch(service)
    command = [sys.executable, str(_WATCH), str(plan)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as clients:
        assert clients.stdout is not None
        threads = [
            threading.Thread(target=watch.follow, args=(clients.stdout,)),
            threading.Thread(target=watch.read_memory),
        ]
        for thread in threads:
            thread.start()
        try:
            yield watch
        finally:
            watch.stop()
            assert clients.stdin is not None
            clients.stdin.close()
            for thread in threads:
                thread.join()
