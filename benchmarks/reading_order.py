"""Reading order of the engine on drawn pages with a known order: columns, reports, forms, tables, sheets.

    python benchmarks/reading_order.py [--pages 2] [--first-seed 0] [--kind form] [--save FOLDER]

Draws pages of each kind (tests/order_pages.py), level, slanted by up to 5 degrees or in perspective, and reads them
with the engine ppocr in this process. Prints for each kind the character error rate of the text, and that of the order
alone: true texts in the order in which their positions were read. Exit code 1 if a kind's order error is above 0.03 on
average. Needs Liberation Sans and Noto Sans CJK (Debian: fonts-liberation fonts-noto-cjk).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
from bench.machine import print_machine
from bench.results import write_result
from numpy.typing import NDArray

from ocrsvc.results import Image, Page, Pixels, ReadTask

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from bench.order_drawing import drawn_sheet, picture_of
from order_pages import KINDS
from order_sheet import View, order_cer, quads_of

VIEWS = (View(), View(slant=5), View(slant=-3, keystone=0.06), View(slant=2), View(keystone=0.1))
MAX_CER = 0.03

Reader = Callable[[Pixels], Page]


def main() -> int:
    """Run the benchmark."""
    args = _arguments()
    print_machine()
    read = _open_reader()
    figures: dict[str, dict[str, float]] = {}
    print(f"{'kind':<28}{'text CER':>10}{'order CER':>11}")
    for kind in args.kind or KINDS:
        seeds = range(args.first_seed, args.first_seed + args.pages)
        rates = [_measure(kind, seed, read, args.save) for seed in seeds]
        text, order = (statistics.mean(column) for column in zip(*rates, strict=True))
        figures[kind] = {"text": text, "order": order}
        print(f"{kind:<28}{text:>10.3f}{order:>11.3f}{'  *' if order > MAX_CER else ''}", flush=True)
    text, order = (statistics.mean(rates[name] for rates in figures.values()) for name in ("text", "order"))
    print(f"{'mean':<28}{text:>10.3f}{order:>11.3f}")
    write_result("reading_order", {"pages": args.pages, "first_seed": args.first_seed, "kinds": figures})
    return int(any(rates["order"] > MAX_CER for rates in figures.values()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", action="append", choices=list(KINDS))
    parser.add_argument("--pages", type=int, default=2, help="per kind")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--save", type=Path, help="an existing folder for the pictures")
    return parser.parse_args()


def _open_reader() -> Reader:
    from ocrsvc.engines.ppocr.engine import open_ppocr
    from ocrsvc.settings.load import read_settings
    from ocrsvc.system.thread_plan import plan_for

    settings = read_settings({"OCRSVC_DEVICE": "cpu"})
    handle = open_ppocr(settings, plan_for(settings, workers=1)).open_handle()

    def read(pixels: Pixels) -> Page:
        [page] = handle.read([ReadTask(Image(pixels, "png"))])
        assert isinstance(page, Page), page
        return page

    return read


def _measure(kind: str, seed: int, read: Reader, save: Path | None) -> tuple[float, float]:
    """Error rates of the text and of the order alone."""
    sheet = drawn_sheet(kind, seed)
    pixels, matrix = picture_of(sheet, VIEWS[seed % len(VIEWS)])
    if save:
        cv2.imwrite(str(save / f"{kind}_{seed}.png"), pixels)
    page = read(pixels)
    texts = [line.text for line in sheet.lines]
    places = _places_read(quads_of(sheet.lines, matrix, None), page)
    order = order_cer([texts[place] for place in sorted(places)], [texts[place] for place in places])
    return order_cer(texts, [line.text for line in page.lines]), order


def _places_read(quads: NDArray[np.float32], page: Page) -> list[int]:
    """Indexes of the lines read, in reading order; a line that is read twice counts the first time."""
    middles = quads.mean(axis=1)
    nearest = [int(np.abs(middles - np.mean(line.box, axis=0)).sum(axis=1).argmin()) for line in page.lines]
    return list(dict.fromkeys(nearest))


if __name__ == "__main__":
    sys.exit(main())
