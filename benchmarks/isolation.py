"""Cost of a request whose engine runs in a child process, compared with one in the worker's thread.

    python benchmarks/isolation.py [--rounds 6] [--seconds 3] [--clients 20]

The fake engine waits 0 ms. Measures single calls of `read`, then whole requests on two real services, one of each kind.
Both kinds are measured in turn in short rounds, so that a drifting machine speed affects them alike. Prints medians
over the rounds, and medians of the differences within each round. Exit code 1 on any wrong answer.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from bench.client import text_of
from bench.load import Request, Result, run_load
from bench.machine import print_machine
from bench.pages import scan, tiny_png
from bench.results import write_result
from bench.service import ROOT, Service, ask, started

CALLS = 150
THREAD, PROCESS = "thread", "process"
Pair = dict[str, list[float]]


def payloads() -> dict[str, Request]:
    """Requests with a tiny PNG and with a JPEG of about 131 kB."""
    return {
        "tiny PNG": Request("tiny", "/v1/ocr", "image/png", tiny_png()),
        "JPEG of 131 kB": Request("jpeg", "/v1/ocr", "image/jpeg", scan(0)),
    }


def measure_calls(request: Request, rounds: int) -> dict[str, Pair]:
    """Microseconds per `read` with each kind of handle: elapsed, and processor time of this process.

    The child's processor time is not included.
    """
    sys.path.insert(0, str(ROOT))
    from ocrsvc.engines.open_engine import open_engine
    from ocrsvc.results import Image, ReadTask
    from ocrsvc.settings.settings import Settings
    from ocrsvc.system.thread_plan import ThreadPlan

    pixels = cv2.imdecode(np.frombuffer(request.body, np.uint8), cv2.IMREAD_COLOR)
    task = ReadTask(Image(np.asarray(pixels, np.uint8), "any"))
    engines = {
        kind: open_engine(Settings.model_validate({"engine": "fake", "isolation": kind}), ThreadPlan(1, 1, 1))
        for kind in (THREAD, PROCESS)
    }
    handles = {kind: engine.open_handle() for kind, engine in engines.items()}
    found: dict[str, Pair] = {"wall_us": {THREAD: [], PROCESS: []}, "own_cpu_us": {THREAD: [], PROCESS: []}}
    assert handles[THREAD].read([task]) == handles[PROCESS].read([task])
    for _ in range(rounds):
        for kind, handle in handles.items():
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            for _ in range(CALLS):
                handle.read([task])
            found["wall_us"][kind].append((time.perf_counter() - wall_s) / CALLS * 1e6)
            found["own_cpu_us"][kind].append((time.process_time() - cpu_s) / CALLS * 1e6)
    for kind, handle in handles.items():
        handle.close()
        engines[kind].close()
    return found


def measure_requests(
    services: dict[str, Service], request: Request, rounds: int, clients: int, seconds: float
) -> dict[str, Pair]:
    """Processor milliseconds of all service processes per request, median latency, and requests per second."""
    found: dict[str, Pair] = {name: {THREAD: [], PROCESS: []} for name in ("cpu_ms", "p50_ms", "per_s")}
    for _ in range(rounds):
        for kind, service in services.items():
            result = checked_load(service, request, clients, seconds)
            found["cpu_ms"][kind].append(result.cpu_ms)
            found["p50_ms"][kind].append(result.quantile_ms(0.5))
            found["per_s"][kind].append(result.per_second)
    return found


def checked_load(service: Service, request: Request, clients: int, seconds: float) -> Result:
    """Run a load with one payload. Exits on a wrong answer."""
    alone = ask(service.url, "POST", request.path, request.body, request.content_type)
    result = run_load(service, [request], clients, seconds, keep_alive=True)
    if wrong := result.wrong({request.name: text_of(alone.text.encode(), "application/json")}):
        sys.exit(f"WRONG {wrong[:3]}")
    return result


def summarise(pair: Pair) -> dict[str, float]:
    """Medians of both kinds, and of the differences within each round."""
    differences = [after - before for before, after in zip(pair[THREAD], pair[PROCESS], strict=True)]
    return {
        THREAD: round(statistics.median(pair[THREAD]), 2),
        PROCESS: round(statistics.median(pair[PROCESS]), 2),
        "difference": round(statistics.median(differences), 2),
    }


def show(title: str, found: dict[str, Pair]) -> dict[str, dict[str, float]]:
    """Print and return the medians."""
    rows = {name: summarise(pair) for name, pair in found.items()}
    print(title)
    for name, row in rows.items():
        print(f"  {name}: " + ", ".join(f"{kind} {value:g}" for kind, value in row.items()))
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0 if every answer was right."""
    # Set before anything is decoded, as in the service.
    os.environ.setdefault("OPENCV_FOR_THREADS_NUM", "1")
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=3.0, help="per round of requests")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--out", type=Path, help="JSON output file; default results/isolation.json")
    args = parser.parse_args(arguments)
    print_machine()
    print(f"load: {args.rounds} rounds of each kind in turn; {args.clients} clients, {args.seconds:g} s per round")
    result: dict[str, object] = {}
    for name, request in payloads().items():
        result[f"call, {name}"] = show(f"one call of read, {name}", measure_calls(request, args.rounds))
    env = {"OCRSVC_ENGINE": "fake", "OCRSVC_WORKERS": "1"}
    with (
        started({**env, "OCRSVC_ISOLATION": THREAD}) as threads,
        started({**env, "OCRSVC_ISOLATION": PROCESS}) as processes,
    ):
        services = {THREAD: threads, PROCESS: processes}
        for name, request in payloads().items():
            found = measure_requests(services, request, args.rounds, args.clients, args.seconds)
            result[f"request, {name}"] = show(f"one request, {name}", found)
    write_result("isolation", result, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
