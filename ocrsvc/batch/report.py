"""The report of a run: one HTML file without scripts, made from the plan and the manifests."""

import re
import sqlite3
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
from jinja2 import Environment

from ocrsvc import __version__
from ocrsvc.batch.destination import Destination
from ocrsvc.batch.human_readable import bytes_of, count_of, duration_of, rate_of, seconds_of, share_of, visible
from ocrsvc.batch.objects import without_secrets
from ocrsvc.batch.part_manifests import finished_parts, read_kept, read_manifests
from ocrsvc.batch.plan import Plan
from ocrsvc.batch.run_file import RunDescription, open_known_run
from ocrsvc.batch.work_file import PageFacts

REPORT: Final = "report.html"
_MAX_BINS: Final = 80
_MAX_REASONS: Final = 30
_MAX_FILES_OF_REASON: Final = 20
_MAX_WORKERS: Final = 40
_MAX_WORST_PAGES: Final = 12
_USUAL: Final = {"rotate": "auto", "detect": True, "unwarp": True, "spaces": "auto", "text_layer": "ignore"}
_OF_OUTPUT: Final = ("sources", "format", "part_pages", "shards")
_WORDS: Final = {"pdf_dpi": "PDFs at {1} dpi", "imaging": "images decoded by {1}"}
_PAUSE_S: Final = 60.0
"""Longer gaps between pages count as pauses, not as working time."""
_SECONDS: Final = [step * 10.0**power for power in range(-3, 4) for step in (1, 2, 5)]
_CONFIDENCES: Final = [step / 20 for step in range(21)]


class Plot(NamedTuple):
    """A bar chart; each column has a label, the number of pages read, and the number of pages failed."""

    title: str
    text: str
    columns: Sequence[tuple[str, int, int]]


Table = Callable[..., list[Any]]
"""Runs an SQL query with values, and returns its rows; the table `page` has the pages of all finished parts."""


def fill_table(db: sqlite3.Connection, pages: Iterable[tuple[int, PageFacts]]) -> Table:
    """Fill the new table `page` with these pages; returns a function that runs SQL queries on it."""
    columns = ", ".join(PageFacts._fields)
    db.executescript(f"PRAGMA synchronous=OFF; CREATE TABLE page(n INTEGER PRIMARY KEY, {columns})")
    db.executemany("INSERT INTO page VALUES (?,?,?,?,?,?,?,?)", ((n, *facts) for n, facts in pages))
    return lambda query, *values: db.execute(query, values).fetchall()


