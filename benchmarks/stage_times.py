"""Processor time of each stage of a request.

    python benchmarks/stage_times.py [--shared ../shared] [--pages 24] [--clients 4]

Runs the application in this process with the real engine, and sends corpus pages through Flask's test client:
everything but sockets. Each stage is a few functions of the service; each is wrapped with a stopwatch that counts its
thread's processor time minus that of nested stages. Table and plot (SVG) show milliseconds per page.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.charts import Panel, draw
from bench.corpus import Corpus
from bench.machine import print_machine
from bench.models import TimeSpent, timed
from bench.results import RESULTS, write_result
from bench.service import ROOT

if TYPE_CHECKING:
    from flask import Flask

# The functions of each stage, as module:[class.]name.
STAGES: Mapping[str, Sequence[str]] = {
    "parse": ("http.request:parse_body", "api.native:read_options", "http.parsed_body:Content.images"),
    "decode": ("imaging.document:open_encoded_image", "pipeline.decode_job:decode_pixels"),
    "resize": ("engines.ppocr.engine:find_lines", "engines.ppocr.pipeline.detector:model_input"),
    "detect": ("engines.ppocr.pipeline.detector:Detector.run",),
    "post": ("engines.ppocr.pipeline.db_postprocess:lines_from_map",),
    "crop": ("engines.ppocr.pipeline.page:cut", "engines.ppocr.pipeline.recognition_batches:to_tensor"),
    "recognize": (
        "engines.ppocr.pipeline.recognition_batches:SingleLineRunner._run",
        "engines.ppocr.runtime.openvino_session:OpenVinoRecognizer.features",
        "engines.ppocr.runtime.openvino_session:OpenVinoRecognizer.classify",
    ),
    "decode text": (
        "engines.ppocr.pipeline.recognizer:Recognizer._best_path",
        "engines.ppocr.pipeline.recognizer:Recognizer._as_text",
    ),
    "order": (
        "engines.ppocr.pipeline.page:find_rules",
        "engines.ppocr.pipeline.page:level_quads",
        "engines.ppocr.pipeline.page:reading_order",
    ),
    "spaces": ("engines.ppocr.pipeline.page:decide_spaces",),
    "page": ("engines.ppocr.pipeline.page:_assemble", "engines.ppocr.pipeline.page:read_page"),
    "encode": ("api.native:_answer",),
}


class Stopwatch:
    """Adds up each stage's own processor time over all threads."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._lock = threading.Lock()
        self.spent_s: defaultdict[str, float] = defaultdict(float)

    def watch(self, stage: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """The function with timing added."""

        @functools.wraps(work)
        def timed_work(*args: Any, **kwargs: Any) -> Any:
            inside: list[float] = getattr(self._local, "inside", [])
            self._local.inside = inside
            inside.append(0.0)
            began_s = time.thread_time()
            try:
                return work(*args, **kwargs)
            finally:
                took_s = time.thread_time() - began_s
                own_s = took_s - inside.pop()
                if inside:
                    inside[-1] += took_s
                with self._lock:
                    self.spent_s[stage] += own_s

        return timed_work

    def install(self) -> None:
        """Wrap every function of STAGES where it is used."""
        for stage, places in STAGES.items():
            for place in places:
                module, _, path = place.partition(":")
                owner: Any = import_module(f"ocrsvc.{module}")
                *outer, name = path.split(".")
                for part in outer:
                    owner = getattr(owner, part)
                setattr(owner, name, self.watch(stage, getattr(owner, name)))


@dataclass(frozen=True, slots=True)
class PageCosts:
    """Costs of some pages: CPU seconds by stage and in total, and mean latency and queue time of a request."""

    stages: Mapping[str, float]
    spent: TimeSpent
    latency_s: float
    queue_s: float
    pages: int


def ask(app: Flask, data: bytes) -> tuple[float, float]:
    """Send a request; returns its latency and its time in the queue."""
    began_s = time.perf_counter()
    answer = app.test_client().post("/v1/ocr", data=data, content_type="application/octet-stream")
    if answer.status_code != 200:
        sys.exit(f"FAILED {answer.status_code} {answer.text[:200]}")
    return time.perf_counter() - began_s, json.loads(answer.text)["timing"]["queue_s"]


def measure(images: Sequence[bytes], clients: int) -> PageCosts:
    """Start the service in this process, and send it the pages from `clients` clients."""
    from ocrsvc.app import create_app
    from ocrsvc.pipeline.read import Reader
    from ocrsvc.settings.load import read_settings
    from ocrsvc.system.allocator import limit_arenas
    from ocrsvc.system.thread_plan import plan_for

    limit_arenas()
    settings = read_settings({"OCRSVC_DEVICE": "cpu"})
    plan = plan_for(settings, workers=1)
    print(f"settings: the defaults on the CPU; {plan}")
    watch = Stopwatch()
    watch.install()
    reader = Reader(settings, plan)
    reader.start()
    app = create_app(settings, reader)
    ask(app, images[0])
    watch.spent_s.clear()
    found: list[tuple[float, float]] = []
    with ThreadPoolExecutor(clients) as pool:
        spent = timed(lambda: found.extend(pool.map(functools.partial(ask, app), images)))
    reader.stop(10)
    latency_s, queue_s = (sum(column) / len(found) for column in zip(*found, strict=True))
    return PageCosts(dict(watch.spent_s), spent, latency_s, queue_s, len(images))


def rows(costs: PageCosts) -> list[tuple[str, float]]:
    """(stage, CPU milliseconds per page), and a row for time outside all stages."""
    each = {stage: costs.stages.get(stage, 0.0) * 1000 / costs.pages for stage in STAGES}
    return [*each.items(), ("the rest", costs.spent.cpu_s * 1000 / costs.pages - sum(each.values()))]


def show(costs: PageCosts) -> None:
    """Print the table."""
    total_ms = costs.spent.cpu_s * 1000 / costs.pages
    print(f"{'stage':12} {'CPU ms/page':>14} {'share':>7}")
    for stage, ms in rows(costs):
        print(f"{stage:12} {ms:14.2f} {ms / total_ms:7.1%}")
    print(f"{'all':12} {total_ms:14.2f}")
    models_ms = sum(ms for stage, ms in rows(costs) if stage in ("detect", "recognize"))
    print(
        f"the models' share {models_ms / total_ms:.1%}; a request takes {costs.latency_s * 1000:.0f} ms, "
        f"{costs.queue_s * 1000:.0f} ms of it in the queue; {costs.pages / costs.spent.wall_s:.2f} pages/s"
    )


def plot(costs: PageCosts) -> str:
    """The table as horizontal bars in SVG."""
    return draw([Panel(f"milliseconds of processor time per page, {costs.pages} corpus pages", rows(costs))])


def main() -> int:
    """Run the benchmark; returns 0 if every page was answered."""
    os.environ.setdefault("OPENCV_FOR_THREADS_NUM", "1")
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="folder with corpus/ and score.py")
    parser.add_argument("--pages", type=int, default=24, help="corpus pages, spread evenly")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument(
        "--out", type=Path, help="the JSON file (results/stage_times.json); the plot is written beside it"
    )
    args = parser.parse_args()
    print_machine()
    every = Corpus(args.shared).pages
    images = [page.file.read_bytes() for page in every[:: max(1, len(every) // args.pages)][: args.pages]]
    print(f"load: {len(images)} pages once each, {args.clients} clients in this process")
    costs = measure(images, args.clients)
    show(costs)
    figures = {"cpu_ms": dict(rows(costs)), "latency_s": costs.latency_s, "queue_s": costs.queue_s}
    write_result("stage_times", figures | {"pages": costs.pages, "clients": args.clients}, args.out)
    picture = (args.out or RESULTS / "stage_times.json").with_suffix(".svg")
    picture.write_text(plot(costs), "utf-8")
    print(f"drawn to {picture.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
