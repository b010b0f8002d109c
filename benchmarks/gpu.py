"""What does a GPU give: pages a second, latency, utilisation and memory, against the bare models on the same card?

    python benchmarks/gpu.py [--device cuda] [--pages 16] [--lines 40] [--clients 1,8,32] [--seconds 20] [--goal 270]

Draws forms of about 170 words (../shared/render_pages.py, as large as FUNSD's), posts them to the real service under
each load, and watches the card through NVML meanwhile. The bare models: ONNX Runtime over the exact tensors that the
pipeline feeds them for the same pages, in the batches that they came in, from one and from four threads. To beat:
TurboOCR's claim of 270 pages/s and 11 ms on an RTX 5090. `--device cpu` runs the same program where there is no card,
to see that it works.
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

from bench.load import Request, as_dict, run_load, summarise
from bench.machine import print_machine
from bench.results import write_result
from bench.service import ROOT, started

WATCH_S = 0.1
SEED = 11
STREAMS = (1, 4)


@dataclass
class Card:
    """What NVML told while a block ran; empty without a card."""

    busy_percent: list[float] = field(default_factory=list)
    used_mb: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """Mean utilisation and the most memory."""
        if not self.used_mb:
            return {}
        return {
            "gpu_busy_percent": round(sum(self.busy_percent) / len(self.busy_percent), 1),
            "gpu_memory_mb": round(max(self.used_mb)),
        }


@contextlib.contextmanager
def watched_card(device: str) -> Iterator[Card]:
    """Look at the first card ten times a second."""
    card = Card()
    if device != "cuda":
        yield card
        return
    import pynvml

    pynvml.nvmlInit()
    handle, done = pynvml.nvmlDeviceGetHandleByIndex(0), threading.Event()

    def watch() -> None:
        while not done.wait(WATCH_S):
            card.busy_percent.append(float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu))
            card.used_mb.append(pynvml.nvmlDeviceGetMemoryInfo(handle).used / 1e6)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield card
    finally:
        done.set()
        thread.join()
        pynvml.nvmlShutdown()


def draw_pages(shared: Path, count: int, lines: int) -> list[bytes]:
    """Pages with so many lines each."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(shared / "render_pages.py"), "--seed", str(SEED), "--count", str(count)]
        subprocess.run([*command, "--lines", str(lines), "--lang", "en", "--out", folder], check=True)
        rows = [json.loads(row) for row in Path(folder, "manifest.jsonl").read_text("utf-8").splitlines()]
        words = sum(len(row["text"].split()) for row in rows) / len(rows)
        print(f"pages: {len(rows)}, {words:.0f} words a page")
        return [Path(folder, row["file"]).read_bytes() for row in rows]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a model: which one, what it was fed, which outputs were asked for."""

    session: Any
    tensor: Any
    outputs: Sequence[str] | None


def record_runs(device: str, images: Sequence[bytes]) -> list[Run]:
    """What the engine runs for these pages, read four at a time, so that lines come together in batches."""
    from ocrsvc.engines.ppocr.engine import PpocrEngine, PpocrSettings
    from ocrsvc.engines.ppocr.session import Session
    from ocrsvc.imaging.decode import PixelLimits, decode
    from ocrsvc.records import ReadTask

    runs: list[Run] = []
    original = Session.run

    def recording(self: Session, tensor: Any, outputs: Sequence[str] | None = None) -> Any:
        runs.append(Run(self, tensor, outputs))
        return original(self, tensor, outputs)

    engine = PpocrEngine(PpocrSettings("cuda" if device == "cuda" else "cpu", batched=True, imaging="cpu"))
    handles = [engine.open_handle() for _ in range(4)]
    for handle in handles:
        handle.warm_up()
    Session.run = recording  # type: ignore[method-assign]  # given back below
    try:
        tasks = [ReadTask(decode(image, PixelLimits(50_000_000), gray=False)) for image in images]
        with ThreadPoolExecutor(len(handles)) as pool:
            list(pool.map(lambda numbered: handles[numbered[0] % 4].read([numbered[1]]), enumerate(tasks)))
    finally:
        Session.run = original  # type: ignore[method-assign]  # as above
    engine.close()
    return runs


def bare(runs: Sequence[Run], pages: int, device: str) -> dict[str, dict[str, float]]:
    """Pages a second of the recorded runs alone, by threads."""
    figures = {}
    for streams in STREAMS:
        with watched_card(device) as card, ThreadPoolExecutor(streams) as pool:
            began_s = time.perf_counter()
            list(pool.map(lambda run: run.session.run(run.tensor, run.outputs), runs))
            pace = pages / (time.perf_counter() - began_s)
        figures[str(streams)] = {"pages_per_s": round(pace, 2), **card.figures()}
        print(f"bare models, {streams} threads: {figures[str(streams)]}", flush=True)
    return figures


def serve(device: str, images: Sequence[bytes], clients: Sequence[int], seconds: float) -> dict[str, Any]:
    """The service under each load."""
    requests = [Request(str(number), "/v1/ocr", "image/png", image) for number, image in enumerate(images)]
    figures = {}
    with started({"OCRSVC_DEVICE": device}) as service:
        run_load(service, requests, max(clients), seconds / 2, keep_alive=True)
        for count in clients:
            with watched_card(device) as card:
                result = run_load(service, requests, count, seconds, keep_alive=True)
            wrong = sum(seen.count for seen in result.seen if seen.status != 200)
            print(f"service, {count} clients: {summarise(result)}; {card.figures()}", flush=True)
            figures[str(count)] = {
                **as_dict(result),
                **card.figures(),
                "rss_mb": round(service.processes.rss_mb()),
                "failed": wrong,
            }
    return figures


def main() -> int:
    """Measure, print, write; 1 when a request failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="holds render_pages.py")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--pages", type=int, default=16)
    parser.add_argument("--lines", type=int, default=40, help="on each page; 40 make about 170 words")
    parser.add_argument("--clients", default="1,8,32")
    parser.add_argument("--seconds", type=float, default=20.0, help="under each load")
    parser.add_argument("--goal", type=float, default=270.0, help="pages/s to beat")
    parser.add_argument("--out", type=Path, help="the JSON file; results/gpu.json if left out")
    asked = parser.parse_args()
    print_machine()
    images = draw_pages(asked.shared, asked.pages, asked.lines)
    ceiling = bare(record_runs(asked.device, images), len(images), asked.device)
    service = serve(asked.device, images, [int(count) for count in asked.clients.split(",")], asked.seconds)
    best = max(row["per_second"] for row in service.values())
    most = max(row["pages_per_s"] for row in ceiling.values())
    shares = f"{100 * best / most:.0f} % of the bare models, {100 * best / asked.goal:.0f} % of the goal"
    print(f"best {best} pages/s: {shares}")
    write_result("gpu", {"device": asked.device, "bare": ceiling, "service": service, "goal": asked.goal}, asked.out)
    return 1 if any(row["failed"] for row in service.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
