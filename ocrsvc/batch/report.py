"""The report of a run: one HTML file without scripts, made of the plan and the manifests."""

from __future__ import annotations

import base64
import sqlite3
import tempfile
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import cv2
import orjson
from jinja2 import Environment

from ocrsvc import __version__
from ocrsvc.batch.destination import Destination
from ocrsvc.batch.human_readable import bytes_of, count_of, duration_of, rate_of, seconds_of, share_of, visible
from ocrsvc.batch.objects import without_secrets
from ocrsvc.batch.pages import Load, SourceFile
from ocrsvc.batch.parts import finished_parts, read_kept, read_manifests
from ocrsvc.batch.plan import Plan
from ocrsvc.batch.run_file import open_known_run
from ocrsvc.batch.work_file import PageFacts
from ocrsvc.errors import BodyTooLarge, DeadlineExceeded, OcrsvcError
from ocrsvc.imaging.codecs.decode import PixelLimits, decode_pixels
from ocrsvc.imaging.codecs.encoded_image import EncodedImage
from ocrsvc.imaging.document import open_document
from ocrsvc.imaging.geometry import shrink
from ocrsvc.results import Image

REPORT: Final = "report.html"
MOST_BINS: Final = 80
MOST_REASONS: Final = 30
MOST_FILES: Final = 20
"""Of one reason."""
MOST_WORKERS: Final = 40
MOST_PAGES: Final = 12
"""Slowest, and least confident."""
_MOST_VALUE: Final = 300
_PAUSE_S: Final = 60.0
"""Without a page for so long, the run is taken to have stood still."""
_SECONDS: Final = [step * 10.0**power for power in range(-3, 4) for step in (1, 2, 5)]
_CONFIDENCES: Final = [step / 20 for step in range(21)]


class Plot(NamedTuple):
    """Columns, each with a label, pages that were read, and pages that failed."""

    title: str
    text: str
    columns: Sequence[tuple[str, int, int]]


Table = Callable[..., list[Any]]
"""Gives the rows of a query of SQL with its values; its table `page` has the pages of the parts in the output."""


@contextmanager
def page_table(path: Path, pages: Iterable[tuple[int, PageFacts]]) -> Iterator[Table]:
    """The table of these pages, in a file."""
    with closing(sqlite3.connect(path)) as db:
        columns = ", ".join(PageFacts._fields)
        db.executescript(f"PRAGMA synchronous=OFF; CREATE TABLE page(n INTEGER PRIMARY KEY, {columns})")
        db.executemany("INSERT INTO page VALUES (?,?,?,?,?,?,?,?)", ((n, *facts) for n, facts in pages))
        yield lambda query, *values: db.execute(query, values).fetchall()


