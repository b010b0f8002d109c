"""Throughput of the service compared with its bare models on this machine.

    python benchmarks/ceiling.py [--shared ../shared] [--pages 24] [--rounds 3] [--clients 20] [--lines 10,50,100,200]

The ceiling is ONNX Runtime alone, in one process, on the tensors that the pipeline passes to its models for some corpus
pages. Two thread plans are tried: one thread per run with as many runs in flight as cores, and all threads inside one
run. In the same rounds each page is posted once to the real service.

Then latency by lines: drawn pages with known numbers of lines, sent one at a time to the service and run by the bare
models. The slopes are in milliseconds per line, in elapsed and in processor time. On a shared machine processor time is
more reliable than elapsed time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from bench.corpus import Corpus
from bench.machine import cores, print_machine
from bench.models import Inputs, Models, TimeSpent, timed
from bench.results import write_result
from bench.service import ROOT, Service, ask, started

GOAL_SHARE = 0.95
GOAL_SLOPE = 1.1
SEED = 4
LIMIT_S = 600.0


def post(service: Service, data: bytes) -> None:
    """Read a page; exits if the service fails."""
    answer = ask(service.url, "POST", "/v1/ocr", data, "application/octet-stream", limit_s=LIMIT_S)
    if answer.status != 200:
        sys.exit(f"FAILED {answer.status} {answer.text[:200]}")


def serve(service: Service, images: Sequence[bytes], clients: int) -> TimeSpent:
    """Post every page once, from `clients` clients; the processor time is the service's."""
    before_s = service.processes.cpu_s()
    with ThreadPoolExecutor(clients) as pool:
        spent = timed(lambda: list(pool.map(lambda data: post(service, data), images)))
    return TimeSpent(spent.wall_s, service.processes.cpu_s() - before_s)


def plans(models: Models, pages: Sequence[Inputs], pool: ThreadPoolExecutor) -> dict[str, Callable[[], object]]:
    """The ways to run the models over all pages."""
    return {
        f"1 thread a run, {models.cores} runs in flight": lambda: list(pool.map(models.run_page, pages)),
        f"{models.cores} threads a run, 1 run in flight": lambda: list(map(models.run_page_wide, pages)),
    }


def measure_throughput(
    service: Service, models: Models, images: Sequence[bytes], pages: Sequence[Inputs], args: argparse.Namespace
) -> dict[str, list[TimeSpent]]:
    """Run every plan and the service in turn, --rounds times."""
    spent: dict[str, list[TimeSpent]] = {}
    with ThreadPoolExecutor(models.cores) as pool:
        for _ in range(args.rounds):
            for name, plan in plans(models, pages, pool).items():
                spent.setdefault(name, []).append(timed(plan))
            spent.setdefault("service", []).append(serve(service, images, args.clients))
    return spent


def report_throughput(spent: dict[str, list[TimeSpent]], count: int) -> dict[str, object]:
    """Print pages/s of each plan, and the service's share of the best one; returns the figures."""
    for name, rounds in spent.items():
        wall_s, cpu_s = median(one.wall_s for one in rounds), median(one.cpu_s for one in rounds)
        print(f"{name:32} {count / wall_s:6.2f} pages/s, {cpu_s / count:.3f} CPU s per page (median of {len(rounds)})")
    best = min((name for name in spent if name != "service"), key=lambda name: median(s.wall_s for s in spent[name]))
    pairs = list(zip(spent[best], spent["service"], strict=True))
    by_clock = median(bare.wall_s / served.wall_s for bare, served in pairs)
    by_cpu = median(bare.cpu_s / served.cpu_s for bare, served in pairs)
    print(
        f"share service/ceiling ({best}): {by_clock:.1%} by the clock, {by_cpu:.1%} by processor time "
        f"(median of pairs; goal: at least {GOAL_SHARE:.0%})"
    )
    figures = {name: [(one.wall_s, one.cpu_s) for one in rounds] for name, rounds in spent.items()}
    return {"pages": count, "best": best, "share_clock": by_clock, "share_cpu": by_cpu, "rounds": figures}


