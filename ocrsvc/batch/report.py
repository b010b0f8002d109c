"""The report of a run: one HTML file without scripts, made of the plan and the manifests."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
from jinja2 import Environment

from ocrsvc import __version__
from ocrsvc.batch.destination import Destination
from ocrsvc.batch.objects import without_secrets
from ocrsvc.batch.parts import Load, finished_parts, read_kept, read_manifests
from ocrsvc.batch.pictures import PictureMaker
from ocrsvc.batch.plan import Plan
from ocrsvc.batch.progress import bytes_of, count_of, duration_of, rate_of, seconds_of, share_of
from ocrsvc.batch.run_file import RunDescription, open_known_run
from ocrsvc.batch.visible_text import visible
from ocrsvc.batch.work_file import PageFacts

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
_PAUSE_S: Final = 60.0
"""Without a page for so long, the run is taken to have stood still."""
_SECONDS: Final = [step * 10.0**power for power in range(-3, 4) for step in (1, 2, 5)]
_CONFIDENCES: Final = [step / 20 for step in range(21)]


class Plot(NamedTuple):
    """Columns, each with a label, pages that were read, and pages that failed, which stand on them."""

    title: str
    text: str
    columns: Sequence[tuple[str, int, int]]
    ticks: Sequence[str]

    @property
    def bars(self) -> Iterator[tuple[int, str, float, float]]:
        """Each column's number, kind, and top and height of 100; what is there is seen, however little."""
        highest = max(read + failed for _, read, failed in self.columns)
        for at, (_, read, failed) in enumerate(self.columns):
            low = max(100 * read / highest, 0.7 * bool(read))
            high = max(100 * failed / highest, 0.7 * bool(failed))
            yield at, "bar", 100 - low, low
            yield at, "more", max(0.0, 100 - low - high), high


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
    environment.filters |= {"text": _text, "seconds": seconds_of, "duration": duration_of, "moment": _moment}
    template = environment.from_string(files("ocrsvc.batch").joinpath(REPORT).read_text("utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        described, plan = open_known_run(destination, Path(folder))
        with closing(plan), page_table(Path(folder) / "pages", _known_pages(destination, plan)) as table:
            facts = _facts(destination, plan, table, load)
    with destination.writing(REPORT) as output:
        for piece in template.generate(
            address=destination.address, settings=_settings(destination, described), now=time.time(), **facts
        ):
            output.write(piece.encode("utf-8", "replace"))
    return REPORT


def _known_pages(destination: Destination, plan: Plan) -> Iterator[tuple[int, PageFacts]]:
    parts = [part for part in finished_parts(destination) if part < plan.parts]
    for manifest in read_manifests(destination, parts):
        yield from zip(plan.pages_of(manifest.part), manifest.pages, strict=False)


def _settings(destination: Destination, described: RunDescription) -> dict[str, Any]:
    asked = {name.replace("_", " "): value for name, value in described.asked.items() if value is not None}
    more = len(asked["sources"]) - _MOST_SOURCES
    sources = ", ".join(asked.pop("sources")[:_MOST_SOURCES]) + (f" and {more:,} more" if more > 0 else "")
    return {
        "sources": sources,
        "destination": destination.address,
        "format": ", ".join(asked.pop("format")),
        **dict(sorted(asked.items())),
        "ocrsvc": f"{described.ocrsvc} began it, {__version__} wrote this report",
        **{f"reader's {name}": value for name, value in described.reader.items()},
    }


def _facts(destination: Destination, plan: Plan, table: Table, load: Load) -> dict[str, Any]:
    """What the template shows of the pages."""
    failures = table("SELECT error, count(*) FROM page WHERE error != '' GROUP BY 1 ORDER BY 2 DESC, 1")
    [(known, tries, lines, began)] = table(
        "SELECT count(*), total(attempts > 1), total(lines), min(at - seconds) FROM page"
    )
    failed, worked_s = sum(count for _, count in failures), worked_seconds(table)
    of_all = f"of {plan.pages:,} in {count_of(plan.files, 'file')}, {bytes_of(plan.bytes)}"
    make, worst = PictureMaker(load).make, "SELECT * FROM page WHERE error = ''"
    chosen = {
        "Least confident pages": table(f"{worst} AND lines > 0 ORDER BY confidence, n LIMIT ?", MOST_PAGES),
        "Slowest pages": table(f"{worst} ORDER BY seconds DESC, n LIMIT ?", MOST_PAGES),
    }
    return {
        "state": _state(plan.pages, plan.pages - known, failed),
        "began": began,
        "totals": [
            ("Pages read", f"{known - failed:,}", of_all),
            ("Failed", f"{failed:,}", f"{tries:,.0f} tried again"),
            ("Lines", f"{lines:,.0f}", f"{rate_of(lines / worked_s)} a second"),
            ("Pages a second", rate_of(known / worked_s), f"in {duration_of(worked_s)} of work"),
        ],
        "plots": list(plots_of(table)),
        "reasons": [_reason(destination, plan, table, *counted, failed) for counted in failures[:MOST_REASONS]],
        "shown": {
            title: [
                PageFacts(*facts)._asdict() | {"name": _name_of(plan, n), "picture": make(*plan.page(n))}
                for n, *facts in rows
            ]
            for title, rows in chosen.items()
        },
        "workers": table(
            "SELECT worker, count(*), total(error != ''), total(lines), total(seconds) FROM page "
            "GROUP BY worker ORDER BY 2 DESC, 1 LIMIT ?",
            MOST_WORKERS,
        ),
    }


def _state(pages: int, left: int, failed: int) -> str:
    if left:
        return f"Not finished: {count_of(left, 'page')} of {pages:,} are not in the output yet."
    return f"Finished; {count_of(failed, 'page')} could not be read." if failed else "Finished; every page was read."


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
        columns = _columns(table, f"at - {began!r}", "1", edges, duration_of)
        text = f"Each column is {duration_of(width_s)}; what failed stands on what was read."
        yield Plot("Pages over time", text, columns, ["0 s", duration_of(edges[-1] / 2), duration_of(edges[-1])])
    seconds = [row[0] for row in table("SELECT seconds FROM page WHERE error = '' ORDER BY 1")]
    if seconds:
        median, most, slowest = (seconds_of(seconds[int(part * (len(seconds) - 1))]) for part in (0.5, 0.9, 1.0))
        text = (
            f"Half of the pages took up to {median}, nine of ten up to {most}; the slowest {slowest}. Waits included."
        )
        first, last = (max(1, bisect_right(_SECONDS[:-1], seconds[at])) for at in (0, -1))
        edges = _SECONDS[first - 1 : last + 1]
        columns = _columns(table, "seconds", "error = ''", edges, seconds_of)
        yield Plot("Seconds of a page", text, columns, [seconds_of(edges[0]), seconds_of(edges[-1])])
    columns = _columns(table, "confidence", "error = '' AND lines > 0", _CONFIDENCES, "{:.2f}".format)
    if total := sum(read for _, read, _ in columns):
        good = sum(read for _, read, _ in columns[16:])
        text = f"The mean of its lines. {good:,} of {total:,} pages ({share_of(good, total)}) have 0.8 or more."
        yield Plot("Confidence of a page", text, columns, ["0", "0.5", "1"])


def _columns(
    table: Table, value: str, which: str, edges: Sequence[float], label: Callable[[float], str]
) -> list[tuple[str, int, int]]:
    """How many pages have a value between two edges; the first and the last column have also what is beyond."""
    columns = [[0, 0] for _ in edges[1:]]
    for number, is_failed in table(f"SELECT {value}, error != '' FROM page WHERE {which}"):  # noqa: S608  constants
        columns[min(max(bisect_right(edges, number), 1), len(columns)) - 1][is_failed] += 1
    ends = zip(edges, edges[1:], columns, strict=False)
    return [(f"{label(begin)} to {label(end)}", read, failed) for begin, end, (read, failed) in ends]


def _reason(destination: Destination, plan: Plan, table: Table, code: str, count: int, failed: int) -> dict[str, Any]:
    """An error with the first pages that have it."""
    rows = table("SELECT n FROM page WHERE error = ? ORDER BY n LIMIT ?", code, MOST_FILES)
    records = {
        n: orjson.loads(record)
        for part in {plan.part_of(n) for (n,) in rows}
        for n, record, facts in read_kept(destination, part)
        if facts.error
    }
    pages = [(_name_of(plan, n), records[n]["error"]["detail"] if n in records else "") for (n,) in rows]
    text = f"{count_of(count, 'page')}, {share_of(count, failed)} of those that failed"
    return {"code": code, "text": text, "pages": pages, "more": count - len(pages)}


def _name_of(plan: Plan, n: int) -> str:
    file, number = plan.page(n)
    return file.name if file.total == 1 else f"{file.name}, page {number}"


def _text(value: object) -> str:
    """A value for people, without passwords of addresses."""
    shown = {True: "yes", False: "no"}.get(value) if isinstance(value, bool) else None
    if shown is None:
        shown = value if isinstance(value, str) else orjson.dumps(value).decode()
    shown = visible(without_secrets(shown))
    return shown if len(shown) <= _MOST_VALUE else f"{shown[:_MOST_VALUE]}…"


def _moment(unix: float) -> str:
    return f"{datetime.fromtimestamp(unix, UTC):%Y-%m-%d %H:%M:%S} UTC"
