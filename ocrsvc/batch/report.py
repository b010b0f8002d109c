"""The report of a run: one HTML file without scripts, made of the plan, the manifests and the output."""

from __future__ import annotations

import gzip
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import orjson
from jinja2 import Environment

from ocrsvc import __version__
from ocrsvc.batch.destination import Destination
from ocrsvc.batch.objects import without_secrets
from ocrsvc.batch.pages import record_head
from ocrsvc.batch.parts import Load, Manifest, finished_parts, read_kept, read_manifests
from ocrsvc.batch.pictures import PictureMaker
from ocrsvc.batch.plan import Plan
from ocrsvc.batch.progress import bytes_of, count_of, duration_of, rate_of, seconds_of, share_of
from ocrsvc.batch.verify import open_finished_plan
from ocrsvc.batch.visible_text import visible

REPORT: Final = "report.html"
MOST_BINS: Final = 80
MOST_REASONS: Final = 30
MOST_FILES: Final = 20
"""Of one reason."""
MOST_WORKERS: Final = 40
MOST_PAGES: Final = 12
"""Slowest, and least confident."""
_MOST_SOURCES: Final = 20
_MOST_VALUE: Final = 300
_MOST_OPEN: Final = 12
"""Files of failures that are shown without being asked for."""
_MOST_TEXT: Final = 200
_MOST_LINE_BYTES: Final = 16_000_000
_PAUSE_S: Final = 60.0
"""Without a page for so long, the run is taken to have stood still."""
_COLUMNS: Final = np.dtype(
    {
        "names": ["page", "attempts", "at", "seconds", "confidence", "lines", "error", "worker"],
        "formats": ["u4", "u2", "f8", "f4", "f4", "u4", "u2", "u2"],
    }
)


@dataclass(slots=True)
class PageTable:
    """The pages of the parts that are in the output; `names` are workers and errors by number, "" the first."""

    rows: np.ndarray
    names: list[str] = field(default_factory=lambda: [""])


class Plot(NamedTuple):
    """Columns with one more edge than counts; `failed` stand on the others. `most` is the height."""

    title: str
    text: str
    labels: Sequence[str]
    counts: Sequence[int]
    failed: Sequence[int]
    ticks: Sequence[str]
    most: str

    @property
    def bars(self) -> Iterator[tuple[int, str, float, float]]:
        """Each column's number, kind, and top and height of 100."""
        highest = max((a + b for a, b in zip(self.counts, self.failed, strict=True)), default=0) or 1
        for at, (count, failed) in enumerate(zip(self.counts, self.failed, strict=True)):
            low, high = 100 * count / highest, 100 * failed / highest
            # What is there is seen, however little.
            if count:
                yield at, "bar", 100 - max(low, 0.7), max(low, 0.7)
            if failed:
                yield at, "more", max(0.0, 100 - low - max(high, 0.7)), max(high, 0.7)

    @property
    def rows(self) -> list[tuple[str, int, int]]:
        """The columns that are not empty, as a table."""
        ends = zip(self.labels, self.labels[1:], self.counts, self.failed, strict=False)
        return [(f"{begin} to {end}", count, failed) for begin, end, count, failed in ends if count or failed]


def write_report(destination: Destination, load: Load) -> str:
    """Write it, over the one before; gives its name. `load` gives the bytes of sources, for pictures.

    Raises BadOption where there is no run, DamagedLedger and OSError.
    """
    with tempfile.TemporaryDirectory() as folder:
        described, plan = open_finished_plan(destination, Path(folder))
        with closing(plan):
            parts = [part for part in finished_parts(destination) if part < plan.parts]
            table = read_page_table(plan, read_manifests(destination, parts))
            shown = _Shown(destination, plan, table, load)
            facts = _facts(plan, table, shown)
    planned = {name.replace("_", " "): value for name, value in described.planning.items()}
    options = {name: value for name, value in described.options.items() if value is not None}
    settings = {
        "sources": ", ".join(described.sources[:_MOST_SOURCES])
        + (f" and {len(described.sources) - _MOST_SOURCES:,} more" if len(described.sources) > _MOST_SOURCES else ""),
        "destination": destination.address,
        "output": ", ".join(described.outputs),
        **dict(sorted((options | planned).items())),
        "ocrsvc": f"{described.ocrsvc} began it, {__version__} wrote this report",
        **{f"reader's {name}": value for name, value in described.reader.items()},
    }
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"text": _text, "seconds": seconds_of, "duration": duration_of}
    template = environment.from_string(files("ocrsvc.batch").joinpath(REPORT).read_text("utf-8"))
    with destination.writing(REPORT) as output:
        for piece in template.generate(
            address=destination.address, settings=settings, now=_moment(time.time()), **facts
        ):
            output.write(piece.encode("utf-8", "replace"))
    return REPORT


