"""Load by many clients at once: runs client.py as the load generator and summarises its results."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.service import Service

_CLIENT = Path(__file__).with_name("client.py")
_LAST_ANSWERS_S = 120.0

QUANTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99, "max": 1.0}
# A quantile is reported only if at least one of the n values lies beyond it; allow for rounding.
_BEYOND = 0.999


@dataclass(frozen=True, slots=True)
class Request:
    """A request that the clients repeat; `name` identifies it in the results."""

    name: str
    path: str
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Seen:
    """One kind of answer: its request's name, its status and text, and how often it came."""

    name: str
    status: int
    text: str
    count: int


@dataclass(frozen=True, slots=True)
class Result:
    """Results of a load.

    Attributes:
        latencies_s: Seconds of every request, in ascending order, from connecting (or, kept alive, from sending) to the
            last byte of the answer.
        wall_s: Seconds from the first request to the last answer.
        cpu_ms: Processor time of the service per request; 0 when its processes are unknown.
        client_cpu_ms: Processor time of the load generator per request.
        seen: The answers, by kind; a broken connection has status 0.
    """

    latencies_s: tuple[float, ...]
    wall_s: float
    cpu_ms: float
    client_cpu_ms: float
    seen: tuple[Seen, ...]

    @property
    def per_second(self) -> float:
        """Requests answered per second."""
        return len(self.latencies_s) / self.wall_s

    def quantile_ms(self, share: float) -> float:
        """The latency in milliseconds that this share of the requests did not exceed."""
        rank = min(len(self.latencies_s), max(1, math.ceil(share * len(self.latencies_s))))
        return self.latencies_s[rank - 1] * 1000

    @property
    def quantiles_ms(self) -> dict[str, float]:
        """The QUANTILES for which there are enough requests: p95 from 20 on, p99 from 100 on."""
        shown = (name for name, share in QUANTILES.items() if share == 1 or is_meaningful(len(self.latencies_s), share))
        return {name: self.quantile_ms(QUANTILES[name]) for name in shown}

    def wrong(self, expected: dict[str, str]) -> list[Seen]:
        """The answers other than a 200 with the text expected for the request."""
        return [seen for seen in self.seen if seen.status != 200 or seen.text != expected[seen.name]]


def is_meaningful(count: int, share: float) -> bool:
    """Whether `count` values are enough for a quantile."""
    return count * (1 - share) >= _BEYOND


def run_load(
    service: Service, requests: Sequence[Request], clients: int, seconds: float, *, keep_alive: bool
) -> Result:
    """Send the requests in turn from `clients` clients for `seconds` seconds; each client waits for its answer."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder, "plan.json")
        plan.write_text(
            json.dumps(_plan(service, requests, clients, seconds, keep_alive=keep_alive, folder=Path(folder))), "utf-8"
        )
        before_s = service.processes.cpu_s()
        command = [sys.executable, str(_CLIENT), str(plan)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=seconds + _LAST_ANSWERS_S)
        spent_s = service.processes.cpu_s() - before_s
    found = json.loads(done.stdout)
    count = len(found["latencies_s"])
    return Result(
        latencies_s=tuple(sorted(found["latencies_s"])),
        wall_s=found["wall_s"],
        cpu_ms=spent_s * 1000 / count,
        client_cpu_ms=found["cpu_s"] * 1000 / count,
        seen=tuple(Seen(**seen) for seen in found["seen"]),
    )


def summarise(result: Result) -> str:
    """The figures in one line."""
    quantiles = (f"{name} {value:.0f}" for name, value in result.quantiles_ms.items())
    return (
        f"{len(result.latencies_s)} requests in {result.wall_s:.1f} s: {result.per_second:.1f} req/s; "
        f"latency in ms: {', '.join(quantiles)}; CPU of the service {result.cpu_ms:.2f} ms per request "
        f"(of the load generator {result.client_cpu_ms:.2f} ms)"
    )


def as_dict(result: Result) -> dict[str, object]:
    """The figures as a JSON-ready dict."""
    return {
        "requests": len(result.latencies_s),
        "per_second": round(result.per_second, 1),
        "cpu_ms": round(result.cpu_ms, 3),
        "client_cpu_ms": round(result.client_cpu_ms, 3),
        **{f"{name}_ms": round(value, 1) for name, value in result.quantiles_ms.items()},
    }


def _plan(
    service: Service, requests: Sequence[Request], clients: int, seconds: float, *, keep_alive: bool, folder: Path
) -> dict[str, Any]:
    rows = []
    for number, request in enumerate(requests):
        file = folder / f"{number}.body"
        file.write_bytes(request.body)
        rows.append(asdict(request) | {"body": str(file)})
    return {
        "host": service.host,
        "port": service.port,
        "clients": clients,
        "seconds": seconds,
        "keep_alive": keep_alive,
        "requests": rows,
    }
