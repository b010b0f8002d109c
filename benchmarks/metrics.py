"""Checks that metrics stay exact while workers are replaced and killed, and measures the cost of scraping them.

    python benchmarks/metrics.py [--recycles 20] [--requests 100]

Clients continuously send images, files that are not images, and unknown paths to two workers with the fake engine.
Meanwhile SIGUSR2 replaces workers one after the other. Afterwards the clients' counts are compared with /metrics. Then
workers are killed without load, and the counts are compared again. Finally /metrics and /ops/overview are requested
repeatedly to measure the processor time per request. Exit code 1 if a count is wrong.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.machine import print_machine
from bench.pages import tiny_png
from bench.results import write_result
from bench.service import Service, ask, started

CLIENTS = 4
KILLS = 5
REPLACED = 'ocrsvc_recycles_total{reason="operator"}'
ENV = {"OCRSVC_ENGINE": "fake", "OCRSVC_WORKERS": "2", "OCRSVC_ENGINE_THREADS": "2", "OCRSVC_OPS": "local"}
KINDS = (("POST", "/v1/ocr", tiny_png()), ("POST", "/v1/ocr", b"no image"), ("GET", "/nowhere", None))
PATHS = ("/metrics", "/ops/overview", "/healthz")
_LIMIT_S = 300.0


def keep_asking(service: Service, done: threading.Event, got: Counter[int], lock: threading.Lock) -> None:
    """One client: sends each kind of request in turn, each on a new connection."""
    for method, path, body in itertools.cycle(KINDS):
        if done.is_set():
            return
        status = ask(service.url, method, path, body, "application/octet-stream" if body else "").status
        with lock:
            got[status] += 1


def numbers(service: Service) -> dict[str, float]:
    """Every sample of /metrics, by name and labels."""
    lines = ask(service.url, "GET", "/metrics").text.splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


def counted(service: Service) -> Counter[int]:
    """The service's counts of answers by status, without those to operators."""
    found: Counter[int] = Counter()
    for name, value in numbers(service).items():
        match = re.match(r'ocrsvc_requests_total\{adapter="(\w+)",code="\w+",status="(\d+)"\}', name)
        if match and match[1] not in {"ops", "operators"}:
            found[int(match[2])] += int(value)
    return found


def workers(service: Service) -> list[dict[str, object]]:
    """The running workers, as /ops/workers lists them."""
    found: list[dict[str, object]] = json.loads(ask(service.url, "GET", "/ops/workers").text)["workers"]
    return found


def is_replaced(service: Service, pid: int) -> bool:
    """Whether two workers are ready and `pid` is not one of them."""
    return all_ready(service) and pid not in {worker["pid"] for worker in workers(service)}


def pid_of_first(service: Service) -> int:
    """Process id of the worker in the lowest slot."""
    return int(str(workers(service)[0]["pid"]))


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds; exits after the time limit."""
    until_s = time.monotonic() + _LIMIT_S
    while not condition():
        if time.monotonic() > until_s:
            sys.exit(f"timed out waiting until {what}")
        time.sleep(0.05)


def all_ready(service: Service) -> bool:
    """Whether exactly two workers run, both ready."""
    found = workers(service)
    return len(found) == 2 and {worker["state"] for worker in found} == {"ready"}


def replace_under_load(service: Service, recycles: int) -> Counter[int]:
    """Replace workers while clients send requests; returns the clients' counts by status."""
    got, lock, done = Counter[int](), threading.Lock(), threading.Event()
    clients = [threading.Thread(target=keep_asking, args=(service, done, got, lock)) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    for number in range(recycles):
        os.kill(int(str(workers(service)[0]["pid"])), signal.SIGUSR2)
        reached = 'ocrsvc_recycles_total{reason="operator"}'
        wait_for(lambda: numbers(service)[reached] > number and all_ready(service), "a worker is replaced")  # noqa: B023
    done.set()
    for client in clients:
        client.join()
    return got


def kill_idle(service: Service, kills: int) -> None:
    """Kill workers one after the other, without load."""
    for _ in range(kills):
        victim = pid_of_first(service)
        os.kill(victim, signal.SIGKILL)
        wait_for(partial(is_replaced, service, victim), "a killed worker is replaced")


def cpu_ms(service: Service, path: str, requests: int) -> float:
    """Processor time of the service per request to a path."""
    before_s = service.processes.cpu_s()
    for _ in range(requests):
        ask(service.url, "GET", path)
    return (service.processes.cpu_s() - before_s) / requests * 1000


def main() -> int:
    """Run the benchmark; returns 1 if a count is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--recycles", type=int, default=20)
    parser.add_argument("--requests", type=int, default=100, help="per path")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    print_machine()
    with started(ENV) as service:
        wait_for(lambda: all_ready(service), "both workers are ready")
        got = replace_under_load(service, args.recycles)
        after_recycles = counted(service)
        kill_idle(service, KILLS)
        after_kills, images = counted(service), numbers(service)['ocrsvc_images_total{source="request"}']
        costs = {
            path: round(cpu_ms(service, path, args.requests), 2) for path in ("/metrics", "/ops/overview", "/healthz")
        }
    right = got == after_recycles == after_kills and images == got[200]
    print(f"clients got {dict(got)}; counted {dict(after_recycles)}, after {KILLS} kills {dict(after_kills)}")
    print(f"{args.recycles} workers replaced, {images:.0f} images: {'exact' if right else 'WRONG'}")
    print(f"CPU ms per request: {costs}")
    figures = {"recycles": args.recycles, "kills": KILLS, "requests": got.total(), "exact": right, "cpu_ms": costs}
    write_result("metrics", figures, args.out)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
