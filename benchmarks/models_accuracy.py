"""Accuracy and cost of several models on the corpus, compared with the built-in one.

    python benchmarks/models_accuracy.py --models MODELS [--every 12] [--kind photo] [NAME/VERSION …]

Reads every page with each model of the repository in turn, in one process and one thread, and scores the texts with the
corpus's own scorer. Processor seconds cover reading only, with a warm model. Opening is measured separately, with an
empty and with a filled model cache.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.corpus import ALL, Corpus
from bench.machine import print_machine
from bench.results import write_result
from bench.service import ROOT

from ocrsvc.engines.contract import Engine
from ocrsvc.engines.isolated.fork_server import read_file
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.engines.open_engine import open_engine_in_process
from ocrsvc.imaging.codecs.decode import PixelLimits
from ocrsvc.models.repository import ModelRepository
from ocrsvc.results import FileTask, Page, ReadOptions, no_check
from ocrsvc.settings.load import read_settings
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan

PLAN: Final = ThreadPlan(1, 1, 1)


@dataclass(slots=True)
class Measured:
    """A model, its texts, and its processor seconds."""

    model: ModelVersion
    engine: Engine
    opened_s: tuple[float, float]
    texts: list[str | None] = field(default_factory=list)
    cpu_s: float = 0.0


def open_twice(model: ModelVersion, settings: Settings) -> Measured:
    """Open the model with an empty and with a filled model cache; records the processor seconds of both."""
    spent_s = []
    for _ in range(2):
        began_s = time.process_time()
        engine = open_engine_in_process(settings, PLAN, model)
        spent_s.append(time.process_time() - began_s)
    return Measured(model, engine, (spent_s[0], spent_s[1]))


def make_reader(one: Measured, settings: Settings) -> Callable[[Path], str | None]:
    """A function that reads a file with the model; it returns None if the file cannot be read."""
    handle = one.engine.open_handle()
    handle.warm_up()
    limits = PixelLimits(settings.max_pixels, settings.format_max_pixels)
    gray = one.engine.traits.wants_gray

    def read(file: Path) -> str | None:
        task = FileTask(file.read_bytes(), ReadOptions(), math.inf, no_check)
        page = read_file(handle, task, limits, gray=gray)
        return page.text if isinstance(page, Page) else None

    return read


def measure(corpus: Corpus, models: Sequence[ModelVersion], settings: Settings) -> list[Measured]:
    """Read every page with every model, in turn."""
    measured = [open_twice(model, settings) for model in models]
    readers = [make_reader(one, settings) for one in measured]
    for number, page in enumerate(corpus.pages):
        print(f"\r{number} of {len(corpus.pages)} pages", end="", file=sys.stderr)
        for one, read in zip(measured, readers, strict=True):
            began_s = time.process_time()
            one.texts.append(read(page.file))
            one.cpu_s += time.process_time() - began_s
    print("\r", end="", file=sys.stderr)
    return measured


def report(corpus: Corpus, one: Measured, usual: Measured) -> dict[str, object]:
    """Print a model's row; returns its figures."""
    tally, info, pages = corpus.tally(one.texts)[ALL], one.engine.describe(), len(corpus.pages)
    figures: dict[str, object] = {
        "f1": round(tally.f1, 4),
        "cer": round(tally.cer, 4),
        "cpu_s_per_page": round(one.cpu_s / pages, 3),
        "cpu_by_built_in": round(one.cpu_s / usual.cpu_s, 3),
        "opened_first_cpu_s": round(one.opened_s[0], 2),
        "opened_again_cpu_s": round(one.opened_s[1], 2),
        "precision": info.precision,
        "provider": info.provider,
        "failed": tally.failed,
    }
    print(
        f"{one.model!s:24} F1 {tally.f1:.4f}  CER {tally.cer:.4f}  {one.cpu_s / pages:7.3f} CPU s per page, x"
        f"{one.cpu_s / usual.cpu_s:.2f}  opened in {one.opened_s[0]:5.2f}, again in {one.opened_s[1]:.2f} CPU s  "
        f"({info.provider}, {info.precision})"
    )
    return figures


def main() -> int:
    """Run the benchmark; returns 0 if no page failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="folder with corpus/ and score.py")
    parser.add_argument("--models", type=Path, help="the repository; default: only the built-in model")
    parser.add_argument("--kind", help="only pages of this kind, such as line")
    parser.add_argument("--every", type=int, default=12, help="only every n-th page")
    parser.add_argument("--out", type=Path, help="JSON output file; default results/models_accuracy.json")
    parser.add_argument("names", nargs="*", metavar="NAME/VERSION", help="only these models and the built-in one")
    args = parser.parse_args()
    print_machine()
    found = ModelRepository(args.models).scan().versions
    models = sorted(
        (one for one in found if one.is_built_in or not args.names or str(one) in args.names),
        key=lambda one: not one.is_built_in,
    )
    corpus = Corpus(args.shared, args.kind, args.every)
    with tempfile.TemporaryDirectory() as cache:
        settings = read_settings().model_copy(update={"model_cache": Path(cache), "device": "cpu"})
        measured = measure(corpus, models, settings)
    figures: dict[str, object] = {"pages": len(corpus.pages), "every": args.every}
    figures |= {str(one.model): report(corpus, one, measured[0]) for one in measured}
    write_result("models_accuracy", figures, args.out)
    return int(any(None in one.texts for one in measured))


if __name__ == "__main__":
    sys.exit(main())
