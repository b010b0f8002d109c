"""Checks that every job is read to its end, each page once, through kills of processes and damage to the database.

    python benchmarks/jobs_killed.py [--jobs 1000] [--pages 3] [--seed 1] [--out FILE]

Four clients submit documents of numbered pages to a service with two workers and the engine `fake` at 10 ms per page;
they resend each with its Idempotency-Key until it is answered. Until all are read, SIGKILL ends in turn a worker, the
arbiter alone, and all processes. The service is restarted, twice with its database file cut in half and once without
the file. Finally the benchmark asks for every accepted job, and prints jobs that are lost, unfinished or duplicated,
and pages that are missing or repeated. Exit code 1 if there are any.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import requests
from bench.machine import print_machine
from bench.results import write_result

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from jobs_support import JobService, count_page_errors, job_service, numbered_pdf

SETTINGS = {
    "OCRSVC_FAKE_LATENCY_S": "0.01",
    "OCRSVC_JOBS_WAITING": "1000",
    "OCRSVC_JOBS_BYTES": "2GB",
    "OCRSVC_DEADLINE_S": "120",
}
CLIENTS = 4
PAUSE_S = 10.0


def submit(service: JobService, pdf: bytes, key: str, ended: threading.Event) -> str:
    """Submit a document until it is accepted; returns the job id."""
    while not ended.is_set():
        with suppress(requests.RequestException):
            sent = requests.post(
                f"{service.server.url}/v1/jobs",
                data=pdf,
                headers={"Idempotency-Key": key, "Content-Type": "application/pdf"},
                timeout=30,
            )
            if sent.status_code == 202:
                return str(sent.json()["id"])
        time.sleep(0.05)
    raise TimeoutError(key)


def damage(service: JobService, how: str) -> None:
    """Damage the jobs' database; no process may have it open."""
    (database,) = service.folder.glob("ocrsvc-jobs/jobs.sqlite")
    if how == "cut in half":
        os.truncate(database, database.stat().st_size // 2)
    elif how == "removed":
        database.unlink()


def keep_killing(service: JobService, ended: threading.Event) -> Iterator[str]:
    """Kill processes repeatedly; yields what was killed."""
    after = iter(("cut in half", "", "removed", "", "cut in half"))
    while not ended.wait(PAUSE_S):
        for what in ("worker", "arbiter", "all"):
            if ended.wait(PAUSE_S * random.random()):
                return
            if what == "worker":
                with suppress(ProcessLookupError, IndexError):
                    os.kill(random.choice(service.server.workers()), signal.SIGKILL)
                yield what
                continue
            if what == "arbiter":
                os.kill(service.server.pid, signal.SIGKILL)
                # Its workers notice within a second, and end.
                time.sleep(2.0)
            how = next(after, "")
            service.restart(before_start=lambda how=how: damage(service, how))  # type: ignore[misc]
            yield f"{what}, database {how or 'whole'}"


def run(jobs: int, pages: int) -> dict[str, Any]:
    """Run everything; returns the counts of lost, missing and repeated items."""
    pdf, ended, killed = numbered_pdf(pages), threading.Event(), []
    with tempfile.TemporaryDirectory() as folder, job_service(Path(folder), SETTINGS, workers=2) as service:

        def kill() -> None:
            for what in keep_killing(service, ended):
                killed.append(what)
                print(f"  killed: {what}", flush=True)

        began_s = time.monotonic()
        killer = threading.Thread(target=kill)
        killer.start()
        with ThreadPoolExecutor(CLIENTS) as pool:
            ids = list(pool.map(lambda number: submit(service, pdf, f"key {number}", ended), range(jobs)))
        print(f"  {jobs} jobs were accepted within {time.monotonic() - began_s:.0f} s", flush=True)
        states: dict[str, str] = {}
        while len(states) < jobs and time.monotonic() < began_s + 1800:
            for job_id in ids:
                if states.get(job_id) is None:
                    with suppress(requests.ConnectionError, requests.Timeout, requests.HTTPError):
                        answer = requests.get(f"{service.server.url}/v1/jobs/{job_id}", timeout=30)
                        state = "lost" if answer.status_code == 404 else answer.json().get("state", "")
                        if state in {"done", "failed", "lost"}:
                            states[job_id] = state
            time.sleep(0.5)
        ended.set()
        killer.join()
        for job_id in (job_id for job_id in ids if states.get(job_id) == "failed"):
            print(f"  failed: {service.ask(job_id)['error']}", flush=True)
        folders = len(list(service.folder.glob("ocrsvc-jobs/*/job.json")))
        found = [
            count_page_errors(list(service.pages(job_id)), pages) for job_id in ids if states.get(job_id) == "done"
        ]
    return {
        "jobs": jobs,
        "pages": pages,
        "kills": len(killed),
        "lost": sum(state == "lost" for state in states.values()),
        "not_done": jobs - sum(state == "done" for state in states.values()),
        "twice": folders - len(set(ids)),
        "missing": sum(missing for missing, _, _ in found),
        "repeated": sum(repeated for _, repeated, _ in found),
        "out_of_order": sum(not in_order for _, _, in_order in found),
        "whole_s": round(time.monotonic() - began_s, 1),
    }


def main() -> int:
    """Run the benchmark; returns 0 if nothing is lost, missing or repeated."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--pages", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    random.seed(args.seed)
    print_machine()
    figures = run(args.jobs, args.pages)
    print(figures)
    write_result("jobs_killed", figures, args.out)
    return int(any(figures[name] for name in ("lost", "not_done", "twice", "missing", "repeated", "out_of_order")))


if __name__ == "__main__":
    sys.exit(main())
