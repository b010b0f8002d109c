"""Processor time of one read by the fake engine, in two checkouts in turn: the cost of the request path alone.

    python benchmarks/reader_overhead.py ../main [--after .] [--pairs 100] [--reads 100]
    python benchmarks/reader_overhead.py . --repository    what a model repository of one version costs

Each side is a process with a reader, without HTTP. The order of the sides alternates from pair to pair, so that a
drifting machine speed affects both alike. Prints the medians, and the median of the differences within each pair.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.machine import print_machine
from bench.pages import tiny_png
from bench.results import write_result
from bench.service import ROOT

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from models_support import accept, make_fake

BEFORE, AFTER = "before", "after"

# For each number on stdin, makes that many reads and prints their processor seconds.
_SIDE = """
import json, sys, time
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import ReadOptions
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan

reader = Reader(Settings.model_validate(json.loads(sys.argv[2])), ThreadPlan(1, 4, 1))
reader.start()
page, options = bytes.fromhex(sys.argv[1]), ReadOptions()
for line in sys.stdin:
    began_s = time.process_time()
    for _ in range(int(line)):
        reader.read(page, options, 30.0)
    print(time.process_time() - began_s, flush=True)
reader.stop(5.0)
"""


class Side:
    """A process that reads with one checkout's code, and with a model repository if `folder` is given."""

    def __init__(self, checkout: Path, folder: Path | None = None) -> None:
        settings = {"engine": "fake"}
        if folder is not None:
            settings |= {"model": "fake", "models": f"{folder}/models", "models_state": f"{folder}/state"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SIDE, tiny_png().hex(), json.dumps(settings)],
            env={**os.environ, "PYTHONPATH": str(checkout)},
            cwd=checkout,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def cost_us(self, reads: int) -> float:
        """Processor microseconds per read."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{reads}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline()) / reads * 1e6

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


@contextlib.contextmanager
def sides(before: Path, after: Path, folder: Path | None) -> Iterator[dict[str, Side]]:
    """Both sides, warm; with `folder`, the second reads with a model version from a repository there."""
    with contextlib.ExitStack() as stack:
        if folder is not None:
            accept(folder, make_fake(folder / "models", 1))
        found = {BEFORE: Side(before), AFTER: Side(after, folder)}
        for side in found.values():
            stack.callback(side.close)
            side.cost_us(200)
        yield found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("before", type=Path, help="a checkout")
    parser.add_argument("--after", type=Path, default=ROOT, help="a checkout; default: this one")
    parser.add_argument("--repository", action="store_true", help="the second side reads with a model repository")
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--reads", type=int, default=100, help="reads per side and pair")
    parser.add_argument("--out", type=Path, help="JSON output file; default results/reader_overhead.json")
    args = parser.parse_args(arguments)
    print_machine()
    costs: dict[str, list[float]] = {BEFORE: [], AFTER: []}
    with (
        tempfile.TemporaryDirectory() as made,
        sides(args.before.resolve(), args.after.resolve(), Path(made) if args.repository else None) as both,
    ):
        for pair in range(args.pairs):
            for name in (BEFORE, AFTER) if pair % 2 else (AFTER, BEFORE):
                costs[name].append(both[name].cost_us(args.reads))
    differences = [after - before for before, after in zip(costs[BEFORE], costs[AFTER], strict=True)]
    found: dict[str, object] = {f"{name}_us": round(statistics.median(cost), 2) for name, cost in costs.items()}
    found["difference_us"] = round(statistics.median(differences), 2)
    found["difference_quartiles_us"] = [round(one, 2) for one in statistics.quantiles(differences, n=4)]
    for name, value in found.items():
        print(f"{name}: {value}")
    write_result("reader_overhead", found, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
