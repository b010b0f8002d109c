"""Checks that the text of searchable PDFs can be found, and that nothing else in them changes.

    python benchmarks/searchable_pdf.py [--shared FOLDER] [--pages 60] [--kinds 10]

Reads about --pages corpus pages, evenly spread, with words by the engine ppocr in this process, and makes a searchable
PDF of each picture. From --kinds of them it also makes PDFs of all kinds in bench/pdf_kinds.py (rotated, cropped, with
forms, signed, tagged, damaged, restricted) and a born-digital one, and adds the same text to each. Prints for each kind
the token F1 of the text that pdfium and poppler (Debian: poppler-utils) extract compared with the JSON's text, with the
corpus scorer's tokens; a born-digital PDF has the text twice, so its figure is the share of the JSON's text that is
found. Exit code 1 if F1 over the pictures is below 0.99 with either, a page grows by more than 10 kB, a picture's bytes
change, qpdf reports a new error, or a catalog entry is lost.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Final

import pypdfium2
from bench.corpus import Corpus, CorpusPage
from bench.machine import print_machine
from bench.pdf_kinds import KINDS, born_digital, faults_of, pictures_of, root_of
from bench.service import ROOT

from ocrsvc.formats.document import DocumentResult
from ocrsvc.formats.pdf.searchable import write_searchable_pdf
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import EngineInfo, Page, ReadOptions, no_check
from ocrsvc.settings.load import read_settings
from ocrsvc.system.thread_plan import plan_for, set_library_environment

MIN_F1: Final = 0.99
MAX_BYTES: Final = 10_000
LIMIT_S: Final = 600.0
PICTURE: Final = "picture"
BORN: Final = "born digital"
ENGINE: Final = EngineInfo("ppocr", "", "", "", "", "")


@dataclass(slots=True)
class KindResult:
    """Results over the PDFs of a kind.

    Attributes:
        pages: Number of pages.
        tokens: By reader: counts of common, wanted and found tokens.
        worst: By reader: the lowest F1 of a page with at least ten tokens, and that page's name.
        added_bytes: Growth of each PDF.
        faults: Errors.
    """

    pages: int = 0
    tokens: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    worst: dict[str, tuple[float, str]] = field(default_factory=dict)
    added_bytes: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def add_text(self, reader: str, name: str, wanted: Counter[str], found: Counter[str]) -> None:
        """Add the tokens of one page."""
        both = (wanted & found).total()
        self.tokens[reader].update(both=both, wanted=wanted.total(), found=found.total())
        if wanted.total() >= 10:
            score = 2 * both / (wanted.total() + found.total())
            self.worst[reader] = min(self.worst.get(reader, (1.0, "")), (score, name))

    def f1(self, reader: str) -> float:
        """Token F1 over all pages."""
        counts = self.tokens[reader]
        return 2 * counts["both"] / max(1, counts["wanted"] + counts["found"])


def found_texts(file: bytes) -> Iterator[tuple[str, str]]:
    """Name of each PDF reader, and the text it extracts."""
    with pypdfium2.PdfDocument(file) as document:
        yield "pdfium", "\n".join(page.get_textpage().get_text_range() for page in document)
    if shutil.which("pdftotext"):
        command = ["pdftotext", "-enc", "UTF-8", "-", "-"]
        yield "poppler", subprocess.run(command, input=file, capture_output=True, check=True).stdout.decode()


def searchable(file: bytes, page: Page) -> bytes:
    """The file with the text added to its only page."""
    output = io.BytesIO()
    write_searchable_pdf(DocumentResult(file, [page], 1, ENGINE), output, LIMIT_S, no_check)
    return output.getvalue()


def judge(
    found: KindResult, name: str, before: bytes, page: Page, score: ModuleType, *, has_text: bool = False
) -> None:
    """Add the text to a PDF and record the results; `has_text` if the PDF shows the text already."""
    after = searchable(before, page)
    found.pages += 1
    for reader, text in found_texts(after):
        wanted, again = score.tokens(page.text), score.tokens(text)
        found.add_text(reader, name, wanted, again & wanted if has_text else again)
    if not before.startswith(b"%PDF"):
        found.added_bytes.append(len(after) - len(searchable(before, Page(page.width, page.height, 0, ()))))
        found.faults += [f"{name}: {fault}" for fault in faults_of(after)]
        return
    found.added_bytes.append(len(after) - len(before))
    known = set(faults_of(before))
    found.faults += [f"{name}: {fault}" for fault in faults_of(after) if fault not in known]
    if pictures_of(before) != pictures_of(after):
        found.faults.append(f"{name}: the bytes of a picture changed")
    if gone := root_of(before) - root_of(after):
        found.faults.append(f"{name}: the catalog lost {', '.join(sorted(gone))}")


def judge_all(pages: list[tuple[CorpusPage, Page]], kinds: int, score: ModuleType) -> dict[str, KindResult]:
    """Results by kind."""
    results: dict[str, KindResult] = defaultdict(KindResult)
    for source, page in pages:
        judge(results[PICTURE], source.file.name, source.file.read_bytes(), page, score)
    for source, page in pages[:: max(1, len(pages) // max(1, kinds))][:kinds]:
        for kind, make in KINDS.items():
            judge(results[kind], source.file.name, make(source.file.read_bytes()), page, score)
        judge(results[BORN], source.file.name, born_digital(page), page, score, has_text=True)
    return results


def read_pages(sources: list[CorpusPage]) -> Iterator[tuple[CorpusPage, Page]]:
    """Each page with the engine's result, words included."""
    settings = read_settings(os.environ)
    reader = Reader(settings, plan_for(settings, workers=1))
    reader.start()
    try:
        for source in sources:
            yield source, reader.read(source.file.read_bytes(), ReadOptions(words=True), LIMIT_S).page
    finally:
        reader.stop(5.0)


def report(results: dict[str, KindResult]) -> bool:
    """Print a row per kind; returns whether all goals are met."""
    print(f"{'':16}{'pages':>6}  {'pdfium':>7}  {'poppler':>7}{'bytes/page':>14}{'most':>8}  faults")
    for kind, found in results.items():
        scores = "  ".join(f"{found.f1(reader):7.4f}" for reader in ("pdfium", "poppler"))
        mean = sum(found.added_bytes) / max(1, found.pages)
        print(f"{kind:16}{found.pages:6}  {scores}{mean:14,.0f}{max(found.added_bytes):8,}  {len(found.faults)}")
    for reader, (score, name) in results[PICTURE].worst.items():
        print(f"  worst picture of {reader}: {score:.4f}, {name}")
    for fault in [fault for found in results.values() for fault in found.faults][:20]:
        print(f"  {fault}")
    texts = all(results[PICTURE].f1(reader) >= MIN_F1 for reader in results[PICTURE].tokens)
    small = all(max(found.added_bytes) <= MAX_BYTES for found in results.values())
    return texts and small and not any(found.faults for found in results.values())


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="folder with corpus/ and score.py")
    parser.add_argument("--pages", type=int, default=60)
    parser.add_argument("--kinds", type=int, default=10)
    args = parser.parse_args()
    set_library_environment(os.environ)
    print_machine()
    print(f"load {os.getloadavg()[0]:.1f}; engine ppocr in this process, words=true, other settings as by default")
    corpus = Corpus(args.shared)
    sources = list(corpus.pages)
    sources = sources[:: max(1, len(sources) // args.pages)][: args.pages]
    return 0 if report(judge_all(list(read_pages(sources)), args.kinds, corpus.score)) else 1


if __name__ == "__main__":
    sys.exit(main())
