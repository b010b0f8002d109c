"""Accuracy and cost of word boxes on pages drawn with known positions.

    python benchmarks/words.py [--pages rendered] [--rapidocr] [--tesseract] [--rounds 5] [--draw FOLDER]

Reads the pages of bench/word_pages.py or bench/rendered_pages.py with the engine ppocr in this process, and on request
with RapidOCR (return_word_box) and Tesseract (Debian: tesseract-ocr, tesseract-ocr-chi-sim,
tesseract-ocr-chi-sim-vert). Chinese is compared by character. A word is found if a box covers it with an intersection
over union (IoU) of at least 0.5. There are three common definitions of a word's box, and all are compared: its ink,
Pillow's box (advance width and height of the ink), and its type (advance width, and the font's ascent and descent).
Slanted words are compared by upright boxes around them. The cost is CPU time with words compared with that without,
page by page in alternating order, the minimum over the rounds. Exit code 1 if fewer than 95 % of the words are found by
any definition, words cost more than 2 %, or another reader finds more words on average.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
from bench.machine import print_machine
from bench.rendered_pages import rendered_pages
from bench.service import ROOT
from bench.word_pages import DrawnPage, Frame, is_han, word_pages
from numpy.typing import NDArray

from ocrsvc.engines.contract import Handle
from ocrsvc.engines.ppocr.engine import open_ppocr
from ocrsvc.results import Image, Page, ReadOptions, ReadTask
from ocrsvc.settings.load import read_settings
from ocrsvc.system.thread_plan import plan_for

FOUND_IOU: Final = 0.5
MIN_FOUND: Final = 0.95
MAX_COST: Final = 0.02
SENSES: Final = ("ink", "bounds", "type")
ALL: Final = "all"
_WORD: Final = re.compile(r"title='bbox ([\d ]+)")
_CHARACTER: Final = re.compile(r"class='ocrx_cinfo' title='x_bboxes ([\d ]+);[^']*'>(?:<[^>]+>)*(&\w+;|.)")

Frames = NDArray[np.float64]
"""(N, 4), each row left, top, right, bottom."""
Read = Callable[[DrawnPage], Frames]


def to_frames(quads: Iterable[object]) -> Frames:
    """Upright boxes around quads of four corners."""
    corners = np.array(list(quads), float).reshape(-1, 4, 2)
    return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)


def iou_of(truth: Sequence[Frame], found: Frames) -> NDArray[np.float64]:
    """(N,) best intersection over union of each true box with any found box."""
    if not len(found):
        return np.zeros(len(truth))
    ours = np.array(truth)[:, None]
    sides = np.minimum(ours[..., 2:], found[:, 2:]) - np.maximum(ours[..., :2], found[:, :2])
    shared = np.clip(sides, 0, None).prod(axis=2)
    areas = [(frames[..., 2:] - frames[..., :2]).prod(axis=-1) for frames in (ours, found)]
    best: NDArray[np.float64] = (shared / (areas[0] + areas[1] - shared)).max(axis=1)
    return best


def read_with(handle: Handle, page: DrawnPage, *, words: bool) -> Page:
    """The engine's page. Raises the error if it cannot be read."""
    (answer,) = handle.read([ReadTask(Image(page.pixels, "png"), ReadOptions(words=words))])
    if not isinstance(answer, Page):
        raise answer
    return answer


def by_ppocr(handle: Handle) -> Read:
    """A reader with the engine ppocr."""

    def read(page: DrawnPage) -> Frames:
        answer = read_with(handle, page, words=True)
        return to_frames(word.box for line in answer.lines for word in line.words or ())

    return read


def by_rapidocr() -> Read:
    """A reader with RapidOCR; Chinese comes as characters."""
    from rapidocr import RapidOCR

    engine: Any = RapidOCR(params={"Global.log_level": "error"})

    def read(page: DrawnPage) -> Frames:
        lines = engine(page.pixels, return_word_box=True).word_results or ()
        return to_frames(word[2] for line in lines for word in line if word[2] is not None)

    return read


def by_tesseract(page: DrawnPage) -> Frames:
    """Boxes of Tesseract's words, Chinese by character, with the page's language and otherwise default settings."""
    with tempfile.NamedTemporaryFile(suffix=".png") as file:
        file.write(cv2.imencode(".png", page.pixels)[1].tobytes())
        file.flush()
        command = ["tesseract", file.name, "-", "-l", page.language, "-c", "hocr_char_boxes=1", "hocr"]
        hocr = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    frames = [frame for word in hocr.split("class='ocrx_word'")[1:] for frame in _frames_of_word(word)]
    return np.array(frames, float).reshape(-1, 4)


