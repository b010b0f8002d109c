"""How long it takes to leave a small document in a job store that holds many, of which nine in ten are done.

    python benchmarks/jobs_add.py [--jobs 1000 10000] [--times 50] [--out FILE]

The store is on this machine's disk, without fsync, and its bound on the number of jobs is lifted. Printed for each
number: milliseconds of CPU for the first document of a process, which opens the database, and the median of the next
ones.
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
    """Lay jobs into the folder of a store, as they lie there once they were read."""
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
    # Gives each its row.
    filled.sweep()


def measure(jobs: int, times: int) -> dict[str, float]:
    """Milliseconds of CPU of each kind."""
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
    """The whole benchmark."""
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
