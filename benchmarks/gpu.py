"""Throughput, latency, utilisation and memory on a GPU, compared with the bare models on the same GPU.

    python benchmarks/gpu.py [--ways cuda-fp32,cuda-fp16,tensorrt-fp16] [--pages 16] [--lines 40] [--clients 1,8,32]
                             [--seconds 20] [--goal 270] [--workers planned,2,4]

Draws forms of about 170 words (../shared/render_pages.py, as large as FUNSD's), posts them to the real service under
each load, and samples the GPU through NVML. The bare models are ONNX Runtime on the tensors and batches that the
pipeline passes to them for the same pages, on one and on four threads. The goal is TurboOCR's claim of 270 pages/s and
11 ms on an RTX 5090.

Each way to compute runs in its own process, so that memory and kernels are not shared; a way that does not open here is
skipped with the reason. TensorRT first builds its engines, which takes minutes once. The other ways also measure the
cost of changing input shapes (bench/gpu_shapes.py) and lines per second by lines in a run. --workers tries other
numbers of processes. `--ways cpu-fp32` runs the same program without a GPU, to check that it works.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.gpu_shapes import LINES, measure_shapes
from bench.load import Request, as_dict, run_load, summarise
from bench.machine import print_machine
from bench.results import write_result
from bench.service import ROOT, started

WATCH_S = 0.1
SEED = 11
STREAMS = (1, 4)
WAYS = ("cuda-fp32", "cuda-fp16", "tensorrt-fp16")
NOT_HERE = 69
BUILDING_S = 3600


@dataclass(frozen=True, slots=True)
class Way:
    """A way to compute: a provider and a precision."""

    provider: Any
    precision: Any

    @property
    def device(self) -> Any:
        """Value of OCRSVC_DEVICE."""
        return "cpu" if self.provider == "cpu" else "cuda"

    @property
    def environment(self) -> dict[str, str]:
        """Settings of the service."""
        names = {"DEVICE": self.device, "PROVIDER": self.provider, "PRECISION": self.precision}
        return {f"OCRSVC_{name}": value for name, value in names.items()} | {"OCRSVC_BOOT_LIMIT_S": str(BUILDING_S)}


@dataclass
class GpuFigures:
    """NVML's samples while a block ran; empty without a GPU."""

    busy_percent: list[float] = field(default_factory=list)
    used_mb: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """Mean utilisation and peak memory."""
        if not self.used_mb:
            return {}
        return {
            "gpu_busy_percent": round(sum(self.busy_percent) / len(self.busy_percent), 1),
            "gpu_memory_mb": round(max(self.used_mb)),
        }


@contextlib.contextmanager
def watched_gpu(device: str) -> Iterator[GpuFigures]:
    """Sample the first GPU ten times per second while the block runs."""
    gpu = GpuFigures()
    if device != "cuda":
        yield gpu
        return
    import pynvml

    pynvml.nvmlInit()
    handle, done = pynvml.nvmlDeviceGetHandleByIndex(0), threading.Event()

    def watch() -> None:
        while not done.wait(WATCH_S):
            gpu.busy_percent.append(float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu))
            gpu.used_mb.append(pynvml.nvmlDeviceGetMemoryInfo(handle).used / 1e6)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield gpu
    finally:
        done.set()
        thread.join()
        pynvml.nvmlShutdown()


