"""Accuracy of table recognition on drawn pages with known cells: cells with the right row, column, spans and text.

    python benchmarks/tables.py                  # from the lines as drawn
    python benchmarks/tables.py --ocr            # from the lines as the engine ppocr reads them
    python benchmarks/tables.py --kind ruled --first-seed 100 --pages 20 --slant 3

Prints for each kind of page the share of drawn cells with text for which a table on the page has a cell with the same
row, column, spans and text (ignoring spaces), the number of tables drawn and found, and processor milliseconds per
page.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import cv2

from ocrsvc.imaging.tables.find_tables import find_tables
from ocrsvc.results import Image, Page, ReadTask, Table, no_check

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from table_pages import KINDS, DrawnPage, TrueCell, draw_page

Reader = Callable[[DrawnPage], Page]


def main() -> None:
    """Run the benchmark."""
    args = _arguments()
    cv2.setNumThreads(1)
    read: Reader = _ocr() if args.ocr else (lambda drawn: drawn.page)
    print(f"{'kind':<14}{'cells':>8}{'right':>8}{'tables':>8}{'found':>8}{'ms':>8}")
    for kind in args.kind or KINDS:
        pages = [draw_page(kind, args.first_seed + seed, args.slant) for seed in range(args.pages)]
        rows = [_measure(drawn, read, verbose=args.verbose) for drawn in pages]
        cells, right, tables, found, seconds = (sum(column) for column in zip(*rows, strict=True))
        share = f"{right / cells:.3f}" if cells else "-"
        print(f"{kind:<14}{cells:>8}{share:>8}{tables:>8}{found:>8}{1000 * seconds / len(rows):>8.1f}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", action="append", choices=list(KINDS))
    parser.add_argument("--pages", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--slant", type=float, default=0.0, help="degrees clockwise")
    parser.add_argument("--ocr", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="print the cells that were not found")
    return parser.parse_args()


def _ocr() -> Reader:
    from ocrsvc.engines.ppocr.engine import open_ppocr
    from ocrsvc.settings.load import read_settings
    from ocrsvc.system.thread_plan import plan_for

    settings = read_settings({"OCRSVC_DEVICE": "cpu"})
    handle = open_ppocr(settings, plan_for(settings, workers=1)).open_handle()

    def read(drawn: DrawnPage) -> Page:
        [page] = handle.read([ReadTask(Image(drawn.pixels, "png"))])
        assert isinstance(page, Page), page
        return page

    return read


def _measure(drawn: DrawnPage, read: Reader, *, verbose: bool) -> tuple[int, int, int, int, float]:
    """Numbers of cells, cells found, tables and tables found, and seconds."""
    page = read(drawn)
    began_s = time.process_time()
    found = find_tables(drawn.pixels, page, no_check)
    seconds = time.process_time() - began_s
    cells = right = 0
    for table in drawn.tables:
        missed = min((list(_missed(table, other)) for other in found), key=len, default=list(_missed(table, None)))
        cells += sum(bool(cell.text) for cell in table)
        right += sum(bool(cell.text) for cell in table) - len(missed)
        if verbose and missed:
            print(f"  {drawn.name}: {[(one.rows, one.columns) for one in found]} {missed}")
    return cells, right, len(drawn.tables), len(found), seconds


def _missed(table: Sequence[TrueCell], found: Table | None) -> Iterator[TrueCell]:
    """The cells with text that are missing from a table."""
    has = {
        (cell.row, cell.column, cell.row_span, cell.column_span, "".join(cell.text.split()))
        for cell in (found.cells if found else ())
    }
    for cell in table:
        text = "".join(cell.text.split())
        if text and (cell.row, cell.column, cell.row_span, cell.column_span, text) not in has:
            yield cell


if __name__ == "__main__":
    main()
