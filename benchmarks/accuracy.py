"""Accuracy, speed and cost of reading the corpus through the service.

    python benchmarks/accuracy.py [--shared ../shared] [--half tuning|reporting|all] [--every 10] [--kind photo]
    python benchmarks/accuracy.py --query decoder=beam --texts beam.jsonl --against greedy.jsonl
    python benchmarks/accuracy.py --score kept.jsonl
    python benchmarks/accuracy.py --rapidocr defaults --texts rapidocr.jsonl
    python benchmarks/accuracy.py --engine tr_crnn --kind line --query detect=false

Starts a service (or uses the one at --url), posts every page with a known text to /v1/ocr, and scores the answers with
the corpus's own scorer: tokens, characters in reading order, and spaces. A hash of the file names splits the corpus in
two halves: constants are tuned on the tuning half, and the reporting half shows the accuracy on unseen pages. --texts
saves the texts, --against lists the pages whose text differs from saved texts, --score scores saved texts and reads
nothing, --rapidocr reads with RapidOCR instead of the service. Exit code 1 if a page fails or, for the engine ppocr and
the whole corpus, a bar (bench/bars.py) is missed; samples are too small to hold bars.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.accuracy_table import as_dict, table, tally_parts
from bench.bars import missed
from bench.corpus import HALVES, Corpus
from bench.machine import print_machine
from bench.rapidocr_settings import CHOICES, open_rapidocr
from bench.results import write_result
from bench.service import ROOT, Service, ask, engine_of, form_with_file, started_or_at
from bench.texts import differences, read_texts, write_texts

PAGE_LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Run:
    """Texts and costs of a run; `peak_mb` and `cpu_s` are 0 if the service's processes are unknown."""

    texts: Sequence[str | None]
    wall_s: float
    cpu_s: float
    peak_mb: float

    @property
    def summary(self) -> str:
        """Speed and cost in one line."""
        count = len(self.texts)
        return (
            f"{count} pages in {self.wall_s:.0f} s: {count / self.wall_s:.2f} pages/s, "
            f"{self.cpu_s / count:.2f} CPU s per page, peak RSS {self.peak_mb:.0f} MB"
        )

    def as_dict(self) -> dict[str, object]:
        """The costs as a JSON-ready dict."""
        count = len(self.texts)
        return {
            "wall_s": round(self.wall_s, 1),
            "pages_per_s": round(count / self.wall_s, 3),
            "cpu_s_per_page": round(self.cpu_s / count, 3),
            "peak_rss_mb": round(self.peak_mb),
        }


def read_over_http(service: Service, corpus: Corpus, clients: int, query: str) -> Run:
    """Post every page, `clients` at a time."""

    def post(file: Path) -> str | None:
        body, content_type = form_with_file(file.read_bytes(), file.name, "application/octet-stream")
        answer = ask(service.url, "POST", f"/v1/ocr{query}", body, content_type, limit_s=PAGE_LIMIT_S)
        if answer.status != 200:
            print(f"FAILED {file.name}: {answer.status} {answer.text[:200]}")
            return None
        return "\n".join(line["text"] for page in json.loads(answer.text)["pages"] for line in page["lines"])

    processes = service.processes
    processes.forget_peak()
    cpu_before_s, began_s = processes.cpu_s(), time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        texts = list(pool.map(post, [page.file for page in corpus.pages]))
    wall_s = time.perf_counter() - began_s
    return Run(texts, wall_s, processes.cpu_s() - cpu_before_s, processes.peak_mb())


