"""Checks that a long job has each page once and in order when its service is killed repeatedly.

    python benchmarks/jobs_restart.py [--pages 1632] [--kills 5] [--seed 1] [--out FILE]

A PDF of numbered A4 pages is submitted to a service with one worker and the engine `fake` at 20 ms per page. At random
numbers of pages SIGKILL ends the arbiter and all its processes at once, and the service is restarted on the same
folder. Finally the pages are fetched, a hundred at a time, and counted, and a searchable PDF is made. The worker's peak
memory is compared with that of a worker that read one page. Then the document is submitted again and deleted while it
is read, and the pages read after the deletion are counted. Prints missing and repeated pages, seconds from each restart
to the next page, memory, and pages read after the deletion. Exit code 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.machine import print_machine
from bench.results import write_result

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import jobs_support
from jobs_support import JobService, count_page_errors, job_service, numbered_pdf

A4 = (595.0, 842.0)
SETTINGS = {"OCRSVC_FAKE_LATENCY_S": "0.02"}
GOAL_MEMORY_MB = 100.0
# The page in the engine, and the page of the next job.
GOAL_AFTER_DELETION = 2
MB = 1e6


def peak_of_one_page(folder: Path) -> float:
    """Peak memory in MB of a worker that reads a document of one page and makes a PDF of it."""
    with job_service(folder, SETTINGS) as service:
        job_id = service.submit(numbered_pdf(1, A4), format="pdf")
        service.wait(job_id, lambda job: job["state"] == "done")
        return service.peak_bytes() / MB


def read_through(service: JobService, pdf: bytes, pages: int, kills: int) -> dict[str, Any]:
    """Have the document read through several kills; returns the figures."""
    job_id, peaks_mb, restarts_s = service.submit(pdf, format="pdf"), [], []
    began_s = time.monotonic()
    for upto in sorted(random.sample(range(pages // 20, pages - pages // 20), kills)):
        service.wait(job_id, lambda job, upto=upto: job["pages"]["done"] >= upto)  # type: ignore[misc]
        peaks_mb.append(service.peak_bytes() / MB)
        killed_s = time.monotonic()
        service.restart()
        known = service.ask(job_id)["pages"]["done"]
        service.wait(job_id, lambda job, known=known: job["pages"]["done"] > known)  # type: ignore[misc]
        restarts_s.append(round(time.monotonic() - killed_s, 2))
        print(f"  killed at {known} pages; the next one {restarts_s[-1]:.2f} s later", flush=True)
    job = service.wait(job_id, lambda job: job["state"] in {"done", "failed"})
    missing, repeated, in_order = count_page_errors(list(service.pages(job_id)), pages)
    return {
        "state": job["state"],
        "missing": missing,
        "repeated": repeated,
        "in_order": in_order,
        "restarts_s": restarts_s,
        "whole_s": round(time.monotonic() - began_s, 1),
        "peak_mb": round(max([*peaks_mb, service.peak_bytes() / MB]), 1),
    }


def read_after_deletion(service: JobService, pdf: bytes) -> int:
    """Number of pages read after a job is deleted, including one page of the next job."""
    job_id = service.submit(pdf)
    service.wait(job_id, lambda job: job["pages"]["done"] > 0)
    service.delete(job_id)
    before = service.server.metric("ocrsvc_images_total")
    service.wait(service.submit(numbered_pdf(1)), lambda job: job["state"] == "done")
    return int(service.server.metric("ocrsvc_images_total") - before)


def main() -> int:
    """Run the benchmark; returns 0 if every goal is met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pages", type=int, default=1632)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    random.seed(args.seed)
    jobs_support.WAIT_S = 1800.0
    print_machine()
    pdf = numbered_pdf(args.pages, A4)
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        one_mb = peak_of_one_page(Path(first))
        with job_service(Path(second), SETTINGS) as service:
            found = read_through(service, pdf, args.pages, args.kills)
            after = read_after_deletion(service, pdf)
    figures = {"pages": args.pages, "kills": args.kills, **found, "one_page_mb": round(one_mb, 1)}
    figures |= {"more_mb": round(found["peak_mb"] - one_mb, 1), "read_after_deletion": after}
    print(figures)
    write_result("jobs_restart", figures, args.out)
    is_whole = found["state"] == "done" and found["in_order"] and not found["missing"] + found["repeated"]
    is_good = is_whole and figures["more_mb"] <= GOAL_MEMORY_MB and after <= GOAL_AFTER_DELETION
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