def write_report(destination: Destination, load: Load) -> str:
    """Write it, over the one before; gives its name. `load` gives the bytes of sources, for pictures.

    Raises BadOption where there is no run, DamagedLedger and OSError.
    """
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"text": _text, "moment": "{:%Y-%m-%d %H:%M:%S} UTC".format, "seconds": seconds_of}
    environment.filters |= {"duration": duration_of, "bytes": bytes_of, "rate": rate_of}
    environment.globals |= {"count_of": count_of, "share_of": share_of, "version": __version__}
    template = environment.from_string(files("ocrsvc.batch").joinpath("report.html").read_text("utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        described, plan = open_known_run(destination, Path(folder))
        with closing(plan):
            manifests = read_manifests(destination, (part for part in finished_parts(destination) if part < plan.parts))
            pages = (page for each in manifests for page in zip(plan.pages_of(each.part), each.pages, strict=False))
            with page_table(Path(folder) / "pages", pages) as table:
                facts = _facts(destination, plan, table, load)
            facts |= {"plan": plan, "run": described, "address": destination.address, "now": datetime.now(UTC)}
            with destination.writing(REPORT) as output:
                for piece in template.generate(facts):
                    output.write(piece.encode("utf-8", "replace"))
    return REPORT


def _facts(destination: Destination, plan: Plan, table: Table, load: Load) -> dict[str, Any]:
    failures = table("SELECT error, count(*) FROM page WHERE error != '' GROUP BY 1 ORDER BY 2 DESC, 1")
    [(known, tries, lines, began)] = table(
        "SELECT count(*), total(attempts > 1), total(lines), min(at - seconds) FROM page"
    )
    worst = "SELECT * FROM page WHERE error = ''"
    chosen = {
        "Least confident pages": table(f"{worst} AND lines > 0 ORDER BY confidence, n LIMIT ?", MOST_PAGES),
        "Slowest pages": table(f"{worst} ORDER BY seconds DESC, n LIMIT ?", MOST_PAGES),
    }
    pictures = iter(make_pictures([plan.page(n) for rows in chosen.values() for n, *_ in rows], load))
    workers = "SELECT worker, count(*), total(error != ''), total(lines), total(seconds) FROM page GROUP BY 1"
    return {
        "known": known,
        "failed": sum(count for _, count in failures),
        "tries": tries,
        "lines": lines,
        "began": began and datetime.fromtimestamp(began, UTC),
        "worked_s": worked_seconds(table),
        "plots": list(plots_of(table)),
        "reasons": [(*reason, _first_pages(destination, plan, table, reason[0])) for reason in failures[:MOST_REASONS]],
        "shown": {
            title: [_shown(destination, plan, next(pictures), *row) for row in rows] for title, rows in chosen.items()
        },
        "workers": table(f"{workers} ORDER BY 2 DESC, 1 LIMIT ?", MOST_WORKERS),
    }


def worked_seconds(table: Table) -> float:
    """Seconds in which pages came, pauses between commands left out."""
    moments = "SELECT at AS moment FROM page UNION ALL SELECT at - seconds FROM page"
    gaps = f"SELECT moment - lag(moment) OVER (ORDER BY moment) AS gap FROM ({moments})"  # noqa: S608  constants
    [(worked_s,)] = table(f"SELECT total(gap) FROM ({gaps}) WHERE gap < ?", _PAUSE_S)  # noqa: S608  constants
    return max(float(worked_s), 1e-3)


def plots_of(table: Table) -> Iterator[Plot]:
    """Those for which there is something to show."""
    [(known, began, ended)] = table("SELECT count(*), min(at - seconds), max(at) FROM page")
    if known:
        width_s = max((ended - began) / MOST_BINS, 1.0)
        edges = [width_s * at for at in range(int((ended - began) / width_s) + 2)]
        text = f"Each column is {duration_of(width_s)}; what failed stands on what was read."
        yield Plot("Pages over time", text, _columns(table, f"at - {began!r}", "1", edges, duration_of))
    seconds = [row[0] for row in table("SELECT seconds FROM page WHERE error = '' ORDER BY 1")]
    if seconds:
        half, most, slowest = (seconds_of(seconds[int(part * (len(seconds) - 1))]) for part in (0.5, 0.9, 1.0))
        text = f"Half of the pages took up to {half}, nine of ten up to {most}, the slowest {slowest}, waits included."
        first, last = (max(1, bisect_right(_SECONDS[:-1], seconds[at])) for at in (0, -1))
        columns = _columns(table, "seconds", "error = ''", _SECONDS[first - 1 : last + 1], seconds_of)
        yield Plot("Seconds of a page", text, columns)
    columns = _columns(table, "confidence", "error = '' AND lines > 0", _CONFIDENCES, "{:.2f}".format)
    if total := sum(read for _, read, _ in columns):
        good = sum(read for _, read, _ in columns[16:])
        text = f"The mean of its lines. {good:,} of {total:,} pages ({share_of(good, total)}) have 0.8 or more."
        yield Plot("Confidence of a page", text, columns)


def _columns(
    table: Table, value: str, which: str, edges: Sequence[float], label: Callable[[float], str]
) -> list[tuple[str, int, int]]:
    """How many pages have a value between two edges; the first and the last column have also what is beyond."""
    columns = [[0, 0] for _ in edges[1:]]
    for number, is_failed in table(f"SELECT {value}, error != '' FROM page WHERE {which}"):  # noqa: S608  constants
        columns[min(max(bisect_right(edges, number), 1), len(columns)) - 1][is_failed] += 1
    ends = zip(edges, edges[1:], columns, strict=False)
    return [(f"{label(begin)} to {label(end)}", read, failed) for begin, end, (read, failed) in ends]


def _first_pages(destination: Destination, plan: Plan, table: Table, error: str) -> list[tuple[str, str]]:
    """Names of the first pages with an error, and what was wrong."""
    pages = [n for (n,) in table("SELECT n FROM page WHERE error = ? ORDER BY n LIMIT ?", error, MOST_FILES)]
    parts = dict.fromkeys(map(plan.part_of, pages))
    kept = {n: record for part in parts for n, record, _ in read_kept(destination, part) if n in pages}
    return [(_name_of(plan, n), orjson.loads(kept[n])["error"]["detail"] if n in kept else "") for n in pages]


def _shown(destination: Destination, plan: Plan, picture: Picture, n: int, *facts: Any) -> dict[str, Any]:
    """A page with its picture, and with its text if the output has JSON Lines."""
    own = {"name": _name_of(plan, n), "picture": picture, "text": ""}
    part = plan.part_of(n)
    for folder in ("", "jsonl/"):
        with (
            suppress(FileNotFoundError, StopIteration, ValueError, KeyError),
            closing(destination.open(f"{folder}pages-{part:05d}.jsonl")) as lines,
        ):
            line = next(islice(lines, n - plan.pages_of(part).start, None))
            own["text"] = " ".join(orjson.loads(line)["text"].split())
    return PageFacts(*facts)._asdict() | own


def _name_of(plan: Plan, n: int) -> str:
    file, number = plan.page(n)
    return file.name if file.total == 1 else f"{file.name}, page {number}"


def _text(value: object) -> str:
    """A value for people, without passwords of addresses."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    shown = visible(without_secrets(value if isinstance(value, str) else orjson.dumps(value).decode()))
    return shown if len(shown) <= _MOST_VALUE else f"{shown[:_MOST_VALUE]}…"


SIDE_PX: Final = 360
MOST_BYTES: Final = 40_000
"""Of one picture."""
TIME_S: Final = 10.0
"""For all of them."""
_MOST_FILE_BYTES: Final = 32_000_000
_MOST_PIXELS: Final = 40_000_000
_MOST_COLOUR_PIXELS: Final = 8_000_000
_DPI: Final = 72
"""The least at which pages of a PDF are drawn."""
_QUALITIES: Final = (75, 45)


class Picture(NamedTuple):
    """A page as a JPEG for people, with its size; `missing` says why there is none."""

    data: str = ""
    width: int = 0
    height: int = 0
    missing: str = ""


def make_pictures(pages: Sequence[tuple[SourceFile, int]], load: Load) -> list[Picture]:
    """The picture of each page, from 1, or why there is none; returns when the time is over, even if a source hangs."""
    made = [Picture(missing="there was no time for it")] * len(pages)
    end_s = time.monotonic() + TIME_S

    def check() -> None:
        if time.monotonic() >= end_s:
            raise DeadlineExceeded("The time for pictures is over.")

    def make() -> None:
        for at, (file, number) in enumerate(pages):
            made[at] = _make(load, file, number, check)

    # An archive may be searched for long, and a file system of another machine may not answer at all.
    thread = threading.Thread(target=make, name="pictures", daemon=True)
    thread.start()
    thread.join(TIME_S)
    return made.copy()


def _make(load: Load, file: SourceFile, number: int, check: Callable[[], None]) -> Picture:
    if file.size > _MOST_FILE_BYTES:
        return Picture(missing="the file is too large")
    try:
        with closing(open_document(load(file), PixelLimits(_MOST_PIXELS), _DPI, check, _take)) as document:
            page = document.open(number, gray=False, check=check, take=_take)
            if isinstance(page, EncodedImage):
                page = decode_pixels(page, gray=page.width * page.height > _MOST_COLOUR_PIXELS)
            return _encode(page)
    except (OcrsvcError, OSError, MemoryError, ValueError) as error:
        return Picture(missing=getattr(error, "code", "") or type(error).__name__)


def _take(size_bytes: int) -> None:
    if size_bytes > 4 * _MOST_PIXELS:
        raise BodyTooLarge("This page is too large for a picture.")


def _encode(image: Image) -> Picture:
    pixels, _ = shrink(image.pixels, SIDE_PX)
    for quality in _QUALITIES:
        data = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()
        if len(data) <= MOST_BYTES:
            return Picture(base64.b64encode(data).decode("ascii"), pixels.shape[1], pixels.shape[0])
    return Picture(missing="it would be too large")