def read_page_table(plan: Plan, manifests: Iterable[Manifest]) -> PageTable:
    """The table of these parts' pages."""
    number_of = {"": 0}
    pieces = [np.zeros(0, _COLUMNS)]
    for manifest in manifests:
        first = plan.pages_of(manifest.part).start
        rows = np.zeros(len(manifest.pages), _COLUMNS)
        for at, page in enumerate(manifest.pages):
            # A name too many counts as none.
            names = [number_of.setdefault(name, min(len(number_of), 0xFFFF)) for name in (page.error, page.worker)]
            rows[at] = (first + at, page.attempts, page.at, page.seconds, page.confidence, page.lines, *names)
        pieces.append(rows)
    return PageTable(np.concatenate(pieces), list(number_of))


class _Shown:
    """Finds what is shown of single pages; holds the files and records of one part."""

    def __init__(self, destination: Destination, plan: Plan, table: PageTable, load: Load) -> None:
        self._destination, self._plan, self._table = destination, plan, table
        self._pictures = PictureMaker(load)

    def pages(self, rows: Iterable[int], *, with_pictures: bool = False) -> dict[int, dict[str, Any]]:
        """Name, facts, text and perhaps a picture of the pages in these rows of the table."""
        found: dict[int, dict[str, Any]] = {}
        by_part: dict[int, list[int]] = {}
        for row in rows:
            by_part.setdefault(self._plan.part_of(int(self._table.rows[row]["page"])), []).append(row)
        for part, some in by_part.items():
            planned = self._plan.files_of(part)
            files_of = {}
            for row in some:
                page = int(self._table.rows[row]["page"])
                first, file = next(entry for entry in reversed(planned) if entry[0] <= page)
                files_of[row] = page, file, file.pages[page - first]
            heads = {record_head(file.name, number): page for page, file, number in files_of.values()}
            records = self._records(part, heads)
            for row, (page, file, number) in files_of.items():
                facts = {name: self._table.rows[row][name].item() for name in ("attempts", "seconds", "lines")}
                found[row] = facts | {
                    "name": file.name if file.total == 1 else f"{file.name}, page {number}",
                    "confidence": float(self._table.rows[row]["confidence"]),
                    "text": _text_of(records.get(page, {})),
                    "picture": self._pictures.make(file, number) if with_pictures else None,
                }
        return found

    def _records(self, part: int, heads: Mapping[bytes, int]) -> dict[int, dict[str, Any]]:
        """The records that begin so, of JSON Lines or of what is kept; the files may be another's by now."""
        found: dict[int, dict[str, Any]] = {}
        try:
            for _, record, _ in read_kept(self._destination, part):
                page = next((page for head, page in heads.items() if record.startswith(head)), None)
                if page is not None:
                    found[page] = orjson.loads(record)
            for name in (f"{folder}pages-{part:05d}.jsonl" for folder in ("", "jsonl/")):
                found |= self._lines(name, heads) or self._lines(f"{name}.gz", heads)
        except (gzip.BadGzipFile, EOFError, zlib.error, orjson.JSONDecodeError):
            pass
        return found

    def _lines(self, name: str, heads: Mapping[bytes, int]) -> dict[int, dict[str, Any]]:
        found: dict[int, dict[str, Any]] = {}
        try:
            with closing(self._destination.open(name)) as file:
                lines = gzip.GzipFile(fileobj=file) if name.endswith(".gz") else file
                while len(found) < len(heads) and (line := lines.readline(_MOST_LINE_BYTES)):
                    # Looked for by its first bytes: what is not wanted is not parsed.
                    page = next((page for head, page in heads.items() if line.startswith(head)), None)
                    if page is not None:
                        found[page] = orjson.loads(line)
        except FileNotFoundError:
            pass
        return found


