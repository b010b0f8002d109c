"""Checks that `text_layer=auto` reads born-digital PDFs without the engine and without duplicate lines, and how fast.

    python benchmarks/text_layer.py [--clients 2] [--seconds 20] [--workers 2] [--keep FOLDER] [--url URL]

Makes twenty PDFs (bench/born_digital.py), starts the service with the engine `fake`, whose result marks every page that
it reads, and reads each PDF with text_layer=auto. Prints for each the pages that the engine read, the lines that occur
twice at one position, and the token F1 compared with `pdftotext -layout` (Debian: poppler-utils), regardless of order.
Then clients read all PDFs repeatedly for some seconds; pages per second are the total of all clients. Exit code 1 if
the engine read a page, a line occurs twice, or the speed is below 50 pages per second.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.born_digital import BornDigital, born_digital
from bench.machine import print_machine
from bench.service import Service, ask, started_or_at

MIN_PAGES_A_SECOND: Final = 50.0
SAME_PLACE_IOU: Final = 0.5
_TOKEN: Final = re.compile(r"[^\W_]+")
_CJK: Final = re.compile(r"[\u2e80-\ua4cf\uac00-\ud7af\uf900-\ufaff]")
_PATH: Final = "/v1/ocr?text_layer=auto"


def read(url: str, pdf: BornDigital) -> list[dict[str, Any]]:
    """The pages of a PDF as JSON."""
    answer = ask(url, "POST", _PATH, pdf.file, "application/pdf", 300)
    if answer.status != 200:
        sys.exit(f"{pdf.name}: {answer.status} {answer.text[:500]}")
    pages: list[dict[str, Any]] = json.loads(answer.text)["pages"]
    return pages


def duplicate_lines(page: dict[str, Any]) -> int:
    """Number of lines with the same text and position as another line."""
    frames = [_frame(line["box"]) for line in page["lines"]]
    texts = [line["text"] for line in page["lines"]]
    return sum(
        texts[one] == texts[other] and _iou(frames[one], frames[other]) >= SAME_PLACE_IOU
        for one in range(len(texts))
        for other in range(one)
    )


def token_f1(ours: str, theirs: str) -> float:
    """F1 of the tokens of two texts: words without punctuation, or single Chinese and Japanese characters."""
    mine, others = Counter(_tokens(ours)), Counter(_tokens(theirs))
    shared = (mine & others).total()
    return 2 * shared / max(1, mine.total() + others.total())


def by_poppler(pdf: BornDigital) -> str | None:
    """The text that pdftotext extracts; None if it is not installed."""
    if shutil.which("pdftotext") is None:
        return None
    with tempfile.NamedTemporaryFile(suffix=".pdf") as file:
        file.write(pdf.file)
        file.flush()
        done = subprocess.run(["pdftotext", "-layout", file.name, "-"], capture_output=True, check=True, timeout=120)
    return done.stdout.decode("utf-8", "replace")


def pages_a_second(service: Service, pdfs: Sequence[BornDigital], clients: int, seconds: float) -> tuple[float, float]:
    """Pages per second of all clients, each starting with another PDF, and CPU seconds per page."""
    stop_s = time.monotonic() + seconds
    read_pages = [0] * clients

    def work(client: int) -> None:
        at = client * len(pdfs) // clients
        while time.monotonic() < stop_s:
            read_pages[client] += len(read(service.url, pdfs[at % len(pdfs)]))
            at += 1

    threads = [threading.Thread(target=work, args=(client,)) for client in range(clients)]
    began_s, cpu_s = time.monotonic(), service.processes.cpu_s()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    count = sum(read_pages)
    return count / (time.monotonic() - began_s), (service.processes.cpu_s() - cpu_s) / max(1, count)


def _tokens(text: str) -> list[str]:
    plain = unicodedata.normalize("NFKC", text)
    return [token for found in _TOKEN.findall(_CJK.sub(r" \g<0> ", plain)) for token in [found.lower()]]


def _frame(box: Sequence[Sequence[float]]) -> tuple[float, float, float, float]:
    xs, ys = zip(*box, strict=True)
    return min(xs), min(ys), max(xs), max(ys)


def _iou(one: Sequence[float], other: Sequence[float]) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    shared = max(0.0, width) * max(0.0, height)
    areas = sum((frame[2] - frame[0]) * (frame[3] - frame[1]) for frame in (one, other))
    return shared / max(1e-9, areas - shared)


def print_table(url: str, pdfs: Sequence[BornDigital]) -> tuple[int, int]:
    """Print a line per PDF; returns the numbers of pages read by the engine and of duplicate lines."""
    print(f"\n{'':24}{'by':10}{'pages':>6}{'lines':>7}{'read':>6}{'twice':>7}{'F1':>8}")
    engine_pages = twice = 0
    for pdf in pdfs:
        pages = read(url, pdf)
        read_pages = sum(any(line["source"] == "ocr" for line in page["lines"]) for page in pages)
        lines, double = sum(len(page["lines"]) for page in pages), sum(map(duplicate_lines, pages))
        theirs = by_poppler(pdf)
        score = "" if theirs is None else f"{token_f1(' '.join(page['text'] for page in pages), theirs):.4f}"
        print(f"{pdf.name:24}{pdf.maker:10}{len(pages):6}{lines:7}{read_pages:6}{double:7}{score:>8}")
        engine_pages, twice = engine_pages + read_pages, twice + double
    return engine_pages, twice


def main() -> int:
    """Run the benchmark; returns 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=2, help="number of clients (default 2)")
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of the load (default 20)")
    parser.add_argument("--workers", type=int, default=2, help="workers of the service (default 2)")
    parser.add_argument("--keep", type=Path, help="make the PDFs in this folder and keep them")
    parser.add_argument("--url", help="a running service with the engine fake; default: start one")
    args = parser.parse_args()
    print_machine()
    print(f"load average of the last minute: {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        pdfs, missing = born_digital(folder)
    print(f"{len(pdfs)} PDFs" + (f"; missing: {', '.join(missing)}" if missing else ""))
    env = {"OCRSVC_ENGINE": "fake", "OCRSVC_WORKERS": str(args.workers), "OCRSVC_MAX_PAGES": "100"}
    with started_or_at(args.url, env=env) as service:
        engine_pages, twice = print_table(service.url, pdfs)
        speed, cpu_s = pages_a_second(service, pdfs, args.clients, args.seconds)
    print(f"\npages read by the engine: {engine_pages}; duplicate lines: {twice}")
    print(f"{args.clients} clients: {speed:.1f} pages/s, {1000 * cpu_s:.1f} ms of CPU time per page")
    return int(bool(engine_pages or twice) or speed < MIN_PAGES_A_SECOND)


if __name__ == "__main__":
    sys.exit(main())
