"""Throughput of `ocrsvc batch` compared with the bare models on the same cores, and the CPU cost of its own process.

    python benchmarks/batch_throughput.py [--shared ../shared] [--pages 275] [--rounds 1] [--fake 20000]
        [--ways local,services,ray]

Own cost: reads generated pages with the engine `fake` in child processes, and measures the processor time per page of
the command's own process, which plans, takes results and writes. --fake 0 skips this.

Throughput: reads corpus pages each way in turn. In each round the ceiling is measured too: ONNX Runtime alone on the
tensors that the pipeline passes to its models for these pages (as `ceiling.py` does). Elapsed time counts from the
first started page to the last result, processor time from the moment the engine is ready, so start and planning are
excluded; pages/s of the whole command are printed too. On a shared machine processor time is more reliable than elapsed
time. The outputs of all ways and rounds are compared byte by byte.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from bench.batch_command import BatchProcess, link_pages
from bench.corpus import Corpus
from bench.machine import cores, print_machine
from bench.models import Models, TimeSpent, timed
from bench.processes import Processes
from bench.ray_nodes import nodes_of_ray
from bench.results import write_result
from bench.service import ROOT, started

GOAL_SHARE = 0.95
GOAL_OWN_MS = 3.0
_AT_ONCE = 24
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@contextmanager
def local(_environment: Mapping[str, str]) -> Iterator[Sequence[str]]:
    """This machine's engine threads."""
    yield ["--on", "local"]


