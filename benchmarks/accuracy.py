"""Accuracy, speed and cost of reading the corpus through the service.

    python benchmarks/accuracy.py [--shared ../shared] [--every 10] [--kind line] [--rapidocr]
    python benchmarks/accuracy.py --engine tr_crnn --kind line --query detect=false

Posts every page that has a known text to /v1/ocr of a service that is started here (or at --url), and scores the
answers with the corpus's own scorer. Exit code 1 when a page fails or, over the engine ppocr and the whole corpus, a
bar is missed; a sample of a few pages a kind proves nothing. --rapidocr reads the same pages with RapidOCR's defaults
afterwards.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.corpus import ALL, Corpus, Tally
from bench.machine import print_machine
from bench.results import write_result
from bench.service import ROOT, Service, ask, engine_of, form_with_file, started_or_at

PAGE_LIMIT_S = 600.0

# RapidOCR 3.10.0 with its defaults on the whole corpus: token F1 by kind (accuracy.py --rapidocr measures it again).
RAPIDOCR_F1 = {
    ALL: 0.933,
    "card": 1.0,
    "document": 0.953,
    "ecommerce": 0.863,
    "format": 0.909,
    "line": 0.823,
    "photo": 0.888,
    "receipt": 0.941,
    "rotated": 0.834,
    "scene": 0.979,
    "screenshot": 0.986,
}
RAPIDOCR_CER = 0.303
SLACK_F1 = 0.005
RAISED_F1 = {ALL: 0.945, "rotated": 0.95, "line": 0.90}
MOST_CER = 0.20


@dataclass(frozen=True, slots=True)
class Run:
    """What reading the corpus gave and took; `peak_mb` and `cpu_s` are 0 when the processes are not known."""

    texts: list[str | None]
    wall_s: float
    cpu_s: float
    peak_mb: float

    @property
    def summary(self) -> str:
        """Speed and cost in one line."""
        count = len(self.texts)
        return (
            f"{count} pages in {self.wall_s:.0f} s: {count / self.wall_s:.2f} pages/s, "
            f"{self.cpu_s / count:.2f} CPU s a page, peak RSS {self.peak_mb:.0f} MB"
        )

    def as_dict(self) -> dict[str, object]:
        """Ready to become JSON."""
        count = len(self.texts)
        return {
            "wall_s": round(self.wall_s, 1),
            "pages_per_s": round(count / self.wall_s, 3),
            "cpu_s_per_page": round(self.cpu_s / count, 3),
            "peak_rss_mb": round(self.peak_mb),
        }


def least_f1(kind: str) -> float:
    """The bar for a kind."""
    return RAISED_F1.get(kind, RAPIDOCR_F1[kind] - SLACK_F1)


def read_over_http(service: Service, corpus: Corpus, clients: int, query: str) -> Run:
    """Post every page, so many at a time."""

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


def read_with_rapidocr(files: list[Path]) -> Run:
    """The same pages with RapidOCR's defaults, one after the other. Runs in a process of its own."""
    from rapidocr import RapidOCR

    logging.disable(logging.WARNING)
    engine = RapidOCR()
    cpu_before_s, began_s = time.process_time(), time.perf_counter()
    texts: list[str | None] = ["\n".join(getattr(engine(str(file)), "txts", None) or ()) for file in files]
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_before_s
    return Run(texts, wall_s, cpu_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def in_own_process(work: Callable[[list[Path]], Run], files: list[Path]) -> Run:
    """The result of `work(files)`, run in a fresh process, so that memory and processor time are its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, (files,))


def print_table(tallies: Mapping[str, Tally]) -> None:
    """One row a kind, beside the bar and RapidOCR's figure."""
    print(f"{'kind':12} {'pages':>5} {'F1':>7} {'bar':>6} {'RapidOCR':>9} {'precision':>9} {'recall':>7} {'CER':>7}")
    for kind, tally in sorted(tallies.items()):
        print(
            f"{kind:12} {tally.pages:5} {tally.f1:7.4f} {least_f1(kind):6.3f} {RAPIDOCR_F1[kind]:9.3f} "
            f"{tally.precision:9.4f} {tally.recall:7.4f} {tally.cer:7.4f}"
        )


def missed(tallies: Mapping[str, Tally]) -> Iterator[str]:
    """The bars that the figures do not reach. The bar for CER is one over all kinds."""
    for kind, tally in sorted(tallies.items()):
        if tally.f1 < least_f1(kind):
            yield f"F1 of {kind} is {tally.f1:.4f}, below {least_f1(kind):.3f}"
    if tallies[ALL].cer > MOST_CER:
        yield f"CER is {tallies[ALL].cer:.4f}, above {MOST_CER:.2f} (RapidOCR: {RAPIDOCR_CER:.3f})"


def measure(asked: argparse.Namespace, corpus: Corpus) -> tuple[Run, str]:
    """The service's run, and the name of its engine."""
    query = "?" + "&".join(asked.query) if asked.query else ""
    with started_or_at(asked.url, asked.pid, {"OCRSVC_ENGINE": asked.engine}) as service:
        engine = engine_of(service.url)
        print(f"engine: {engine}\nload: {asked.clients} clients, {len(corpus.pages)} pages once each{query}")
        return read_over_http(service, corpus, asked.clients, query), engine["name"]


def check(asked: argparse.Namespace, corpus: Corpus) -> bool:
    """Read, print, write; True when no page failed and, where bars hold, none is missed."""
    run, engine = measure(asked, corpus)
    tallies = corpus.tally(run.texts)
    figures: dict[str, object] = {"engine": engine, "query": asked.query, "every": asked.every, **run.as_dict()}
    figures["kinds"] = {kind: tally.as_dict() for kind, tally in tallies.items()}
    print_table(tallies)
    print(run.summary)
    whole = engine == "ppocr" and asked.kind is None and asked.every == 1
    complaints = list(missed(tallies)) if whole else []
    print("\n".join(f"MISSED {line}" for line in complaints) or ("every bar is met" if whole else "no bars are held"))
    if asked.rapidocr:
        figures["rapidocr"] = compare_with_rapidocr(corpus)
    name = f"accuracy_{engine}" + (f"_{asked.kind}" if asked.kind else "")
    write_result(name, figures | {"missed": complaints}, asked.out)
    return not complaints and None not in run.texts


def compare_with_rapidocr(corpus: Corpus) -> dict[str, object]:
    """RapidOCR's figures on the same pages, printed and ready to become JSON."""
    run = in_own_process(read_with_rapidocr, [page.file for page in corpus.pages])
    tallies = corpus.tally(run.texts)
    print("RapidOCR with its defaults, on the same pages:")
    print_table(tallies)
    print(run.summary)
    return run.as_dict() | {"kinds": {kind: tally.as_dict() for kind, tally in tallies.items()}}


def main() -> int:
    """Run once; 0 when nothing failed and no bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="holds corpus/ and score.py")
    parser.add_argument("--url", help="a running service; without it, one is started")
    parser.add_argument("--pid", type=int, help="the arbiter of that service, to watch its memory and processor time")
    parser.add_argument("--engine", default="ppocr", help="for the service that is started")
    parser.add_argument("--kind", help="only pages of this kind, such as line; no bars are held")
    parser.add_argument("--every", type=int, default=1, help="only every n-th page")
    parser.add_argument("--query", action="append", help="an option of /v1/ocr, such as detect=false; may be repeated")
    parser.add_argument("--clients", type=int, default=2, help="pages under way at once")
    parser.add_argument("--rapidocr", action="store_true", help="measure RapidOCR on the same pages too")
    parser.add_argument("--out", type=Path, help="the JSON file; results/accuracy_ENGINE.json if left out")
    asked = parser.parse_args()
    print_machine()
    return 0 if check(asked, Corpus(asked.shared, asked.kind, asked.every)) else 1


if __name__ == "__main__":
    sys.exit(main())