def _facts(plan: Plan, table: PageTable, shown: _Shown) -> dict[str, Any]:
    """What the template shows of the pages."""
    rows = table.rows
    done, failed = rows["error"] == 0, rows["error"] != 0
    with_lines = done & (rows["lines"] > 0)
    worked_s, began = _worked_s(rows), float((rows["at"] - rows["seconds"]).min(initial=np.inf))
    lines = int(rows["lines"][done].sum())
    left = plan.pages - len(rows)
    state = f"Finished; {count_of(int(failed.sum()), 'page')} could not be read."
    if left:
        state = f"Not finished: {count_of(left, 'page')} of {plan.pages:,} are not in the output yet."
    elif not failed.any():
        state = "Finished; every page was read."
    tries = int((rows["attempts"] > 1).sum())
    pace = (rate_of(len(rows) / worked_s), f"{rate_of(lines / worked_s)} a second") if worked_s else ("–", "– a second")
    totals = [
        ("Pages read", f"{int(done.sum()):,}", f"of {plan.pages:,} in {count_of(plan.files, 'file')}"),
        ("Failed", f"{int(failed.sum()):,}", f"{tries:,} tried again"),
        ("Lines", f"{lines:,}", pace[1]),
        ("Pages a second", pace[0], f"in {duration_of(worked_s)} of work"),
        (
            "Seconds of a page",
            seconds_of(float(np.median(rows["seconds"][done]))) if done.any() else "–",
            "at the median",
        ),
        ("Files", bytes_of(plan.bytes), "in the sources"),
    ]
    worst = (_first(rows["confidence"], with_lines), _first(-rows["seconds"], done))
    pictured = shown.pages([*worst[0], *worst[1]], with_pictures=True)
    titles = ("Least confident pages", "Slowest pages")
    return {
        "state": state,
        "began": _moment(began) if len(rows) else "",
        "totals": totals,
        "plots": _plots(rows, done, with_lines, began, worked_s),
        "reasons": _reasons(table, shown),
        "shown": [(title, [pictured[row] for row in some]) for title, some in zip(titles, worst, strict=True) if some],
        "workers": _workers(table),
    }


def _worked_s(rows: np.ndarray) -> float:
    """Seconds in which pages came, pauses between commands left out."""
    if not len(rows):
        return 0.0
    moments = np.sort(np.concatenate([rows["at"], rows["at"] - rows["seconds"]]))
    gaps = np.diff(moments)
    return max(float(gaps[gaps < _PAUSE_S].sum()), 1e-3)


def _plots(rows: np.ndarray, done: np.ndarray, with_lines: np.ndarray, began: float, worked_s: float) -> list[Plot]:
    """Those for which there is something to show."""
    plots = []
    if len(rows):
        elapsed_s = max(float(rows["at"].max() - began), 1e-3)
        edges = np.linspace(0.0, elapsed_s, max(1, min(MOST_BINS, int(elapsed_s))) + 1)
        counts, failed = (np.histogram(rows["at"][which] - began, edges)[0].tolist() for which in (done, ~done))
        width_s, fullest = edges[1], max(map(sum, zip(counts, failed, strict=True)))
        text = (
            f"{rate_of(len(rows) / worked_s)} pages/s in the mean of the time in which pages were read; each column is "
            f"{duration_of(width_s)}."
        )
        ticks = ["0 s", duration_of(elapsed_s / 2), duration_of(elapsed_s)]
        labels = [duration_of(edge) for edge in edges]
        plots.append(
            Plot("Pages over time", text, labels, counts, failed, ticks, f"{rate_of(fullest / width_s)} pages/s")
        )
    if done.any():
        plots.append(_latency(np.maximum(rows["seconds"][done], 1e-3)))
    if with_lines.any():
        edges = np.linspace(0.0, 1.0, 21)
        counts = np.histogram(np.clip(rows["confidence"][with_lines], 0, 1), edges)[0].tolist()
        total, low, without = sum(counts), sum(counts[:16]), int(done.sum() - with_lines.sum())
        text = (
            f"The mean of its lines. {total - low:,} of {total:,} pages ({share_of(total - low, total)}) have 0.8 or "
        )
        text += f"more. {without:,} more have no lines." if without else "more."
        labels = [f"{edge:.2f}" for edge in edges]
        nothing = [0] * len(counts)
        plots.append(
            Plot("Confidence of a page", text, labels, counts, nothing, ["0", "0.5", "1"], f"{max(counts):,} pages")
        )
    return plots