def _frames_of_word(hocr: str) -> list[Frame]:
    """A box per Chinese character, and one per run of other characters."""
    characters = _CHARACTER.findall(hocr)
    sides = np.array([numbers.split() for numbers, _ in characters], float).reshape(-1, 4)
    if (sides[:, 0] == sides[:, 2]).any() or not characters:
        # In vertical text Tesseract's characters have no width.
        return [np.array(_WORD.findall(hocr)[0].split(), float)]
    frames = []
    for _, run in groupby(range(len(sides)), lambda place: place if is_han(characters[place][1]) else None):
        own = sides[list(run)]
        frames.append(np.array([*own[:, :2].min(axis=0), *own[:, 2:].max(axis=0)]))
    return frames


def tally(pages: Sequence[DrawnPage], read: Read) -> dict[str, dict[str, NDArray[np.float64]]]:
    """The IoU of each word, by kind of page and definition of the box."""
    found: dict[str, dict[str, list[NDArray[np.float64]]]] = defaultdict(lambda: defaultdict(list))
    for page in pages:
        frames = read(page)
        for sense in SENSES:
            ious = iou_of([getattr(word, sense) for word in page.words], frames)
            for kind in (page.kind, ALL):
                found[kind][sense].append(ious)
    return {kind: {sense: np.concatenate(parts) for sense, parts in senses.items()} for kind, senses in found.items()}


def print_table(name: str, ious: dict[str, dict[str, NDArray[np.float64]]]) -> None:
    """Print a line per kind: words, and for each definition the share found and the mean IoU."""
    print(f"\n{name}: words found at IoU >= {FOUND_IOU} (mean IoU)")
    print(f"{'':10}{'words':>7}" + "".join(f"{sense:>16}" for sense in SENSES))
    for kind, senses in ious.items():
        cells = (f"{np.mean(senses[sense] >= FOUND_IOU):.3f} ({np.mean(senses[sense]):.2f})" for sense in SENSES)
        print(f"{kind:10}{len(senses[SENSES[0]]):7}" + "".join(f"{cell:>16}" for cell in cells))


def cost_of(handle: Handle, pages: Sequence[DrawnPage], rounds: int) -> tuple[float, float]:
    """CPU seconds of all pages without and with words, from each page's minimum over the rounds."""
    spent = np.full((2, len(pages)), np.inf)
    for at in range(rounds):
        for number, page in enumerate(pages):
            # Alternate: the second reading finds memory allocated and the model's shapes ready.
            for words in ((False, True), (True, False))[at % 2]:
                began_s = time.process_time()
                read_with(handle, page, words=words)
                spent[int(words), number] = min(spent[int(words), number], time.process_time() - began_s)
    without_s, with_s = spent.sum(axis=1).tolist()
    return without_s, with_s


def draw(pages: Sequence[DrawnPage], read: Read, folder: Path) -> None:
    """Write pictures of the pages with the words' boxes."""
    folder.mkdir(parents=True, exist_ok=True)
    for page in pages:
        picture = page.pixels.copy()
        for left, top, right, bottom in np.rint(read(page)).astype(int).tolist():
            cv2.rectangle(picture, (left, top), (right, bottom), (0, 0, 255))
        cv2.imwrite(str(folder / f"{page.name}.png"), picture)


def main() -> int:
    """Run the benchmark; returns 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", choices=("drawn", "rendered"), default="drawn", help="which pages (default drawn)")
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="folder with render_pages.py")
    parser.add_argument("--rapidocr", action="store_true", help="read the pages with RapidOCR, too")
    parser.add_argument("--tesseract", action="store_true", help="read the pages with Tesseract, too")
    parser.add_argument("--rounds", type=int, default=5, help="readings of each page for the cost (default 5)")
    parser.add_argument("--draw", type=Path, help="folder for pictures of the pages with our word boxes")
    args = parser.parse_args()
    print_machine()
    settings = read_settings({})
    pages = rendered_pages(args.shared / "render_pages.py") if args.pages == "rendered" else word_pages()
    handle: Handle = open_ppocr(settings, plan_for(settings, workers=1)).open_handle()
    handle.warm_up()
    ours = read_all("ppocr", pages, by_ppocr(handle))
    others = [read_all("RapidOCR", pages, by_rapidocr())] if args.rapidocr else []
    others += [read_all("Tesseract", pages, by_tesseract)] if args.tesseract else []
    if args.draw:
        draw(pages, by_ppocr(handle), args.draw)
    without_s, with_s = cost_of(handle, pages, args.rounds)
    cost = with_s / without_s - 1
    print(
        f"\nCPU time of {len(pages)} pages: {without_s:.2f} s without words, {with_s:.2f} s with: {100 * cost:+.1f} %"
    )
    is_behind = any(np.mean(list(other.values())) > np.mean(list(ours.values())) for other in others)
    return int(min(ours.values()) < MIN_FOUND or cost > MAX_COST or is_behind)


def read_all(name: str, pages: Sequence[DrawnPage], read: Read) -> dict[str, float]:
    """Print a reader's table; returns the share of all words found, by definition of the box."""
    ious = tally(pages, read)
    print_table(name, ious)
    return {sense: float(np.mean(of_sense >= FOUND_IOU)) for sense, of_sense in ious[ALL].items()}


if __name__ == "__main__":
    sys.exit(main())
