"""Injects operating-system faults into a real service under load, one after the other.

    python benchmarks/chaos_faults.py                 all of them, about five minutes
    python benchmarks/chaos_faults.py fork clock      those whose names contain one of the words

Each fault gets a new service with two workers and the fake engine, and 20 clients that check every answer. It lasts
some seconds, while a worker is killed or replaced or the configuration is reloaded. The arbiter must survive, both
workers must be ready soon after the fault is lifted, and no request may fail except those on a failed process: at most
one per client and process. The last line of stdout is the result as JSON; exit code 1 if a fault was not survived. A
preloaded library (tests/doubles/os_faults.py; needs `cc`) makes system calls fail. Some faults use cgroups or a small
tmpfs, and are skipped where these cannot be made.
"""

from __future__ import annotations

import argparse
import http.client
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from bench.faults import FAULTS, SETTLE_S, TIMEOUT_S, Fault, Scene, Skipped
from bench.machine import print_machine
from chaos import NumbersUntil

# Importable because bench.faults adds tests/doubles/ to sys.path.
from os_faults import Faults
from soak import KINDS, WORKERS, Client, Service, make_pictures, serve, wait_until

Start = Callable[[Mapping[str, str], Path], AbstractContextManager[Service]]


def is_settled(service: Service) -> bool:
    """Whether both workers are ready and neither is about to be replaced."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=5)
    try:
        connection.request("GET", "/ops/workers")
        workers = json.loads(connection.getresponse().read())["workers"]
    except (OSError, ValueError, KeyError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return len(workers) == WORKERS and all(worker["state"] == "ready" and not worker["reason"] for worker in workers)


def run(fault: Fault, args: argparse.Namespace, folder: Path, start: Start = serve) -> dict[str, Any]:
    """Start a service, inject the fault under load, and return the result.

    Args:
        start: Starts the service with settings and a folder.
    """
    faults = Faults(folder)
    usual = {
        "OCRSVC_ENGINE": "fake",
        "OCRSVC_WORKERS": str(WORKERS),
        "OCRSVC_ENGINE_THREADS": "4",
        "OCRSVC_FAKE_LATENCY_S": str(args.latency),
        "GUNICORN_CMD_ARGS": f"--timeout {TIMEOUT_S}",
    }
    own = {name: value.replace("{folder}", str(folder)) for name, value in fault.env.items()}
    with ExitStack() as stack:
        made = fault.made(folder) if fault.made else None
        if made is not None:
            stack.enter_context(made)
        service = stack.enter_context(start({**usual, **own, **faults.environment}, folder))
        scene = Scene(service, faults, folder, args.seconds)
        return observe(fault, scene, args)


def observe(fault: Fault, scene: Scene, args: argparse.Namespace) -> dict[str, Any]:
    """Run the clients before, during and after the fault; returns their figures."""
    turns = NumbersUntil(float("inf"))
    clients = [
        Client(scene.service.port, KINDS[number % len(KINDS)], make_pictures(tr=False), turns, number)
        for number in range(args.clients)
    ]
    for client in clients:
        client.start()
    try:
        time.sleep(1.0)
        began_s = time.monotonic()
        fault.inject(scene)
        lifted_s = time.monotonic()
        ended = scene.service.process.poll
        wait_until(
            lambda: is_settled(scene.service) or ended() is not None,
            SETTLE_S,
            lambda: "the workers did not become ready again",
        )
        settled_s = time.monotonic()
        time.sleep(1.0)
        problem = "" if ended() is None else f"the arbiter ended with {ended()}"
    except (TimeoutError, AssertionError, StopIteration) as error:
        lifted_s = settled_s = began_s
        problem = str(error) or type(error).__name__
    finally:
        turns.end()
        for client in clients:
            client.join()
    failures: Counter[str] = sum((client.tally.failures for client in clients), Counter())
    latencies = sorted(latency for client in clients for latency in client.tally.latencies_s)
    allowed = args.clients * scene.failed
    if not problem and sum(failures.values()) > allowed:
        problem = f"{sum(failures.values())} requests failed, at most {allowed} may"
    return {
        "fault": fault.name,
        "for_s": round(lifted_s - began_s, 1),
        "failed_processes": scene.failed,
        "answered": len(latencies),
        "failures": dict(failures),
        "max_ms": round(1000 * max(latencies, default=0.0)),
        "settled_s": round(settled_s - lifted_s, 1),
        "verdict": problem or "survived",
    }


def row(result: Mapping[str, Any]) -> str:
    """A row of the printed table."""
    failures = ", ".join(f"{count} {name}" for name, count in result["failures"].items()) or "0"
    cells = (result["for_s"], result["failed_processes"], result["answered"], failures, result["max_ms"])
    return f"| {result['fault']} | {' | '.join(map(str, cells))} | {result['settled_s']} | {result['verdict']} |"


def main() -> int:
    """Run the benchmark; returns the exit code."""
    args = arguments().parse_args()
    print_machine()
    return run_all(args)


def arguments() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*", help="only faults whose names contain one of these")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long a fault lasts")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--latency", type=float, default=0.03, help="seconds an image waits in the engine")
    parser.add_argument("--log", type=Path, help="folder to copy the services' logs to")
    return parser


def run_all(args: argparse.Namespace, start: Start = serve) -> int:
    """Inject all faults, and print the table and the result as JSON; returns the exit code."""
    print(f"settings: {WORKERS} workers, {args.clients} clients, heartbeat {TIMEOUT_S} s, engine fake {args.latency} s")
    print("| Fault | for s | processes failed | answered | failed | max ms | ready again after s | verdict |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    results = []
    for fault in FAULTS:
        if args.words and not any(word in fault.name for word in args.words):
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                results.append(run(fault, args, Path(folder), start))
                print(row(results[-1]), flush=True)
            except Skipped as reason:
                print(f"| {fault.name} | | | | | | | skipped: {reason} |", flush=True)
            if args.log:
                for log in Path(folder).glob("*.log"):
                    shutil.copy(log, args.log / f"{len(results):02}.log")
    lost = [result for result in results if result["verdict"] != "survived"]
    print(json.dumps({"faults": len(results), "survived": len(results) - len(lost), "lost": lost}))
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
