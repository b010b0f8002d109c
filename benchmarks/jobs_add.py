"""Time to add a small document to a job store with many jobs, nine in ten of them done.

    python benchmarks/jobs_add.py [--jobs 1000 10000] [--times 50] [--out FILE]

The store is on this machine's disk, without fsync and without its limit on the number of jobs. Prints for each number
of jobs the CPU milliseconds of a process's first document, which opens the database, and the median of the next ones.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from bench.machine import print_machine
from bench.results import write_result

from ocrsvc.jobs.job import Record
from ocrsvc.jobs.job_store import JobStore

DAY_S = 86_400.0
ASKED = Record("", source="api", name="a.pdf", numbers=[1], count=1)


def fill(folder: Path, jobs: int) -> None:
    """Write the folders of `jobs` jobs into a store's folder, most of them finished."""
    filled = JobStore(folder, 1 << 40, DAY_S, max_jobs=1 << 40)
    first = filled.add(b"a document", ASKED)
    for place in range(jobs - 1):
        copy = folder / f"{place:08x}-0000-4000-8000-000000000000"
        copy.mkdir()
        for file in first.folder.iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
        if place % 10:
            (copy / "pages.jsonl").write_bytes(b'{"number":1}\n')
            (copy / "done.json").write_bytes(b'{"state":"success"}')
    # The sweep adds a database row for each folder.
    filled.sweep()


def measure(jobs: int, times: int) -> dict[str, float]:
    """CPU milliseconds of the first document and of the next ones."""
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder), jobs)
        time.sleep(1.0)
        fresh = JobStore(Path(folder), 1 << 40, DAY_S, max_waiting=1 << 40, max_jobs=1 << 40)
        took_ms = []
        for _ in range(times + 1):
            began_s = time.process_time()
            fresh.add(b"a document", replace(ASKED, caller="caller"))
            took_ms.append((time.process_time() - began_s) * 1e3)
    first, rest = took_ms[0], took_ms[1:]
    return {"first_ms": round(first, 1), "median_ms": round(statistics.median(rest), 2)}


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    print_machine()
    figures: dict[str, object] = {str(jobs): measure(jobs, args.times) for jobs in args.jobs}
    for jobs, found in figures.items():
        print(jobs, found)
    write_result("jobs_add", figures, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
