"""Throughput and CPU time of the process that leads a Ray cluster, by page groups in flight.

    python benchmarks/batch_ray.py [--pages 3000] [--latency 0.05] [--rounds 2]

Two Ray nodes run on this machine with more logical CPUs than it has; their actors run the engine `fake`, which only
waits. As in a real run, one thread of this process holds each group. Each round measures each number of groups in
flight once. Prints pages/s, the pages/s that the wait alone would allow, CPU milliseconds of this process per page, and
its peak memory; then the time of pages while an actor is killed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from bench.machine import print_machine
from bench.pages import tiny_png
from bench.ray_nodes import nodes_of_ray

from ocrsvc.batch.pages import PageGroup, PageReader, SourceFile
from ocrsvc.batch.request import BatchRequest, ClusterRequest, SourceRequest
from ocrsvc.batch.sources.load_files import SourceLoader
from ocrsvc.batch.sources.plan_files import find_sources
from ocrsvc.batch.sources.source_files import PlanningCounts
from ocrsvc.batch.start import open_reader

NODES = 2
ACTORS = 4
IN_FLIGHT = (4, 50, 100, 200)
CPUS = 200


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pages", type=int, default=3000)
    parser.add_argument("--latency", type=float, default=0.05, help="seconds that a page takes")
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory(prefix="ray") as folder, nodes_of_ray(folder, NODES, CPUS) as address:
        os.environ["RAY_ADDRESS"] = address
        path = Path(folder, "page.png")
        path.write_bytes(tiny_png())
        [file] = find_sources(SourceRequest((str(path),)), PlanningCounts())
        found: dict[int, list[tuple[float, float]]] = {number: [] for number in IN_FLIGHT}
        with started(max(IN_FLIGHT), args.latency) as reader:
            for _, number in itertools.product(range(args.rounds), IN_FLIGHT):
                found[number].append(measure(reader, file, args.pages, number))
            report(found, args.latency)
            report_death(reader, file)


def report(found: dict[int, list[tuple[float, float]]], latency_s: float) -> None:
    """Print a line per number of groups in flight, with medians over the rounds."""
    print(f"{'in flight':>9} {'pages/s':>8} {'allowed':>8} {'own CPU ms/page':>16}")
    for number, rounds in found.items():
        rate, cpu_ms = (median(values) for values in zip(*rounds, strict=True))
        print(f"{number:9} {rate:8.0f} {number / latency_s:8.0f} {cpu_ms:16.2f}")
    print(f"peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


def measure(reader: PageReader, file: SourceFile, pages: int, in_flight: int) -> tuple[float, float]:
    """Pages/s, and CPU milliseconds of this process per page."""
    numbers = iter(range(pages))
    lock = threading.Lock()

    def read() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            [result] = reader.read(PageGroup(file, (1,), (number,)))
            assert not result.error, result

    threads = [threading.Thread(target=read) for _ in range(in_flight)]
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return pages / (time.monotonic() - began_s), 1000 * (time.process_time() - began_cpu_s) / pages


def report_death(reader: PageReader, file: SourceFile) -> None:
    """Kill an actor, and print the slowest and median time of the next 20 pages."""
    group = PageGroup(file, (1,), (0,))
    [result] = reader.read(group)
    os.kill(int(result.worker.rpartition("/")[2]), signal.SIGKILL)
    took_s = []
    for _ in range(20):
        began_s = time.monotonic()
        [result] = reader.read(group)
        took_s.append(time.monotonic() - began_s)
        assert not result.error, result
    print(f"an actor was killed: the slowest of 20 pages took {max(took_s):.2f} s, the median {median(took_s):.2f} s")


@contextmanager
def started(in_flight: int, latency_s: float) -> Iterator[PageReader]:
    """A reader whose actors read `in_flight` groups at once."""
    threads = in_flight // ACTORS
    environment = {
        "OCRSVC_ENGINE": "fake",
        "OCRSVC_ISOLATION": "thread",
        "OCRSVC_FAKE_LATENCY_S": str(latency_s),
        "OCRSVC_ENGINE_THREADS": str(threads),
    }
    cluster = ClusterRequest(actors=ACTORS, cpus=threads)
    reader = open_reader(BatchRequest(SourceRequest(()), {}, (), "ray", environment, cluster=cluster), SourceLoader())
    try:
        reader.start()
        while reader.at_once < in_flight:
            time.sleep(0.1)
        yield reader
    finally:
        reader.close()


if __name__ == "__main__":
    main()
