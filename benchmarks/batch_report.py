"""Memory and time of the report of a large batch run.

    python benchmarks/batch_report.py [--pages 1000000] [--most-mb 200] [--most-cpu-s 20]

Writes plan and ledger of a run that never was, of files that are not there, and has the report made in a fresh process.
Exit code 1 when it takes more memory or processor time than that: how long it takes says how busy the machine is.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from bench.machine import print_machine

from ocrsvc.batch.ledger.ledger_log import LedgerLog
from ocrsvc.batch.ledger.owner import Owner
from ocrsvc.batch.plan import write_plan
from ocrsvc.batch.run_description import RunDescription
from ocrsvc.batch.store.local_store import LocalStore
from ocrsvc.batch.tasks import PageResult, SourceFile

FILE_PAGES, PART_PAGES, COMMIT_PAGES = 4, 500, 5000
REASONS = ("broken_image", "deadline_exceeded", "unsupported_image")


def source_files(pages: int) -> Iterator[SourceFile]:
    """PDFs of four pages."""
    for number in range(pages // FILE_PAGES):
        name = f"/archive/box-{number // 1000:04}/scan-{number:07}.pdf"
        yield SourceFile(name, name, f"{number}", 100_000, FILE_PAGES, range(1, FILE_PAGES + 1))


def write_run(store: LocalStore, pages: int) -> None:
    """Plan and ledger: 220 pages/s by 20 workers, four of a thousand failed."""
    plan = write_plan(store, source_files(pages), PART_PAGES)
    planning = {"part_pages": PART_PAGES}
    RunDescription(("/archive",), {}, ("jsonl",), planning, plan.totals.digest, plan.name).write(store)
    random, owner = np.random.default_rng(1), Owner.this_process()
    log = LedgerLog(store, owner, {"reader": {"engine": "fake"}})
    seconds, confidences = random.lognormal(-1.2, 0.9, pages), random.beta(12, 1, pages)
    failed, lines = random.random(pages) < 0.004, random.poisson(30, pages)
    for page in range(plan.totals.pages):
        error = REASONS[page % 3] if failed[page] else ""
        worker = f"http://host-{page % 20}:8000"
        count = 0 if error else int(lines[page])
        result = PageResult(
            page, b'{"text":"x"}', error, False, float(seconds[page]), float(confidences[page]), count, worker
        )
        log.note_page(result, 1 + page % 97 // 96, owner.began + page / 220)
        if page % COMMIT_PAGES == 0:
            log.commit()
    log.end()
    log.close()


def measure(folder: str) -> tuple[float, float, float, int]:
    """Seconds, those of the processor, peak RSS in MB and bytes of the report; in a process of its own."""
    from ocrsvc.batch.report.write_report import write_report
    from ocrsvc.batch.sources.loading import SourceLoader

    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    name = write_report(LocalStore(Path(folder)), SourceLoader())
    took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return took_s, cpu_s, peak_mb, (Path(folder) / name).stat().st_size


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once; 0 when it is within the limits."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pages", type=int, default=1_000_000)
    parser.add_argument("--most-mb", type=float, default=200.0)
    parser.add_argument("--most-cpu-s", type=float, default=20.0)
    asked = parser.parse_args(arguments)
    print_machine()
    with tempfile.TemporaryDirectory() as folder:
        write_run(LocalStore(Path(folder)), asked.pages)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            took_s, cpu_s, peak_mb, size = pool.apply(measure, (folder,))
    took = f"{took_s:.2f} s, {cpu_s:.2f} s of CPU"
    print(f"{asked.pages} pages: {took}, peak RSS {peak_mb:.0f} MB, report of {size / 1000:.0f} kB")
    return int(cpu_s > asked.most_cpu_s or peak_mb > asked.most_mb)


if __name__ == "__main__":
    sys.exit(main())