def draw_pages(shared: Path, count: int, lines: int) -> list[bytes]:
    """Draw pages with `lines` lines each."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(shared / "render_pages.py"), "--seed", str(SEED), "--count", str(count)]
        subprocess.run([*command, "--lines", str(lines), "--lang", "en", "--out", folder], check=True)
        rows = [json.loads(row) for row in Path(folder, "manifest.jsonl").read_text("utf-8").splitlines()]
        words = sum(len(row["text"].split()) for row in rows) / len(rows)
        print(f"pages: {len(rows)}, {words:.0f} words per page")
        return [Path(folder, row["file"]).read_bytes() for row in rows]


@dataclass(frozen=True, slots=True)
class Run:
    """A model run: its session, input and requested outputs."""

    session: Any
    tensor: Any
    outputs: Sequence[str] | None


def record_runs(way: Way, images: Sequence[bytes]) -> list[Run]:
    """Record the engine's model runs for these pages, read four at a time so that lines share batches.

    Raises EngineUnavailable if this way does not open.
    """
    from ocrsvc.engines.ppocr.engine import PpocrEngine
    from ocrsvc.engines.ppocr.runtime.model_cache import default_folder
    from ocrsvc.engines.ppocr.runtime.providers import GpuConfig
    from ocrsvc.engines.ppocr.runtime.session import Session, SessionConfig
    from ocrsvc.imaging.codecs.decode import PixelLimits, decode
    from ocrsvc.results import ReadTask

    runs: list[Run] = []
    original = Session.run

    def recording(self: Session, array: Any, outputs: Sequence[str] | None = None) -> list[Any]:
        runs.append(Run(self, array, outputs))
        return original(self, array, outputs)

    gpu = GpuConfig(max(STREAMS))
    config = SessionConfig(way.device, batched=True, provider=way.provider, precision=way.precision, gpu=gpu)
    engine = PpocrEngine(config, model_cache=default_folder(), imaging="cpu")
    handles = [engine.open_handle() for _ in range(4)]
    for handle in handles:
        handle.warm_up()
    Session.run = recording  # type: ignore[method-assign]  # restored below
    try:
        tasks = [ReadTask(decode(image, PixelLimits(50_000_000), gray=False)) for image in images]
        with ThreadPoolExecutor(len(handles)) as pool:
            list(pool.map(lambda numbered: handles[numbered[0] % 4].read([numbered[1]]), enumerate(tasks)))
    finally:
        Session.run = original  # type: ignore[method-assign]  # as above
    engine.close()
    return runs


def session_config(way: Way) -> Any:
    """Settings of a session with one stream."""
    from ocrsvc.engines.ppocr.runtime.providers import GpuConfig
    from ocrsvc.engines.ppocr.runtime.session import SessionConfig

    return SessionConfig(
        way.device, batched=True, provider=way.provider, precision=way.precision, gpu=GpuConfig(streams=1)
    )


def bare(runs: Sequence[Run], pages: int, device: str) -> dict[str, dict[str, float]]:
    """Pages per second of the recorded runs alone, by number of threads."""
    figures = {}
    # On a GPU each session has one stream.
    locks = {id(run.session): threading.Lock() if device == "cuda" else contextlib.nullcontext() for run in runs}

    def run_one(run: Run) -> None:
        with locks[id(run.session)]:
            run.session.run(run.tensor, run.outputs)

    for streams in STREAMS:
        with watched_gpu(device) as gpu, ThreadPoolExecutor(streams) as pool:
            began_s = time.perf_counter()
            list(pool.map(run_one, runs))
            pace = pages / (time.perf_counter() - began_s)
        figures[str(streams)] = {"pages_per_s": round(pace, 2), **gpu.figures()}
        print(f"bare models, {streams} threads: {figures[str(streams)]}", flush=True)
    return figures


def serve(way: Way, images: Sequence[bytes], args: argparse.Namespace, workers: str) -> dict[str, Any]:
    """Run the service under each load; `workers` is a number or "planned" for the default."""
    requests = [Request(str(number), "/v1/ocr", "image/png", image) for number, image in enumerate(images)]
    clients, seconds = [int(count) for count in args.clients.split(",")], args.seconds
    chosen = {} if workers == "planned" else {"OCRSVC_WORKERS": workers}
    figures = {}
    with started(way.environment | chosen) as service:
        run_load(service, requests, max(clients), seconds / 2, keep_alive=True)
        for count in clients:
            with watched_gpu(way.device) as gpu:
                result = run_load(service, requests, count, seconds, keep_alive=True)
            wrong = sum(seen.count for seen in result.seen if seen.status != 200)
            print(f"service, {workers} workers, {count} clients: {summarise(result)}; {gpu.figures()}", flush=True)
            figures[f"{count} clients, {workers} workers"] = {
                **as_dict(result),
                **gpu.figures(),
                "rss_mb": round(service.processes.rss_mb()),
                "failed": wrong,
            }
    return figures


def measure(way: Way, args: argparse.Namespace) -> dict[str, Any]:
    """Measure one way: the bare models, the service, and its share of them and of the goal."""
    images = draw_pages(args.shared, args.pages, args.lines)
    ceiling = bare(record_runs(way, images), len(images), way.device)
    shapes = measure_shapes(session_config(way), args.batches) if way.provider != "tensorrt" else {}
    service: dict[str, Any] = {}
    for workers in args.workers.split(","):
        service |= serve(way, images, args, workers)
    best = max(row["per_second"] for row in service.values())
    most = max(row["pages_per_s"] for row in ceiling.values())
    shares = f"{100 * best / most:.0f} % of the bare models, {100 * best / args.goal:.0f} % of the goal"
    print(f"best {best} pages/s: {shares}", flush=True)
    return {"bare": ceiling, "shapes": shapes, "service": service}


def measure_in_new_process(name: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Measure a way in its own process; {"left_out": reason} if it does not open there."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "way.json")
        command = [sys.executable, __file__, *arguments, "--ways", name, "--out", str(out), "--apart"]
        done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
        if done.returncode or not out.is_file():
            lines = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            return {"left_out" if done.returncode == NOT_HERE else "broke": lines[0]}
        figures: dict[str, Any] = json.loads(out.read_text("utf-8"))
        return figures


def print_table(figures: dict[str, dict[str, Any]]) -> None:
    """Print a line per way and load."""
    for name, found in figures.items():
        if "service" not in found:
            print(f"{name}: {'skipped' if 'left_out' in found else 'FAILED'}: {next(iter(found.values()))}")
            continue
        bare_pace = max(row["pages_per_s"] for row in found["bare"].values())
        for load, row in found["service"].items():
            memory = f", {row['gpu_memory_mb']} MB of the GPU" if "gpu_memory_mb" in row else ""
            print(f"{name}, {load}: {row['per_second']} pages/s of {bare_pace} bare{memory}")


def main() -> int:
    """Run the benchmark; returns 1 if a request failed, a way broke after opening, or none opened."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="folder with render_pages.py")
    parser.add_argument("--ways", default=",".join(WAYS), help="provider-precision, …; cpu-fp32 needs no GPU")
    parser.add_argument("--pages", type=int, default=16)
    parser.add_argument("--lines", type=int, default=40, help="per page; 40 make about 170 words")
    parser.add_argument("--clients", default="1,8,32")
    parser.add_argument("--seconds", type=float, default=20.0, help="under each load")
    parser.add_argument("--workers", default="planned", help="numbers of workers to try; planned is the default")
    parser.add_argument("--batches", type=int, nargs="+", default=LINES, help="lines in a run to try")
    parser.add_argument("--goal", type=float, default=270.0, help="pages/s to beat")
    parser.add_argument("--out", type=Path, help="JSON output file; default results/gpu.json")
    parser.add_argument("--apart", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.apart:
        return _measure_one(args)
    print_machine()
    figures = {name: measure_in_new_process(name, sys.argv[1:]) for name in args.ways.split(",")}
    print_table(figures)
    write_result("gpu", {"ways": figures, "goal": args.goal}, args.out)
    failed = any(row["failed"] for found in figures.values() for row in found.get("service", {}).values())
    measured = any("service" in found for found in figures.values())
    return 1 if failed or not measured or any("broke" in found for found in figures.values()) else 0


def _measure_one(args: argparse.Namespace) -> int:
    from ocrsvc.errors import EngineUnavailable

    provider, _, precision = args.ways.partition("-")
    print(f"== {args.ways}", flush=True)
    try:
        figures = measure(Way(provider, precision), args)
    except EngineUnavailable as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return NOT_HERE
    args.out.write_text(json.dumps(figures), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
