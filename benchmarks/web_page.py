"""Speed and memory of the web page with documents of 2 and of 100 pages, in a real browser.

    python benchmarks/web_page.py [--pages 2 100] [--lines 60]

Starts the real service with the engine fake, which draws the pages' pictures; the results are generated here as NDJSON,
with --lines lines of nine words per page. Measures for each number of pages: milliseconds from a key or click until the
second frame after it (turning to the next page, typing into an option), the longest frame while the lines are scrolled,
and after a garbage collection the JavaScript heap and the number of DOM nodes. Exit code 1 if any time for the last
number of pages exceeds LIMIT times that of the first, and SLOW_MS. Needs chromium in PATH.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import statistics
import sys
from dataclasses import dataclass
from typing import Final

from bench.machine import print_machine
from bench.service import started
from PIL import Image, ImageDraw
from playwright.sync_api import Browser, Page, sync_playwright

LIMIT: Final = 1.5
SLOW_MS: Final = 50.0
WIDTH, HEIGHT = 1240, 1754
TURNS: Final = 30
_WORDS: Final = ("every", "line", "of", "this", "page", "has", "these", "nine", "words")

# By the second frame the browser has drawn what the event changed.
_TIMED: Final = """([selector, act]) => new Promise((resolve) => {
    const element = document.querySelector(selector);
    const began = performance.now();
    if (act === 'click') element.click();
    else { element.value += '1'; element.dispatchEvent(new Event('input', {bubbles: true})); }
    requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now() - began)));
})"""
_SCROLLED: Final = """(selector) => new Promise((resolve) => {
    const element = document.querySelector(selector);
    let [last, longest, frames] = [performance.now(), 0, 0];
    const step = (now) => {
        longest = Math.max(longest, now - last);
        [last, frames] = [now, frames + 1];
        element.scrollTop += 20;
        if (frames < 60) requestAnimationFrame(step); else resolve(longest);
    };
    requestAnimationFrame((now) => { last = now; requestAnimationFrame(step); });
})"""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a document: median milliseconds, longest frame in the best of three runs, heap bytes and DOM nodes."""

    turn_ms: float
    typed_ms: float
    scrolled_ms: float
    heap_bytes: int
    nodes: int


def make_pdf(count: int) -> bytes:
    """A PDF of empty pages with their numbers."""
    pages = []
    for number in range(1, count + 1):
        page = Image.new("L", (WIDTH, HEIGHT), 255)
        ImageDraw.Draw(page).text((100, 100), str(number), fill=0)
        pages.append(page)
    file = io.BytesIO()
    pages[0].save(file, "PDF", save_all=True, append_images=pages[1:])
    return file.getvalue()


def make_answer(count: int, lines: int) -> str:
    """The result for `count` pages as NDJSON."""
    pages = [json.dumps(_page(number, count, lines)) for number in range(1, count + 1)]
    end = {"id": "benchmark", "engine": {"name": "fake", "model": "none"}, "timing": {"total_s": 1.0}}
    return "\n".join([*pages, json.dumps({"end": end})]) + "\n"


def _page(number: int, count: int, lines: int) -> dict[str, object]:
    every = [_line(place, lines) for place in range(lines)]
    size = {"width": WIDTH, "height": HEIGHT, "angle": 0}
    text = "\n".join(str(line["text"]) for line in every)
    return {"page": number, **size, "text": text, "lines": every, "pages_total": count, "pages_wanted": count}


def _line(place: int, lines: int) -> dict[str, object]:
    top = HEIGHT * (place + 0.2) / lines
    bottom = HEIGHT * (place + 0.8) / lines
    sides = [100 + (WIDTH - 200) * at / len(_WORDS) for at in range(len(_WORDS) + 1)]
    words = [
        {"text": word, "confidence": 0.97, "box": _box(sides[at], top, sides[at + 1] - 8, bottom)}
        for at, word in enumerate(_WORDS)
    ]
    return {"text": " ".join(_WORDS), "confidence": 0.97, "box": _box(sides[0], top, sides[-1], bottom), "words": words}


def _box(left: float, top: float, right: float, bottom: float) -> list[list[float]]:
    return [[left, top], [right, top], [right, bottom], [left, bottom]]


def measure(browser: Browser, url: str, count: int, lines: int) -> Figures:
    """Measure one document in a new browser context."""
    page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
    answer = make_answer(count, lines)
    page.route("**/v1/ocr*", lambda route: route.fulfill(body=answer, content_type="application/x-ndjson"))
    page.goto(url)
    page.set_input_files("#files", {"name": "a.pdf", "mimeType": "application/pdf", "buffer": make_pdf(count)})
    page.locator("#items [data-state=done]").wait_for(state="attached")
    page.locator(".sheet img").wait_for()
    turned = [_timed(page, "#page-after" if place < count - 1 else "#page-before", "click") for place in range(TURNS)]
    typed = [_timed(page, "[name=pages]", "type") for _ in range(TURNS)]
    scrolled = [float(page.evaluate(_SCROLLED, "#panel")) for _ in range(3)]
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    session.send("Performance.enable")
    held = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    page.context.close()
    middle = statistics.median
    return Figures(middle(turned), middle(typed), min(scrolled), int(held["JSHeapUsedSize"]), int(held["Nodes"]))


def _timed(page: Page, selector: str, act: str) -> float:
    return float(page.evaluate(_TIMED, [selector, act]))


def main() -> int:
    """Run the benchmark; returns 1 if many pages are slower than few."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, nargs="+", default=[2, 100], help="pages of the documents (default 2 100)")
    parser.add_argument("--lines", type=int, default=60, help="lines per page (default 60)")
    args = parser.parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("chromium is not installed: apt-get install chromium")
    print_machine()
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with started({"OCRSVC_ENGINE": "fake", "OCRSVC_WORKERS": "1"}) as service, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        rows = [measure(browser, service.url, count, args.lines) for count in args.pages]
        browser.close()
    print(f"{'pages':>6}{'turn ms':>9}{'type ms':>9}{'frame ms':>10}{'heap MB':>9}{'nodes':>8}")
    for count, row in zip(args.pages, rows, strict=True):
        timed = f"{row.turn_ms:9.1f}{row.typed_ms:9.1f}{row.scrolled_ms:10.1f}"
        print(f"{count:6}{timed}{row.heap_bytes / 1e6:9.1f}{row.nodes:8}")
    first, last = rows[0], rows[-1]
    names = ("turn_ms", "typed_ms", "scrolled_ms")
    return int(any(getattr(last, name) > max(LIMIT * getattr(first, name), SLOW_MS) for name in names))


if __name__ == "__main__":
    sys.exit(main())
