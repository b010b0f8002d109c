"""Sources of many files: how long planning takes, and comparing a plan with its sources, and the peak memory of each.

    python benchmarks/batch_sources.py [--members 1000000] [--out FILE]

The sources are one small image under many names: hard links, a thousand in each folder; the members of a tar; those of
a zip; and the rows of a Parquet file in one row group, if pyarrow is there. Each step is done in a process of its own.
Processor time is what counts: the clock depends on the disk.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
from bench.machine import print_machine
from bench.results import write_result

from ocrsvc.batch.plan import Plan, read_plan, write_plan
from ocrsvc.batch.run_description import RunDescription
from ocrsvc.batch.sources.opening import find_sources
from ocrsvc.batch.sources.planning_counts import PlanningCounts
from ocrsvc.batch.sources.source_changes import find_changes
from ocrsvc.batch.sources.source_request import SourceRequest
from ocrsvc.batch.store.local_store import LocalStore

PART_PAGES = 500
IMAGE = bytes(cv2.imencode(".png", np.full((20, 40), 255, np.uint8))[1])


def make_folder(path: Path, members: int) -> None:
    """Hard links, a thousand in each folder."""
    for begin in range(0, members, 1000):
        folder = path / f"{begin // 1000:05d}"
        folder.mkdir(parents=True)
        first = folder / "0000.png"
        first.write_bytes(IMAGE)
        for number in range(1, min(1000, members - begin)):
            os.link(first, folder / f"{number:04d}.png")


def make_tar(path: Path, members: int) -> None:
    """A tar whose headers are patched from one, as the standard library takes long to make them."""
    info = tarfile.TarInfo(f"shard/{0:08d}.png")
    info.size = len(IMAGE)
    header = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    content = IMAGE + bytes(-len(IMAGE) % 512)
    with path.open("wb", buffering=1 << 20) as tar:
        for number in range(members):
            name = f"shard/{number:08d}.png".encode()
            header[: len(name)] = name
            header[148:156] = b" " * 8
            header[148:156] = b"%06o\0 " % sum(header)
            tar.write(header + content)
        tar.write(bytes(1024))


def make_zip(path: Path, members: int) -> None:
    """A zip by the standard library."""
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(members):
            archive.writestr(f"scans/{number:08d}.png", IMAGE)


def make_parquet(path: Path, members: int) -> None:
    """One row group, packed with nothing."""
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table({"image": pa.array([IMAGE] * members, pa.binary())})
    parquet.write_table(table, path, row_group_size=members, compression="none", use_dictionary=False)


def plan(source: Path, out: Path) -> None:
    """Plan the source, as a command does before it reads."""
    request = SourceRequest((str(source),))
    store = LocalStore(out)
    made: Plan = write_plan(store, find_sources(request, PlanningCounts()), PART_PAGES)
    RunDescription(request.sources, {}, ("jsonl",), {}, made.totals.digest, made.name).write(store)


def compare(source: Path, out: Path) -> None:
    """Compare the plan with the source, as the next command does."""
    find_changes(read_plan(LocalStore(out)).all_files(), SourceRequest((str(source),)))


def measured(step: Callable[[Path, Path], None], source: Path, out: Path) -> tuple[float, float, float]:
    """Seconds by the clock and of processor time, and the peak memory in MB, of a step in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measure, step, source, out).result()


def _measure(step: Callable[[Path, Path], None], source: Path, out: Path) -> tuple[float, float, float]:
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    step(source, out)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return time.perf_counter() - began_s, time.process_time() - began_cpu_s, peak_mb


def main() -> None:
    """Make each source, plan it, and compare it with its plan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    figures: dict[str, object] = {"members": args.members}
    print_machine()
    makers = {"folder": make_folder, "shard.tar": make_tar, "scans.zip": make_zip}
    if find_spec("pyarrow") is not None:
        makers["data.parquet"] = make_parquet
    with tempfile.TemporaryDirectory() as folder:
        for name, make in makers.items():
            source, out = Path(folder, name), Path(folder, f"out-{name}")
            make(source, args.members)
            for step in (plan, compare):
                clock_s, cpu_s, peak_mb = measured(step, source, out)
                figures[f"{name} {step.__name__}"] = {"clock_s": clock_s, "cpu_s": cpu_s, "peak_mb": peak_mb}
                print(f"{name:14} {step.__name__:8} {clock_s:7.1f} s, {cpu_s:6.1f} s of CPU, {peak_mb:5.0f} MB")
    write_result("batch_sources", figures, args.out)


if __name__ == "__main__":
    main()
