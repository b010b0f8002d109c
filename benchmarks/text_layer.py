"""What `text_layer=auto` takes of PDFs that were never scanned, how fast, and whether no line comes twice.

    python benchmarks/text_layer.py [--clients 2] [--seconds 20] [--workers 2] [--keep FOLDER] [--url URL]

Makes twenty PDFs (bench/born_digital.py), starts the service with the engine `fake`, which says of every page that it
was asked to read, and reads each PDF with text_layer=auto. For each it says how many pages had nothing read by the
engine, how many lines stand twice in one place, and the token F1 of the text against `pdftotext -layout` (Debian:
poppler-utils), which takes the order of tokens into no account. Then clients read all of them again and again for some
seconds, and the pages a second are those of all clients together. Exit code 1 when the engine has read anything, a line
comes twice, or it is less than 50 pages a second.
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
    """Its pages."""
    answer = ask(url, "POST", _PATH, pdf.file, "application/pdf", 300)
    if answer.status != 200:
        sys.exit(f"{pdf.name}: {answer.status} {answer.text[:500]}")
    pages: list[dict[str, Any]] = json.loads(answer.text)["pages"]
    return pages


def doubled(page: dict[str, Any]) -> int:
    """Lines that say the same as another one where that one stands."""
    frames = [_frame(line["box"]) for line in page["lines"]]
    texts = [line["text"] for line in page["lines"]]
    return sum(
        texts[one] == texts[other] and _iou(frames[one], frames[other]) >= SAME_PLACE_IOU
        for one in range(len(texts))
        for other in range(one)
    )


def token_f1(ours: str, theirs: str) -> float:
    """F1 of the tokens of two texts: words without marks, of Chinese and Japanese characters."""
    mine, others = Counter(_tokens(ours)), Counter(_tokens(theirs))
    shared = (mine & others).total()
    return 2 * shared / max(1, mine.total() + others.total())


def by_poppler(pdf: BornDigital) -> str | None:
    """What pdftotext says of it; None where there is none."""
    if shutil.which("pdftotext") is None:
        return None
    with tempfile.NamedTemporaryFile(suffix=".pdf") as file:
        file.write(pdf.file)
        file.flush()
        said = subprocess.run(["pdftotext", "-layout", file.name, "-"], capture_output=True, check=True, timeout=120)
    return said.stdout.decode("utf-8", "replace")


def pages_a_second(service: Service, pdfs: Sequence[BornDigital], clients: int, seconds: float) -> tuple[float, float]:
    """Of several clients, each of which reads all PDFs in turn, beginning with another one; and CPU seconds a page."""
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
    """One line a PDF; how many pages the engine has read, and how many lines came twice."""
    print(f"\n{'':24}{'by':10}{'pages':>6}{'lines':>7}{'read':>6}{'twice':>7}{'F1':>8}")
    engine_pages = twice = 0
    for pdf in pdfs:
        pages = read(url, pdf)
        read_pages = sum(any(line["source"] == "ocr" for line in page["lines"]) for page in pages)
        lines, double = sum(len(page["lines"]) for page in pages), sum(map(doubled, pages))
        theirs = by_poppler(pdf)
        score = "" if theirs is None else f"{token_f1(' '.join(page['text'] for page in pages), theirs):.4f}"
        print(f"{pdf.name:24}{pdf.maker:10}{len(pages):6}{lines:7}{read_pages:6}{double:7}{score:>8}")
        engine_pages, twice = engine_pages + read_pages, twice + double
    return engine_pages, twice


def main() -> int:
    """Print the table and the speed; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=2, help="that read at the same time (default 2)")
    parser.add_argument("--seconds", type=float, default=20.0, help="for which they do (default 20)")
    parser.add_argument("--workers", type=int, default=2, help="of the service (default 2)")
    parser.add_argument("--keep", type=Path, help="make the PDFs in this folder, and leave them there")
    parser.add_argument("--url", help="of a running service with the engine fake; without it one is started")
    args = parser.parse_args()
    print_machine()
    print(f"load average of the last minute: {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        pdfs, lacking = born_digital(folder)
    print(f"{len(pdfs)} PDFs" + (f"; not here: {', '.join(lacking)}" if lacking else ""))
    env = {"OCRSVC_ENGINE": "fake", "OCRSVC_WORKERS": str(args.workers), "OCRSVC_MAX_PAGES": "100"}
    with started_or_at(args.url, env=env) as service:
        engine_pages, twice = print_table(service.url, pdfs)
        speed, cpu_s = pages_a_second(service, pdfs, args.clients, args.seconds)
    print(f"\npages read by the engine: {engine_pages}; lines twice: {twice}")
    print(f"{args.clients} clients: {speed:.1f} pages/s, {1000 * cpu_s:.1f} ms of CPU time a page")
    return int(bool(engine_pages or twice) or speed < MIN_PAGES_A_SECOND)


if __name__ == "__main__":
    sys.exit(main())