def draw_pages(shared: Path, counts: Sequence[int]) -> dict[int, bytes]:
    """Draw one clean page of English text per line count."""
    drawn = {}
    for count in counts:
        with tempfile.TemporaryDirectory() as folder:
            what = ["--lines", str(count), "--lang", "en", "--layout", "text", "--enc", "png_gray", "--rotation", "0"]
            command = [sys.executable, str(shared / "render_pages.py"), "--seed", str(SEED), "--count", "1", *what]
            subprocess.run([*command, "--clean", "--exif", "1", "--out", folder], check=True, stdout=subprocess.DEVNULL)
            (file,) = Path(folder).glob("*.png")
            drawn[count] = file.read_bytes()
    return drawn


def slope(seconds: Mapping[int, float]) -> float:
    """Milliseconds per line, by least squares."""
    return float(np.polyfit(list(seconds), list(seconds.values()), 1)[0]) * 1000


def fastest(spents: Sequence[TimeSpent]) -> TimeSpent:
    """Minimum over several runs, because disturbances only add time."""
    return TimeSpent(min(one.wall_s for one in spents), min(one.cpu_s for one in spents))


def measure_slopes(service: Service, models: Models, drawn: dict[int, bytes], rounds: int) -> dict[str, object]:
    """Latency and processor time of single pages by their lines, of the service and the bare models in turn."""
    served: dict[int, list[TimeSpent]] = {count: [] for count in drawn}
    bare: dict[int, list[TimeSpent]] = {count: [] for count in drawn}
    inputs = dict(zip(drawn, models.record(list(drawn.values())), strict=True))
    with ThreadPoolExecutor(models.cores) as pool:
        for _ in range(rounds):
            for count, data in drawn.items():
                served[count].append(serve(service, [data], 1))
                bare[count].append(timed(partial(models.run_alone, inputs[count], pool)))
    for count in drawn:
        one, other = fastest(served[count]), fastest(bare[count])
        print(
            f"{count:4} lines ({len(inputs[count].recognition)} runs): service {one.wall_s:.3f} s, {one.cpu_s:.2f} CPU "
            f"s; bare runs {other.wall_s:.3f} s, {other.cpu_s:.2f} CPU s"
        )
    return {"clock": report_slope(served, bare, "wall_s"), "cpu": report_slope(served, bare, "cpu_s")}


def report_slope(
    served: Mapping[int, list[TimeSpent]], bare: Mapping[int, list[TimeSpent]], field: str
) -> dict[str, object]:
    """Print both slopes and their ratio, by one field of TimeSpent; returns the figures."""
    ours, theirs = (
        {count: getattr(fastest(spents), field) for count, spents in each.items()} for each in (served, bare)
    )
    ratio = slope(ours) / slope(theirs)
    print(
        f"slope by {field}: service {slope(ours):.2f} ms per line, bare runs {slope(theirs):.2f} ms per line: "
        f"{ratio:.2f} times (goal: at most {GOAL_SLOPE})"
    )
    return {"service_s": ours, "bare_s": theirs, "ratio": ratio}


def main() -> int:
    """Run the benchmark; the exit code is always 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--shared", type=Path, default=ROOT.parent / "shared", help="folder with corpus/ and render_pages.py"
    )
    parser.add_argument("--pages", type=int, default=24, help="corpus pages, spread evenly")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--lines", default="10,50,100,200", help="lines on the drawn pages; empty: no slopes")
    parser.add_argument("--out", type=Path, help="JSON output file; default results/ceiling.json")
    args = parser.parse_args()
    print_machine()
    every = Corpus(args.shared).pages
    images = [page.file.read_bytes() for page in every[:: max(1, len(every) // args.pages)][: args.pages]]
    models = Models(cores())
    pages = models.record(images)
    runs = sum(len(page.recognition) for page in pages)
    print(f"load: {len(pages)} pages with {runs} lines, {args.clients} clients, {args.rounds} rounds")
    with started({"OCRSVC_ENGINE": "ppocr", "OCRSVC_DEVICE": "cpu"}) as service:
        figures = report_throughput(measure_throughput(service, models, images, pages, args), len(pages))
        if args.lines:
            drawn = draw_pages(args.shared, [int(count) for count in args.lines.split(",")])
            figures["slopes"] = measure_slopes(service, models, drawn, args.rounds)
    write_result("ceiling", figures, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
