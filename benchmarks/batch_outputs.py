"""Cost of each output format of a batch, and whether the text of searchable PDFs can be found.

    python benchmarks/batch_outputs.py CORPUS [--pages 60] [--least-f1 0.99]

CORPUS has manifest.jsonl, with the lines of each page and their boxes, and the images named there. The formats are
written from these lines, without reading. Prints bytes and CPU milliseconds per page of each format, and for a PDF of
the pictures the token F1 of the text that pdfium and poppler (pdftotext, if installed) extract. Exit code 1 if F1 is
below --least-f1, if a picture's bytes change, or if qpdf reports an error.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pikepdf
import pypdfium2
from bench.machine import print_machine

from ocrsvc.batch.destination import Destination
from ocrsvc.batch.outputs.output_formats import BATCH_FORMATS, open_writers
from ocrsvc.batch.pages import FileResults, SourceFile
from ocrsvc.formats.pdf.image_pdf import ImagePdf
from ocrsvc.formats.pdf.page_image import page_image
from ocrsvc.imaging.codecs.decode import PixelLimits

READER = {"engine": "truth", "model": "corpus", "version": "1"}
# Chinese characters and punctuation are tokens by themselves; other text is split at white space.
TOKENS = re.compile(r"[\u3000-\u9fff\uf900-\ufaff\uff00-\uff65]|[^\s\u3000-\u9fff\uf900-\ufaff\uff00-\uff65]+")


def records_of(corpus: Path, most: int) -> list[tuple[Path, dict[str, Any]]]:
    """Image and record of pages whose lines have boxes, spread evenly over the corpus."""
    rows = [json.loads(row) for row in (corpus / "manifest.jsonl").read_text("utf-8").splitlines()]
    rows = [row for row in rows if row["lines"] and all(line.get("box") for line in row["lines"])]
    return [(corpus / row["file"], record_of(row)) for row in rows[:: max(1, len(rows) // most)][:most]]


def record_of(row: dict[str, Any]) -> dict[str, Any]:
    """The record of a corpus page, with its true text as the result."""
    lines = [{"text": line["text"], "confidence": 0.9, "box": line["box"]} for line in row["lines"]]
    text = "\n".join(line["text"] for line in row["lines"])
    size = {"width": row["width"], "height": row["height"], "angle": row["rotation"] or 0}
    return {"source": row["file"], "page": 1} | size | {"text": text, "lines": lines, "error": None}


def results_of(path: Path, records: Sequence[dict[str, Any]]) -> FileResults:
    """The results of one source file."""
    numbers = range(1, len(records) + 1)
    file = SourceFile(path.name, str(path), "", 0, len(records), numbers)
    return FileResults(
        file, numbers, lambda number: orjson.dumps(records[number - 1] | {"page": number}), path.read_bytes
    )


def cpu_s() -> float:
    """Processor time of this process and of its ended children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def write(folder: Path, name: str, files: Sequence[FileResults], pages: int) -> None:
    """Write one format, and print its cost."""
    [write_part] = open_writers([name], READER)
    began_s = cpu_s()
    write_part(Destination(folder), 0, iter(files), replace=True)
    spent_ms = (cpu_s() - began_s) * 1000 / pages
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"{name:14}{size / pages:12,.0f} bytes per page {spent_ms:8.2f} ms of CPU per page")


def write_images(path: Path, images: Sequence[Path]) -> None:
    """Write a PDF of pictures without text."""
    with path.open("wb") as output:
        pdf = ImagePdf(output)
        for image in images:
            pdf.add_page(page_image(image.read_bytes(), PixelLimits(1 << 40)), None)
        pdf.finish()


def f1(one: str, other: str) -> float:
    """F1 of the tokens, regardless of order."""
    left, right = Counter(TOKENS.findall(one)), Counter(TOKENS.findall(other))
    return 2 * (left & right).total() / max(1, left.total() + right.total())


def found_texts(path: Path) -> Iterator[tuple[str, str]]:
    """Name of each PDF reader, and the text it extracts."""
    with pypdfium2.PdfDocument(path) as document:
        yield "pdfium", "\n".join(page.get_textpage().get_text_range() for page in document)
    if shutil.which("pdftotext"):
        command = ["pdftotext", "-enc", "UTF-8", str(path), "-"]
        yield "poppler", subprocess.run(command, capture_output=True, check=True).stdout.decode()


def pictures_of(path: Path) -> list[bytes]:
    """The compressed pictures of a PDF's pages. Raises AssertionError if qpdf reports an error."""
    with pikepdf.open(path) as document:
        assert not [*document.check_pdf_syntax(), *document.get_warnings()], path
        return [page.obj["/Resources"]["/XObject"]["/I"].read_raw_bytes() for page in document.pages]


def check_pdf(path: Path, texts: Sequence[str]) -> float:
    """Print the F1 of each PDF reader; returns the lowest."""
    wanted = "\n".join(texts)
    scores = {name: f1(wanted, found) for name, found in found_texts(path)}
    print(f"  {path.name}: " + ", ".join(f"{name} {score:.4f}" for name, score in scores.items()))
    return min(scores.values())


def main() -> int:
    """Run the benchmark; returns 0 if the PDFs are right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--pages", type=int, default=60)
    parser.add_argument("--least-f1", type=float, default=0.99)
    args = parser.parse_args()
    print_machine()
    pages = records_of(args.corpus, args.pages)
    images, records = [image for image, _ in pages], [record for _, record in pages]
    with tempfile.TemporaryDirectory() as folder:
        for name in BATCH_FORMATS:
            files = [results_of(image, [record]) for image, record in pages]
            write(Path(folder, name.replace(":", "-")), name, files, len(pages))
        plain = Path(folder, "pictures.pdf")
        write_images(plain, images)
        write(Path(folder, "whole"), "pdf", [results_of(plain, records)], len(pages))
        laid = Path(folder, "whole", "pictures.pdf.pdf")
        added = (laid.stat().st_size - plain.stat().st_size) / len(pages)
        print(f"  the text adds {added:,.0f} bytes per page to a PDF")
        same = pictures_of(plain) == pictures_of(laid)
        least = check_pdf(laid, [record["text"] for record in records])
    print(f"pictures are {'unchanged' if same else 'CHANGED'}; least F1 {least:.4f}")
    return 0 if same and least >= args.least_f1 else 1


if __name__ == "__main__":
    sys.exit(main())
