"""Planning time for a million files, time to compare the sources with the plan, and the plan's size.

    python benchmarks/batch_plan.py [--files 1000000] [--out FILE]

The files are small images under many names, a thousand per folder. Each of the two steps runs in its own process.
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

from ocrsvc.batch.plan import Plan, write_plan
from ocrsvc.batch.request import SourceRequest
from ocrsvc.batch.sources.plan_files import check_unchanged, find_sources
from ocrsvc.batch.sources.source_files import PlanningCounts

GOAL_PLAN_S, GOAL_PEAK_MB, GOAL_BYTES = 120.0, 600.0, 300.0
PART_PAGES = 500


def plan(pages: Path, path: Path) -> None:
    """Write the plan."""
    write_plan(path, find_sources(SourceRequest((str(pages),)), PlanningCounts()), PART_PAGES).close()


def compare(pages: Path, path: Path) -> None:
    """Compare the sources with the plan, as every batch command does."""
    check_unchanged(Plan(path).all_files(), SourceRequest((str(pages),)), "here")


def measured(step: Callable[[Path, Path], None], pages: Path, path: Path) -> tuple[float, float, float]:
    """Elapsed seconds, processor seconds and peak memory in MB of a step in a new process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measure, step, pages, path).result()


def _measure(step: Callable[[Path, Path], None], pages: Path, path: Path) -> tuple[float, float, float]:
    began_s, cpu_s = time.perf_counter(), time.process_time()
    step(pages, path)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return round(time.perf_counter() - began_s, 2), round(time.process_time() - cpu_s, 2), round(peak_mb, 1)


def main() -> int:
    """Run the benchmark; returns 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, help="JSON output file; default results/batch_plan.json")
    args = parser.parse_args()
    print_machine()
    figures: dict[str, float] = {"files": args.files}
    with tempfile.TemporaryDirectory() as name:
        pages, path = link_pages(Path(name), args.files), Path(name, "plan.sqlite")
        for label, step in (("plan", plan), ("compare", compare)):
            wall_s, cpu_s, peak_mb = measured(step, pages, path)
            figures |= {f"{label}_s": wall_s, f"{label}_cpu_s": cpu_s, f"{label}_peak_mb": peak_mb}
            print(f"{label:7} {wall_s:7.2f} s, {cpu_s:7.2f} s of processor time, peak {peak_mb:6.1f} MB", flush=True)
        figures["bytes_a_page"] = round(path.stat().st_size / args.files, 1)
    print(f"plan    {figures['bytes_a_page']:7.1f} bytes per page")
    write_result("batch_plan", dict(figures), args.out)
    peak_mb = max(figures["plan_peak_mb"], figures["compare_peak_mb"])
    is_met = figures["plan_s"] <= GOAL_PLAN_S and peak_mb <= GOAL_PEAK_MB and figures["bytes_a_page"] <= GOAL_BYTES
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