def _latency(seconds: np.ndarray) -> Plot:
    """Six bins for each factor of ten, an even number of them, so that one edge is in the middle."""
    low = np.floor(6 * np.log10(float(seconds.min())))
    high = max(low + 1, np.ceil(6 * np.log10(float(seconds.max())) + 1e-6))
    edges = 10 ** (np.arange(low, high + (high - low) % 2 + 1) / 6)
    counts = np.histogram(np.clip(seconds, edges[0], edges[-1]), edges)[0].tolist()
    median, most, nearly_all, slowest = map(
        seconds_of, [*np.quantile(seconds, (0.5, 0.9, 0.99)).tolist(), seconds.max()]
    )
    text = (
        f"Half of the pages took up to {median}, nine of ten up to {most}, 99 % up to {nearly_all}; the slowest "
        f"{slowest}. Waits for an engine are part of it."
    )
    labels = [seconds_of(edge) for edge in edges]
    ticks = [labels[0], labels[len(labels) // 2], labels[-1]]
    return Plot("Seconds of a page", text, labels, counts, [0] * len(counts), ticks, f"{max(counts):,} pages")


def _reasons(table: PageTable, shown: _Shown) -> list[dict[str, Any]]:
    """The errors, the most frequent first, with the first pages of each."""
    errors = table.rows["error"]
    counted = Counter(errors[errors != 0].tolist()).most_common(MOST_REASONS)
    first = {error: np.flatnonzero(errors == error)[:MOST_FILES].tolist() for error, _ in counted}
    pages = shown.pages(row for rows in first.values() for row in rows)
    failed, is_open = int((errors != 0).sum()), sum(map(len, first.values())) <= _MOST_OPEN
    return [
        {
            "code": table.names[error],
            "is_open": is_open,
            "text": f"{count_of(count, 'page')}, {share_of(count, failed)} of those that failed",
            "pages": [pages[row] for row in first[error]],
            "more": count - len(first[error]),
        }
        for error, count in counted
    ]


def _workers(table: PageTable) -> list[tuple[str, int, int, int, float]]:
    """Those with most pages: name, pages, failures, lines, seconds."""
    rows, most = table.rows, len(table.names)
    pages = np.bincount(rows["worker"], minlength=most)
    failed = np.bincount(rows["worker"], rows["error"] != 0, most)
    lines, seconds = (np.bincount(rows["worker"], rows[name], most) for name in ("lines", "seconds"))
    found = [
        (table.names[at] or "not read by any", int(pages[at]), int(failed[at]), int(lines[at]), float(seconds[at]))
        for at in np.flatnonzero(pages)
    ]
    return sorted(found, key=lambda row: (-row[1], row[0]))[:MOST_WORKERS]


def _first(keys: np.ndarray, which: np.ndarray) -> list[int]:
    """The rows with the smallest keys, among these; equal ones in the order of the plan."""
    rows = np.flatnonzero(which)
    return [int(row) for row in rows[np.argsort(keys[rows], kind="stable")][:MOST_PAGES]]


def _text(value: object) -> str:
    """A value for people, without passwords of addresses."""
    shown = {True: "yes", False: "no"}.get(value) if isinstance(value, bool) else None
    if shown is None:
        shown = value if isinstance(value, str) else orjson.dumps(value).decode()
    shown = visible(without_secrets(shown))
    return shown if len(shown) <= _MOST_VALUE else f"{shown[:_MOST_VALUE]}…"


def _text_of(record: Mapping[str, Any]) -> str:
    """The beginning of what was read, or what was wrong; "" where the record is not there."""
    error = record.get("error")
    text = " ".join(str(error["detail"] if error else record.get("text", "")).split())
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT].rstrip()}…"


def _moment(unix: float) -> str:
    return f"{datetime.fromtimestamp(unix, UTC):%Y-%m-%d %H:%M:%S} UTC"
