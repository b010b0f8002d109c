"""Spaces lost or invented on drawn Latin pages, by resolution, type size, JPEG quality and grain.

    python benchmarks/spaces.py [--dpi 150 ...] [--sizes 26 30 ...] [--qualities 60 80 ...] [--seeds 1 ...]

Draws the pages of bench/space_pages.py in DejaVu Sans and DejaVu Serif (Debian: fonts-dejavu), and posts each to
/v1/ocr of a service started here (or at --url), as a JPEG and as a PDF page with that JPEG. A cell of the table is one
resolution, size, quality and kind of page, in both typefaces: the number of spaces lost, and of all spaces. As in the
corpus's scorer, only positions between two correctly read characters count. Exit code 1 if in any cell more than 0.5 %
of the spaces are lost or invented.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Final

from bench.corpus import load_scorer
from bench.machine import print_machine
from bench.pdf_kinds import scanned
from bench.results import write_result
from bench.service import ROOT, Service, ask, engine_of, form_with_file, started_or_at
from bench.space_pages import FACES, SpacedPage, as_jpeg, draw_page

MAX_WRONG: Final = 0.005
PAGE_LIMIT_S: Final = 600.0
PATIENT: Final = {"OCRSVC_DEADLINE_S": "600"}
CARRIERS: Final = ("jpeg", "pdf")


@dataclass(frozen=True, slots=True)
class Cell:
    """The properties shared by the pages whose spaces are counted together."""

    dpi: int
    size_px: int
    quality: int
    grain: bool
    carrier: str


def main() -> int:
    """Run the benchmark; returns 1 if a cell has too many wrong spaces."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="folder with score.py")
    parser.add_argument("--url", help="a running service; without it, one is started")
    parser.add_argument("--dpi", type=int, nargs="+", default=[100, 150, 200, 300])
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[18, 22, 26, 30, 36, 48, 60], help="type sizes in pixels"
    )
    parser.add_argument("--qualities", type=int, nargs="+", default=[60, 75, 85, 95])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="each seed draws pages with other words")
    parser.add_argument("--grain", choices=("both", "without", "only"), default="both", help="pages with scanner grain")
    parser.add_argument("--clients", type=int, default=2, help="pages in flight at once")
    parser.add_argument("--out", type=Path, help="JSON output file; default results/spaces.json")
    args = parser.parse_args()
    print_machine()
    grains = {"both": (False, True), "without": (False,), "only": (True,)}[args.grain]
    pages = list(product(args.dpi, args.sizes, grains, FACES, args.seeds))
    with started_or_at(args.url, None, PATIENT) as service, ThreadPoolExecutor(args.clients) as pool:
        print(f"engine: {engine_of(service.url)}")
        scorer = load_scorer(args.shared / "score.py")
        read = [pool.submit(read_page, service, scorer, *page, args.qualities) for page in pages]
        counts = sum_up([future.result() for future in read])
    print_matrix(counts)
    figures = [{**vars_of(cell), **counts[cell]} for cell in counts]
    write_result("spaces", {"cells": figures}, args.out)
    return int(any(wrong_share(counts[cell]) > MAX_WRONG for cell in counts))


def read_page(
    service: Service,
    scorer: ModuleType,
    dpi: int,
    size_px: int,
    grain: bool,  # noqa: FBT001  one of the axes of the matrix
    face: str,
    seed: int,
    qualities: list[int],
) -> dict[Cell, Counter[str]]:
    """Counts of one page in each quality and carrier."""
    page = draw_page(seed, face, size_px, dpi, grain=grain)
    counts = {}
    for quality in qualities:
        jpeg = as_jpeg(page.picture, quality, dpi)
        for carrier, file in zip(CARRIERS, (jpeg, scanned(jpeg)), strict=True):
            counts[Cell(dpi, size_px, quality, grain, carrier)] = count(scorer, page, post(service, file, carrier))
    return counts


def post(service: Service, file: bytes, carrier: str) -> str:
    """The text of a one-page file; exits if the service fails."""
    body, content_type = form_with_file(file, f"page.{carrier}", "application/octet-stream")
    answer = ask(service.url, "POST", "/v1/ocr", body, content_type, limit_s=PAGE_LIMIT_S)
    if answer.status != 200:
        sys.exit(f"{answer.status}: {answer.text[:300]}")
    return "\n".join(line["text"] for page in json.loads(answer.text)["pages"] for line in page["lines"])


def count(scorer: ModuleType, page: SpacedPage, text: str) -> Counter[str]:
    """Counts of spaces on the page, lost and invented spaces, and wrongly read characters."""
    both, wanted, got, _, _ = scorer.spaces(page.text, text)["latin"]
    edits, _ = scorer.edits(page.text, text)
    return Counter(spaces=wanted, lost=wanted - both, invented=got - both, edits=edits)


def sum_up(parts: list[dict[Cell, Counter[str]]]) -> dict[Cell, Counter[str]]:
    """Sums of the counts by cell."""
    counts: dict[Cell, Counter[str]] = {}
    for part in parts:
        for cell, of_page in part.items():
            counts.setdefault(cell, Counter()).update(of_page)
    return counts


def wrong_share(counts: Counter[str]) -> float:
    """The larger of the shares of lost and of invented spaces."""
    return max(counts["lost"], counts["invented"]) / max(1, counts["spaces"])


def print_matrix(counts: dict[Cell, Counter[str]]) -> None:
    """Print a row per resolution, kind and quality, and a column per size: lost (+invented) / spaces."""
    sizes = sorted({cell.size_px for cell in counts})
    print(f"\nlost (+invented) / spaces{'':14}" + "".join(f"{size:>6} px   " for size in sizes))
    rows = sorted({(cell.dpi, cell.grain, cell.carrier, cell.quality) for cell in counts})
    for dpi, grain, carrier, quality in rows:
        cells = [counts[Cell(dpi, size, quality, grain, carrier)] for size in sizes]
        name = f"{dpi} dpi {'grain' if grain else 'plain'} {carrier:4} q{quality}"
        print(f"{name:39}" + "".join(f"{_shown(cell):>12}" for cell in cells))
    total = sum(counts.values(), Counter())
    bad = [cell for cell in counts if wrong_share(counts[cell]) > MAX_WRONG]
    print(
        f"all: {total['lost']} lost, {total['invented']} invented of {total['spaces']} spaces, "
        f"{total['edits']} characters wrong; {len(bad)} of {len(counts)} cells over {MAX_WRONG:.1%}"
    )
    for carrier in CARRIERS:
        of = sum((counts[cell] for cell in counts if cell.carrier == carrier), Counter())
        print(f"{carrier}: {of['lost']} lost, {of['invented']} invented of {of['spaces']}")


def vars_of(cell: Cell) -> dict[str, object]:
    """The cell as a JSON-ready dict."""
    return {name: getattr(cell, name) for name in Cell.__dataclass_fields__}


def _shown(counts: Counter[str]) -> str:
    invented = f"+{counts['invented']}" if counts["invented"] else ""
    return f"{counts['lost']}{invented}/{counts['spaces']}" + ("!" if wrong_share(counts) > MAX_WRONG else "")


if __name__ == "__main__":
    sys.exit(main())