def read_with_rapidocr(files: Sequence[Path], choice: str) -> Run:
    """Read the pages with RapidOCR, one after the other. Runs in its own process."""
    engine = open_rapidocr(choice)
    cpu_before_s, began_s = time.process_time(), time.perf_counter()
    texts = ["\n".join(getattr(engine(str(file)), "txts", None) or ()) for file in files]
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_before_s
    return Run(texts, wall_s, cpu_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def measure_rapidocr(corpus: Corpus, choice: str) -> tuple[Run, str]:
    """RapidOCR's run in a new process, for separate memory and processor time; also returns its name."""
    files = [page.file for page in corpus.pages]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(read_with_rapidocr, (files, choice)), f"rapidocr_{choice}"


def measure_service(args: argparse.Namespace, corpus: Corpus) -> tuple[Run, str]:
    """The service's run, and the name of its engine."""
    query = "?" + "&".join(args.query) if args.query else ""
    with started_or_at(args.url, args.pid, {"OCRSVC_ENGINE": args.engine}) as service:
        engine = engine_of(service.url)
        print(f"engine: {engine}\nload: {args.clients} clients, {len(corpus.pages)} pages once each{query}")
        return read_over_http(service, corpus, args.clients, query), engine["name"]


def measure(args: argparse.Namespace, corpus: Corpus) -> tuple[Run | None, Sequence[str | None], str]:
    """The run (None for saved texts), the texts, and the name of their source."""
    if args.score:
        return None, read_texts(args.score, corpus), args.score.stem
    if args.rapidocr:
        run, name = measure_rapidocr(corpus, args.rapidocr)
    else:
        run, name = measure_service(args, corpus)
    return run, run.texts, name


def check(args: argparse.Namespace, corpus: Corpus, half: str | None) -> bool:
    """Measure, print and write; returns True if no page failed and no applicable bar is missed."""
    run, texts, name = measure(args, corpus)
    if args.texts:
        write_texts(args.texts, corpus, texts)
    parts = tally_parts(corpus, texts, half)
    print("\n".join(table(parts)))
    if run:
        print(run.summary)
    if args.against:
        print("\n".join(differences(corpus, read_texts(args.against, corpus), texts)))
    whole = args.kind is None and args.every == 1 and half is None and (name == "ppocr" or args.score is not None)
    complaints = list(missed(parts[None])) if whole else []
    print(
        "\n".join(f"MISSED {line}" for line in complaints) or ("every bar is met" if whole else "bars are not checked")
    )
    figures: dict[str, object] = {"engine": name, "query": args.query, "every": args.every, "half": args.half}
    figures |= (run.as_dict() if run else {}) | {"kinds": as_dict(parts), "missed": complaints}
    write_result(f"accuracy_{name}" + (f"_{args.kind}" if args.kind else ""), figures, args.out)
    return not complaints and None not in texts


def main() -> int:
    """Run the benchmark; returns 0 if no page failed and no bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="folder with corpus/ and score.py")
    parser.add_argument("--url", help="a running service; without it, one is started")
    parser.add_argument("--pid", type=int, help="the arbiter of that service, to watch its memory and processor time")
    parser.add_argument("--engine", default="ppocr", help="engine of the service that is started")
    parser.add_argument("--half", choices=(*HALVES, "all"), default="all", help="pages of one half only")
    parser.add_argument("--kind", help="only pages of this kind, such as line; bars are not checked")
    parser.add_argument("--every", type=int, default=1, help="only every n-th page; bars are not checked")
    parser.add_argument("--query", action="append", help="an option of /v1/ocr, such as detect=false; may be repeated")
    parser.add_argument("--clients", type=int, default=2, help="pages in flight at once")
    parser.add_argument("--texts", type=Path, help="save the texts in this file, a JSON line per page")
    parser.add_argument("--against", type=Path, help="list the pages whose text differs from these saved texts")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--score", type=Path, help="score these saved texts instead of reading the pages")
    source.add_argument("--rapidocr", choices=CHOICES, help="read with RapidOCR instead of the service")
    parser.add_argument("--out", type=Path, help="JSON output file; default results/accuracy_ENGINE.json")
    args = parser.parse_args()
    half = None if args.half == "all" else args.half
    print_machine()
    return 0 if check(args, Corpus(args.shared, args.kind, args.every, half), half) else 1


if __name__ == "__main__":
    sys.exit(main())