@contextmanager
def services(environment: Mapping[str, str]) -> Iterator[Sequence[str]]:
    """Two services, each with half of the cores as engine threads."""
    own = {**environment, "OCRSVC_WORKERS": "1", "OCRSVC_ENGINE_THREADS": str(max(1, cores() // 2))}
    with started(own) as one, started(own) as other:
        yield ["--on", f"{one.url},{other.url}"]


@contextmanager
def ray(_environment: Mapping[str, str]) -> Iterator[Sequence[str]]:
    """Two Ray nodes, each with half of the cores."""
    with (
        tempfile.TemporaryDirectory(prefix="ray") as folder,
        nodes_of_ray(folder, 2, max(1, cores() // 2)) as address,
    ):
        os.environ["RAY_ADDRESS"] = address
        try:
            yield ["--on", "ray"]
        finally:
            del os.environ["RAY_ADDRESS"]


WAYS = {"local": local, "services": services, "ray": ray}
"""Ways to read the pages: context managers that yield the command's --on arguments."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of the command.

    Attributes:
        whole_s: Seconds from its start to its end.
        read_s: Seconds from the first started page to the last result.
        own_cpu_s: Processor time of its first process since the engine was ready.
        cpu_s: Processor time of all its processes since the engine was ready.
        digest: Hash of the output.
    """

    whole_s: float
    read_s: float
    own_cpu_s: float
    cpu_s: float
    digest: str


def measure(sources: Sequence[str], out: Path, environment: Mapping[str, str], on: Sequence[str]) -> Measured:
    """Run the command once; exits if a page was not read."""
    messages = out.with_suffix(".messages")
    process = BatchProcess([*sources, "--out", str(out), "--no-report", "--quiet", *on], environment, messages)
    family = Processes(process.pid)
    # The work file appears when the reader is ready. Only look for the file: scanning all processes would be slow.
    while process.is_running() and not list(out.glob("_ocrsvc/work/*.sqlite")):
        time.sleep(0.01)
    own, every = start = _own_cpu_s(process.pid), family.cpu_s()
    while process.is_running():
        # /proc has nothing about ended processes, so the last sample counts.
        own, every = max(own, _own_cpu_s(process.pid)), max(every, family.cpu_s())
        time.sleep(0.02)
    code, whole_s = process.wait(), time.monotonic() - process.began_s
    if code != 0:
        sys.exit(f"FAILED {code}: {messages.read_text('utf-8', 'replace')[-2000:]}")
    return Measured(whole_s, _read_s(out), own - start[0], every - start[1], _digest(out))


def _own_cpu_s(pid: int) -> float:
    """utime and stime of proc(5), without the children's."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[11:13])) / _TICKS_PER_S


def _read_s(out: Path) -> float:
    manifests = [json.loads(file.read_bytes()) for file in out.glob("_ocrsvc/parts/*.json")]
    pages = [(at, seconds) for found in manifests for _, _, at, seconds, *_ in found["pages"]]
    return float(max(at for at, _ in pages) - min(at - seconds for at, seconds in pages))


def _digest(out: Path) -> str:
    hashed = hashlib.sha256()
    for file in sorted(out.glob("*.jsonl")):
        hashed.update(file.read_bytes())
    return hashed.hexdigest()


def measure_own_process(folder: Path, count: int) -> dict[str, float]:
    """Processor time per page of the command's own process, with an engine that costs almost nothing."""
    pages = link_pages(folder / "generated", count)
    found = measure([str(pages)], folder / "own", {"OCRSVC_ENGINE": "fake"}, ["--on", "local"])
    own_ms = found.own_cpu_s / count * 1000
    print(f"own process: {own_ms:.3f} ms of processor time per page (goal: at most {GOAL_OWN_MS})", flush=True)
    print(
        f"          {count / found.read_s:.0f} pages/s with the engine fake; {found.cpu_s / count * 1000:.3f} ms in all"
    )
    return {"own_ms": own_ms, "fake_pages_s": count / found.read_s, "fake_cpu_ms": found.cpu_s / count * 1000}


def measure_ceiling(files: Sequence[Path], models: Models) -> TimeSpent:
    """The faster of two thread plans over the tensors of all pages, recorded a few pages at a time."""
    plans: dict[str, list[TimeSpent]] = {"narrow": [], "wide": []}
    with ThreadPoolExecutor(models.cores) as pool:
        for begin in range(0, len(files), _AT_ONCE):
            inputs = models.record([file.read_bytes() for file in files[begin : begin + _AT_ONCE]])
            plans["narrow"].append(timed(lambda: list(pool.map(models.run_page, inputs))))  # noqa: B023  run at once
            plans["wide"].append(timed(lambda: list(map(models.run_page_wide, inputs))))  # noqa: B023
    sums = [TimeSpent(sum(one.wall_s for one in plan), sum(one.cpu_s for one in plan)) for plan in plans.values()]
    # Take each minimum by itself: threads inside a run burn processor time while they wait for each other.
    return TimeSpent(min(spent.wall_s for spent in sums), min(spent.cpu_s for spent in sums))


def print_share(name: str, rounds: Sequence[Measured], ceilings: Sequence[TimeSpent], pages: int) -> dict[str, float]:
    """Print a way's pages/s and its share of the ceiling, both medians over the rounds; returns the figures."""
    clock = median(ceiling.wall_s / run.read_s for ceiling, run in zip(ceilings, rounds, strict=True))
    cpu = median(ceiling.cpu_s / run.cpu_s for ceiling, run in zip(ceilings, rounds, strict=True))
    read_s, whole_s = median(run.read_s for run in rounds), median(run.whole_s for run in rounds)
    own_ms = median(run.own_cpu_s for run in rounds) / pages * 1000
    # The processor time of services and Ray nodes is not in the command's processes.
    by_cpu = f", {cpu:.1%} by processor time" if name == "local" else ""
    print(
        f"{name:8} {pages / read_s:6.2f} pages/s while reading, {pages / whole_s:6.2f} for the whole command; share of "
        f"the ceiling {clock:.1%} by the clock{by_cpu} (goal: at least {GOAL_SHARE:.0%}); own process "
        f"{own_ms:.2f} ms per page"
    )
    figures = {"pages_s": pages / read_s, "whole_pages_s": pages / whole_s, "share_clock": clock, "own_ms": own_ms}
    return figures | ({"share_cpu": cpu} if name == "local" else {})


def measure_throughput(folder: Path, args: argparse.Namespace) -> tuple[dict[str, object], bool]:
    """Measure the ceiling and every way in turn; returns the figures, and whether all outputs are identical."""
    every = Corpus(args.shared).pages
    files = [page.file for page in every[:: max(1, len(every) // args.pages)][: args.pages]]
    sources = folder / "corpus"
    sources.mkdir()
    for number, file in enumerate(files):
        (sources / f"{number:04d}{file.suffix}").symlink_to(file.resolve())
    # The same settings as the bare runs.
    environment = {
        "OCRSVC_ENGINE": "ppocr",
        "OCRSVC_DEVICE": "cpu",
        "OCRSVC_PROVIDER": "cpu",
        "OCRSVC_PRECISION": "fp32",
    }
    models = Models(cores())
    runs: dict[str, list[Measured]] = {name: [] for name in args.ways}
    ceilings: list[TimeSpent] = []
    for number in range(args.rounds):
        ceilings.append(measure_ceiling(files, models))
        for name in args.ways:
            with WAYS[name](environment) as on:
                runs[name].append(measure([str(sources)], folder / f"{name}-{number}", environment, on))
    figures: dict[str, object] = {
        name: print_share(name, rounds, ceilings, len(files)) | {"rounds": [asdict(run) for run in rounds]}
        for name, rounds in runs.items()
    }
    digests = {run.digest for rounds in runs.values() for run in rounds}
    print(f"outputs of all ways and rounds: {'identical' if len(digests) == 1 else 'DIFFERENT'}")
    return figures | {"pages": len(files)}, len(digests) == 1


def main() -> int:
    """Run the benchmark; returns 1 if outputs differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="folder with corpus/")
    parser.add_argument("--pages", type=int, default=275, help="corpus pages, spread evenly; 0: no throughput")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--fake", type=int, default=20_000, help="generated pages for the command's own cost; 0: none")
    parser.add_argument("--ways", type=lambda text: re.split(",", text), default=["local"], help=", ".join(WAYS))
    parser.add_argument("--out", type=Path, help="JSON output file; default results/batch_throughput.json")
    args = parser.parse_args()
    print_machine()
    figures: dict[str, object] = {}
    is_same = True
    with tempfile.TemporaryDirectory() as name:
        if args.fake:
            (Path(name) / "generated").mkdir()
            figures |= measure_own_process(Path(name), args.fake)
        if args.pages:
            found, is_same = measure_throughput(Path(name), args)
            figures |= found
    write_result("batch_throughput", figures, args.out)
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
