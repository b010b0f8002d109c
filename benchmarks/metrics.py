"""Whether the metrics are exact while workers are replaced and killed, and what it costs to ask for them.

    python benchmarks/metrics.py [--recycles 20] [--requests 100]

Two workers with the fake engine. Clients send images, files that are none, and paths that are none, all the time;
meanwhile workers are replaced by SIGUSR2, one after the other, and what every client got is compared with what
/metrics says at the end. After that workers are killed while nobody asks, and it is compared again. Then /metrics and
/ops/overview are asked again and again, and the processor time of the service is divided by the requests. Exit code 1
when a number is wrong.
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


def ask_on_and_on(service: Service, done: threading.Event, got: Counter[int], lock: threading.Lock) -> None:
    """One client: each kind of request in turn, on a connection of its own."""
    for method, path, body in itertools.cycle(KINDS):
        if done.is_set():
            return
        status = ask(service.url, method, path, body, "application/octet-stream" if body else "").status
        with lock:
            got[status] += 1


def numbers(service: Service) -> dict[str, float]:
    """Every sample of /metrics, by its name and labels as they are written."""
    lines = ask(service.url, "GET", "/metrics").text.splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


def counted(service: Service) -> Counter[int]:
    """The answers by status that the service has counted, but for those to operators."""
    found: Counter[int] = Counter()
    for name, value in numbers(service).items():
        match = re.match(r'ocrsvc_requests_total\{adapter="(\w+)",code="\w+",status="(\d+)"\}', name)
        if match and match[1] not in {"ops", "operators"}:
            found[int(match[2])] += int(value)
    return found


def workers(service: Service) -> list[dict[str, object]]:
    """The list of the workers that live."""
    found: list[dict[str, object]] = json.loads(ask(service.url, "GET", "/ops/workers").text)["workers"]
    return found


def is_replaced(service: Service, pid: int) -> bool:
    """Whether two workers serve, and this is none of them."""
    return all_ready(service) and pid not in {worker["pid"] for worker in workers(service)}


def pid_of_first(service: Service) -> int:
    """The process of the worker in the lowest slot."""
    return int(str(workers(service)[0]["pid"]))


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    """Until a condition holds; exits when it does not in time."""
    until_s = time.monotonic() + _LIMIT_S
    while not is_so():
        if time.monotonic() > until_s:
            sys.exit(f"never: {what}")
        time.sleep(0.05)


def all_ready(service: Service) -> bool:
    """Whether two workers serve, and none else lives."""
    found = workers(service)
    return len(found) == 2 and {worker["state"] for worker in found} == {"ready"}


def replace_under_load(service: Service, recycles: int) -> Counter[int]:
    """Replace so many workers while clients ask; what the clients got."""
    got, lock, done = Counter[int](), threading.Lock(), threading.Event()
    clients = [threading.Thread(target=ask_on_and_on, args=(service, done, got, lock)) for _ in range(CLIENTS)]
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
    """Kill workers while nobody asks, one after the other."""
    for _ in range(kills):
        victim = pid_of_first(service)
        os.kill(victim, signal.SIGKILL)
        wait_for(partial(is_replaced, service, victim), "a successor")


def cpu_ms(service: Service, path: str, requests: int) -> float:
    """Processor time of the service for one request to a path."""
    before_s = service.processes.cpu_s()
    for _ in range(requests):
        ask(service.url, "GET", path)
    return (service.processes.cpu_s() - before_s) / requests * 1000


def main() -> int:
    """Run, print, write; 1 when a number is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--recycles", type=int, default=20)
    parser.add_argument("--requests", type=int, default=100, help="for each cost")
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
    print(f"CPU ms a request: {costs}")
    figures = {"recycles": args.recycles, "kills": KILLS, "requests": got.total(), "exact": right, "cpu_ms": costs}
    write_result("metrics", figures, args.out)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
