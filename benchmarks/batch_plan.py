"""A plan of a million pages: how long planning takes, what the ledger holds for a page, and how long going on takes.

    python benchmarks/batch_plan.py [--pages 1000000] [--read 1000000] [--out FILE]

The sources are a few small images under a million names (hard links, a thousand in each folder). Planned with `ocrsvc
batch`'s own functions, as a command does before it reads; then the ledger of a run that has read the pages is written
as the run writes it (one commit for each part, results of two bytes), and a run goes on as the next command does: the
sources are compared with the plan, the ledger is read, and the next part is looked for. Each of the two is done in a
process of its own, with its peak memory.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from bench.batch_command import link_pages
from bench.machine import print_machine
from bench.results import write_result

from ocrsvc.batch.leased_parts import LeasedParts
from ocrsvc.batch.ledger.ledger import Ledger
from ocrsvc.batch.ledger.ledger_log import FinishedPart, LedgerLog
from ocrsvc.batch.ledger.owner import Owner
from ocrsvc.batch.plan import read_plan
from ocrsvc.batch.planning import open_plan
from ocrsvc.batch.sources.planning_counts import PlanningCounts
from ocrsvc.batch.sources.source_request import SourceRequest
from ocrsvc.batch.start import BatchRequest
from ocrsvc.batch.store.local_store import LocalStore
from ocrsvc.batch.tasks import PageResult

GOAL_PLAN_S, GOAL_RESUME_S, GOAL_BYTES = 60.0, 20.0, 100.0
PART_PAGES = 500


def plan(pages: Path, out: Path) -> None:
    """Write the plan."""
    open_plan(LocalStore(out), _request(pages), PlanningCounts())


def _request(pages: Path) -> BatchRequest:
    return BatchRequest(SourceRequest((str(pages),)), {}, ("jsonl",), "local", PART_PAGES)


def note(_pages: Path, out: Path, read: int = 0) -> None:
    """Write the ledger of a run that has read so many pages; the last of their parts is not in the output."""
    store = LocalStore(out)
    known, owner = read_plan(store), Owner.this_process()
    log = LedgerLog(store, owner, {})
    for part in range(known.parts):
        pages = known.pages_of(part)
        if pages.start >= read:
            break
        log.note_lease(part, time.time(), time.time())
        for index in pages:
            log.note_begun([index])
            log.note_page(PageResult(index, b"{}", "", False, 0.1, 0.9, 40, "this process"), 1, time.time())
        if pages.stop < read:
            log.note_finished(FinishedPart(part, len(pages), 0, {f"pages-{part:05d}.jsonl": (1_000_000, "0" * 64)}))
        log.commit()
    log.close()


def go_on(pages: Path, out: Path) -> None:
    """Compare the sources with the plan, read the ledger, lease what is next, and look up its files."""
    store = LocalStore(out)
    known, owner = open_plan(store, _request(pages), PlanningCounts()), Owner.this_process()
    ledger = Ledger(store, known)
    ledger.refresh()
    parts = LeasedParts(ledger, LedgerLog(store, owner, {}), owner, range(known.parts), time.time)
    part = parts.lease_next()
    if part is not None:
        known.files_of(part)


def measured(step: Callable[[Path, Path], None], pages: Path, out: Path) -> tuple[float, float, float]:
    """Seconds by the clock and of processor time, and the peak memory in MB, of a step in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measure, step, pages, out).result()


def _measure(step: Callable[[Path, Path], None], pages: Path, out: Path) -> tuple[float, float, float]:
    began_s, cpu_s = time.perf_counter(), time.process_time()
    step(pages, out)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return round(time.perf_counter() - began_s, 2), round(time.process_time() - cpu_s, 2), round(peak_mb, 1)


def size_of(out: Path, pattern: str) -> int:
    """Bytes of the files of a destination."""
    return sum(file.stat().st_size for file in out.glob(pattern))


def main() -> int:
    """Run once; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pages", type=int, default=1_000_000)
    parser.add_argument("--read", type=int, help="pages that were read before the run goes on; all if left out")
    parser.add_argument("--out", type=Path, help="the JSON file; results/batch_plan.json if left out")
    asked = parser.parse_args()
    read = asked.pages if asked.read is None else asked.read
    print_machine()
    figures: dict[str, float] = {"pages": asked.pages, "read": read}
    with tempfile.TemporaryDirectory() as name:
        out = Path(name, "out")
        pages = link_pages(Path(name), asked.pages)
        steps: dict[str, Callable[[Path, Path], None]] = {"plan": plan, "resume": go_on}
        for label, step in steps.items():
            if label == "resume":
                note(pages, out, read)
            wall_s, cpu_s, peak_mb = measured(step, pages, out)
            figures |= {f"{label}_s": wall_s, f"{label}_cpu_s": cpu_s, f"{label}_peak_mb": peak_mb}
            print(f"{label:7} {wall_s:7.2f} s, {cpu_s:7.2f} s of processor time, peak {peak_mb:6.1f} MB", flush=True)
        plan_bytes, ledger_bytes = size_of(out, "_ocrsvc/plan-*"), size_of(out, "_ocrsvc/ledger/*")
    per_page = ledger_bytes / max(1, read), plan_bytes / asked.pages
    figures |= {"ledger_bytes_a_page": round(per_page[0], 1), "plan_bytes_a_page": round(per_page[1], 1)}
    print(f"ledger  {per_page[0]:7.1f} bytes for each page that was read, and {per_page[1]:.1f} of the plan")
    write_result("batch_plan", dict(figures), asked.out)
    is_quick = figures["plan_s"] <= GOAL_PLAN_S and figures["resume_s"] <= GOAL_RESUME_S
    return 0 if is_quick and sum(per_page) <= GOAL_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
