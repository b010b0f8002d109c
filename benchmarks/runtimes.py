"""Speed, accuracy, memory and start time of each runtime for the models on this CPU.

    python benchmarks/runtimes.py [--shared ../shared] [--pages 24] [--clients 20]

First, runs of the models alone in this process, one thread, candidates in turn: minimum milliseconds at fixed sizes.
Then a service for each combination of OCRSVC_PROVIDER and OCRSVC_PRECISION that works here, from single precision to
the one that the first start chooses by itself, each with its own model cache: seconds from the command to /readyz at
the first and at the second start, then processor time per page, peak resident memory, F1 and CER on the same corpus
pages. Exit code 1 if a page fails, or the chosen runtime's F1 is more than 0.001 below that of single precision.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from bench.corpus import ALL, Corpus, CorpusPage
from bench.machine import print_machine
from bench.results import write_result
from bench.service import ROOT, Service, ask, engine_of, started

from ocrsvc.engines.ppocr.pipeline.network_input import model_input
from ocrsvc.engines.ppocr.pipeline.recognition_batches import OUTPUTS
from ocrsvc.engines.ppocr.runtime import openvino_session
from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache
from ocrsvc.engines.ppocr.runtime.model_parts import DETECTION, RECOGNITION, Kind, built_in_part
from ocrsvc.engines.ppocr.runtime.session import SessionConfig
from ocrsvc.engines.ppocr.runtime_proof import open_candidates, time_in_turn

SIZES: Final[dict[Kind, tuple[tuple[int, int], ...]]] = {
    DETECTION: ((480, 640), (736, 992), (1536, 1024)),
    RECOGNITION: ((48, 48), (48, 96), (48, 160), (48, 320), (48, 640), (48, 1280)),
}
BASE = {"OCRSVC_ENGINE": "ppocr", "OCRSVC_DEVICE": "cpu", "OCRSVC_DEADLINE_S": "600"}
PAGE_LIMIT_S = 600.0
MAX_LOSS = 0.001


def print_runs(cache: ModelCache) -> dict[str, dict[str, list[float]]]:
    """Milliseconds of bare runs at each of SIZES, by model and candidate; prints them as they come."""
    found: dict[str, dict[str, list[float]]] = {}
    for name, sizes in SIZES.items():
        runners = open_candidates(built_in_part(name), SessionConfig("cpu", 1), cache)
        pages = [np.random.default_rng(0).integers(0, 256, (*size, 3)).astype(np.uint8) for size in sizes]
        outputs = OUTPUTS if name == RECOGNITION else None
        times_s = [
            time_in_turn(
                {one: partial(runners[one].run, model_input(runners[one], page), outputs) for one in runners}, 9
            )
            for page in pages
        ]
        found[name] = {str(one): [round(1000 * times[one], 2) for times in times_s] for one in runners}
        print(f"{name}, ms at {', '.join(f'{height} x {width}' for height, width in sizes)}")
        for runtime, row in found[name].items():
            print(f"  {runtime:20} {'  '.join(f'{one:8.1f}' for one in row)}")
    return found


def choices() -> dict[str, dict[str, str]]:
    """Settings by name, for everything that works on this machine."""
    named = {"fp32": {"OCRSVC_PRECISION": "fp32"}, "int8": {"OCRSVC_PRECISION": "int8"}}
    if openvino_session.is_installed():
        named["OpenVINO fp32"] = {"OCRSVC_PROVIDER": "openvino", "OCRSVC_PRECISION": "fp32"}
    if openvino_session.computes_bf16():
        named["OpenVINO bf16"] = {"OCRSVC_PRECISION": "bf16"}
        named["chosen without OpenVINO"] = {"OCRSVC_PROVIDER": "cpu"}
    return named | {"chosen": {}}


def measure(chosen: dict[str, str], corpus: Corpus, clients: int) -> dict[str, object]:
    """Start the service twice with a new model cache, read every page, and return the figures."""
    with tempfile.TemporaryDirectory() as folder:
        env = BASE | {"OCRSVC_MODEL_CACHE": folder} | chosen
        began_s = time.perf_counter()
        with started(env):
            first_s = time.perf_counter() - began_s
        began_s = time.perf_counter()
        with started(env) as service:
            later_s = time.perf_counter() - began_s
            engine = engine_of(service.url)
            service.processes.forget_peak()
            cpu_s = service.processes.cpu_s()
            with ThreadPoolExecutor(clients) as pool:
                texts = list(pool.map(partial(read, service), corpus.pages))
            cpu_s, peak_mb = service.processes.cpu_s() - cpu_s, service.processes.peak_mb()
    tally = corpus.tally(texts)[ALL]
    return {
        "computes": f"{engine['provider']}, {engine['precision']}",
        "first_start_s": round(first_s, 1),
        "later_start_s": round(later_s, 1),
        "cpu_s_per_page": round(cpu_s / len(corpus.pages), 3),
        "peak_rss_mb": round(peak_mb),
        "f1": round(tally.f1, 4),
        "cer": round(tally.cer, 4),
        "failed": texts.count(None),
    }


def read(service: Service, page: CorpusPage) -> str | None:
    """The text of a page; None unless it was answered with 200."""
    data = page.file.read_bytes()
    answer = ask(service.url, "POST", "/v1/ocr", data, "application/octet-stream", PAGE_LIMIT_S)
    if answer.status != 200:
        print(f"FAILED {page.file.name}: {answer.status} {answer.text[:200]}")
        return None
    return "\n".join(line["text"] for part in json.loads(answer.text)["pages"] for line in part["lines"])


def main() -> int:
    """Run the benchmark; returns 0 if all pages were read and the chosen runtime is as accurate as single precision."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="folder with corpus/ and score.py")
    parser.add_argument("--pages", type=int, default=24, help="number of pages, spread evenly over the corpus")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--only", action="append", help="measure these choices only, such as fp32 and chosen")
    parser.add_argument("--out", type=Path, help="JSON output file; default results/runtimes.json")
    args = parser.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory() as folder:
        runs = print_runs(ModelCache(Path(folder)))
    corpus = Corpus(args.shared)
    corpus.pages = corpus.pages[:: max(1, len(corpus.pages) // args.pages)][: args.pages]
    found = {}
    for name, chosen in choices().items():
        if not args.only or name in args.only:
            found[name] = measure(chosen, corpus, args.clients)
            print(f"{name}: {', '.join(f'{key} {value}' for key, value in found[name].items())}", flush=True)
    write_result("runtimes", {"runs_ms": runs, "services": found, "pages": len(corpus.pages)}, args.out)
    failed = any(one["failed"] for one in found.values())
    if "fp32" not in found or "chosen" not in found:
        return int(failed)
    loss = float(str(found["fp32"]["f1"])) - float(str(found["chosen"]["f1"]))
    return int(failed or loss > MAX_LOSS)


if __name__ == "__main__":
    sys.exit(main())