def write_report(destination: Destination) -> str:
    """Write or replace the report; returns its name. Raises BadOption if there is no run, DamagedRun, OSError."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"text": _text, "moment": "{:%Y-%m-%d %H:%M:%S} UTC".format, "seconds": seconds_of}
    environment.filters |= {"duration": duration_of, "bytes": bytes_of, "rate": rate_of}
    environment.globals |= {"count_of": count_of, "share_of": share_of}
    template = environment.from_string(files("ocrsvc.batch").joinpath("report.html").read_text("utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        described, plan = open_known_run(destination, Path(folder))
        with closing(plan), closing(sqlite3.connect(Path(folder) / "pages")) as db:
            manifests = read_manifests(destination, (part for part in finished_parts(destination) if part < plan.parts))
            pages = (page for each in manifests for page in zip(plan.pages_of(each.part), each.pages, strict=False))
            facts = _facts(destination, plan, fill_table(db, pages))
            facts |= {"plan": plan, "run": in_words(described, destination.address), "now": datetime.now(UTC)}
            facts |= {"address": destination.address, "sources": described.asked["sources"]}
            with destination.writing(REPORT) as output:
                for piece in template.generate(facts):
                    output.write(piece.encode("utf-8", "replace"))
    return REPORT


def _facts(destination: Destination, plan: Plan, table: Table) -> dict[str, Any]:
    failures = table("SELECT error, count(*) FROM page WHERE error != '' GROUP BY 1 ORDER BY 2 DESC, 1")
    [(known, tries, lines, began)] = table(
        "SELECT count(*), total(attempts > 1), total(lines), min(at - seconds) FROM page"
    )
    worst = "SELECT * FROM page WHERE error = ''"
    chosen = {
        "Least confident pages": table(f"{worst} AND lines > 0 ORDER BY confidence, n LIMIT ?", _MAX_WORST_PAGES),
        "Slowest pages": table(f"{worst} ORDER BY seconds DESC, n LIMIT ?", _MAX_WORST_PAGES),
    }
    workers = "SELECT worker, count(*), total(error != ''), total(lines), total(seconds) FROM page GROUP BY 1"
    return {
        "known": known,
        "failed": sum(count for _, count in failures),
        "tries": tries,
        "lines": lines,
        "began": began and datetime.fromtimestamp(began, UTC),
        "worked_s": worked_seconds(table),
        "plots": list(plots_of(table)),
        "reasons": [(*reason, _first_pages(destination, plan, table, reason[0])) for reason in failures[:_MAX_REASONS]],
        "shown": {title: [_shown(destination, plan, *row) for row in rows] for title, rows in chosen.items()},
        "workers": table(f"{workers} ORDER BY 2 DESC, 1 LIMIT ?", _MAX_WORKERS),
    }


def in_words(run: RunDescription, address: str) -> dict[str, str]:
    """Describe the run for people, by subject: destination, engine, model, and options that are not defaults."""
    asked, reader = run.asked, run.reader
    others = {name: value for name, value in asked.items() if value != _USUAL.get(name) and (value or name in _USUAL)}
    options = (name if value is True else f"{name} {value or 'off'}" for name, value in others.items())
    settings = re.findall(r"(?<!\S)(?!fake_)(\w+)=(?!auto\b)(\S+)", reader.get("settings", ""))
    return {
        "destination": f"{address}, as {', '.join(asked['format'])}",
        "engine": f"{reader['engine']}, version {reader['version']}",
        "model": reader["model"],
        "options": ", ".join(option.replace("_", " ") for option in options if not option.startswith(_OF_OUTPUT)),
        "settings": ", ".join(_WORDS.get(name, "{} {}").format(name, value) for name, value in settings),
        "ocrsvc": f"{run.ocrsvc} began it, {__version__} wrote this report",
    }


def worked_seconds(table: Table) -> float:
    """Seconds during which pages were read; pauses between commands are not counted."""
    moments = "SELECT at AS moment FROM page UNION ALL SELECT at - seconds FROM page"
    gaps = f"SELECT moment - lag(moment) OVER (ORDER BY moment) AS gap FROM ({moments})"  # noqa: S608  constants
    [(worked_s,)] = table(f"SELECT total(gap) FROM ({gaps}) WHERE gap < ?", _PAUSE_S)  # noqa: S608  constants
    return max(float(worked_s), 1e-3)


def plots_of(table: Table) -> Iterator[Plot]:
    """Make the bar charts for which there are data."""
    [(known, began, ended)] = table("SELECT count(*), min(at - seconds), max(at) FROM page")
    if known:
        width_s = max((ended - began) / _MAX_BINS, 1.0)
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
    """Make a histogram of `value` (SQL) over pages; values outside `edges` count in the first or last column."""
    columns = [[0, 0] for _ in edges[1:]]
    for number, is_failed in table(f"SELECT {value}, error != '' FROM page WHERE {which}"):  # noqa: S608  constants
        columns[min(max(bisect_right(edges, number), 1), len(columns)) - 1][is_failed] += 1
    ends = zip(edges, edges[1:], columns, strict=False)
    return [(f"{label(begin)} to {label(end)}", read, failed) for begin, end, (read, failed) in ends]


def _first_pages(destination: Destination, plan: Plan, table: Table, error: str) -> list[tuple[str, str]]:
    """Names and error details of the first pages with this error code."""
    pages = [n for (n,) in table("SELECT n FROM page WHERE error = ? ORDER BY n LIMIT ?", error, _MAX_FILES_OF_REASON)]
    parts = dict.fromkeys(map(plan.part_of, pages))
    kept = {n: record for part in parts for n, record, _ in read_kept(destination, part) if n in pages}
    return [(_name_of(plan, n), orjson.loads(kept[n])["error"]["detail"] if n in kept else "") for n in pages]


def _shown(destination: Destination, plan: Plan, n: int, *facts: Any) -> dict[str, Any]:
    """The facts of a page, with its text if the output has JSON Lines."""
    own, part = {"name": _name_of(plan, n), "text": ""}, plan.part_of(n)
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
    """Format a value for people, with passwords in URLs masked."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    shown = visible(without_secrets(value if isinstance(value, str) else orjson.dumps(value).decode()))
    return shown if len(shown) <= 300 else f"{shown[:300]}…"
