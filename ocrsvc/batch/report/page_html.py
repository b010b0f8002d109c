"""A report as one HTML file that needs nothing else: no script, no request, right on light and dark screens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import Any, Final

import orjson

from ocrsvc.batch.objects.url import without_secrets
from ocrsvc.batch.plan import PlanTotals
from ocrsvc.batch.progress.formatting import bytes_of, count_of, duration_of, rate_of, share_of
from ocrsvc.batch.report.page_table import OwnerFacts
from ocrsvc.batch.report.plots import figure
from ocrsvc.batch.report.run_plots import plots_of, seconds_of
from ocrsvc.batch.report.run_summary import Reason, RunSummary
from ocrsvc.batch.report.shown_pages import ShownPage
from ocrsvc.batch.run_description import RunDescription
from ocrsvc.batch.visible_text import visible

_MOST_OWNERS: Final = 40
_MOST_SOURCES: Final = 20
_MOST_VALUE: Final = 300
_MOST_OPEN: Final = 12
"""Files of failures that are shown without being asked for."""
_NO_REQUESTS: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True, slots=True)
class ReportContent:
    """What a report says.

    Attributes:
        address: Of the destination.
        run: What it began with.
        totals: Of the plan.
        summary: Of its pages.
        owners: Who worked on it.
        shown: The pages that are named or shown, by number.
        version: Of what wrote the report.
        written: When, Unix time.
    """

    address: str
    run: RunDescription
    totals: PlanTotals
    summary: RunSummary
    owners: Sequence[OwnerFacts]
    shown: Mapping[int, ShownPage]
    version: str
    written: float


def to_html(content: ReportContent) -> Iterator[str]:
    """The file, piece by piece."""
    style = files("ocrsvc.batch.report").joinpath("report.css").read_text("utf-8")
    yield (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_NO_REQUESTS}">'
        f"<title>Batch run: {_text(content.address)}</title><style>{style}</style></head><body>"
    )
    yield from (_head(content), _totals(content), "<main>")
    if plots := plots_of(content.summary):
        yield f'<section><h2>How it went</h2><div class="plots">{"".join(map(figure, plots))}</div></section>'
    yield from (
        _failures(content),
        _pages(content),
        _workers(content.summary),
        _settings(content),
        "</main></body></html>",
    )


def _text(value: object) -> str:
    """A value as text of the page, without passwords of addresses."""
    text = visible(without_secrets(str(value)))
    return escape(text if len(text) <= _MOST_VALUE else f"{text[:_MOST_VALUE]}…")


def _moment(unix: float) -> str:
    return f"{datetime.fromtimestamp(unix, UTC):%Y-%m-%d %H:%M:%S} UTC" if unix else "not begun"


def _head(content: ReportContent) -> str:
    summary = content.summary
    if summary.left:
        state = f"Not finished: {count_of(summary.left, 'page')} of {summary.pages:,} are still to be read."
    elif summary.failed:
        state = f"Finished; {count_of(summary.failed, 'page')} could not be read."
    else:
        state = "Finished; every page was read."
    began = f"Begun {_moment(summary.began)}" if summary.began else "Not begun"
    return (
        f"<header><h1>Batch run: {_text(content.address)}</h1><p>{state}</p>"
        f'<p class="soft">{began}; report of {_moment(content.written)}.</p></header>'
    )


def _totals(content: ReportContent) -> str:
    summary = content.summary
    known = summary.done + summary.failed
    pace = rate_of(known / summary.worked_s) if summary.worked_s > 0 else "–"
    per_s = rate_of(summary.lines / summary.worked_s) if summary.worked_s > 0 else "–"
    wrong = ' class="wrong"' if summary.failed else ""
    tiles = (
        ("Pages read", f"{summary.done:,}", f"of {summary.pages:,} in {count_of(content.totals.files, 'file')}"),
        ("Failed", f"<span{wrong}>{summary.failed:,}</span>", f"{summary.tried_again:,} tried again"),
        ("Lines", f"{summary.lines:,}", f"{per_s} a second"),
        ("Pages a second", pace, f"in {duration_of(summary.worked_s)} of work"),
        ("Seconds of a page", seconds_of(summary.latency_s[0]) if summary.done else "–", "at the median"),
        ("Files", bytes_of(content.totals.bytes), "in the sources"),
    )
    items = "".join(f"<div><dt>{name}</dt><dd>{value}<small>{more}</small></dd></div>" for name, value, more in tiles)
    return f'<dl class="totals">{items}</dl>'


def _failures(content: ReportContent) -> str:
    summary = content.summary
    if not summary.reasons:
        return ""
    named = sum(len(reason.first) for reason in summary.reasons)
    boxes = "".join(
        _reason(reason, content.shown, summary.failed, is_open=named <= _MOST_OPEN) for reason in summary.reasons
    )
    more = f'<p class="soft">{count_of(summary.more_reasons, "more reason")}.</p>' if summary.more_reasons else ""
    return f'<section><h2>Failures</h2><div class="box reasons">{boxes}</div>{more}</section>'


def _reason(reason: Reason, shown: Mapping[int, ShownPage], failed: int, *, is_open: bool) -> str:
    items = "".join(
        f'<li>{_text(shown[page].name)}<br><span class="soft">{_text(shown[page].text)}</span></li>'
        for page in reason.first
    )
    rest = reason.pages - len(reason.first)
    more = f'<li class="soft">and {rest:,} more: <code>--retry-failed</code> tries them again</li>' if rest else ""
    return (
        f"<details{' open' if is_open else ''}><summary><b>{_text(reason.code or 'no reason')}</b> "
        f'<span class="soft">{count_of(reason.pages, "page")}, {share_of(reason.pages, failed)} of those that failed'
        f"</span></summary><ul>{items}{more}</ul></details>"
    )


def _pages(content: ReportContent) -> str:
    summary = content.summary
    kinds = (
        ("Least confident pages", summary.least_confident),
        ("Slowest pages", summary.slowest),
    )
    sections = []
    for title, pages in kinds:
        if pages:
            items = "".join(_card(content.shown[page]) for page in pages)
            sections.append(f'<section><h2>{title}</h2><ul class="pages">{items}</ul></section>')
    return "".join(sections)


def _card(page: ShownPage) -> str:
    picture = page.picture
    if picture and picture.data:
        inside = (
            f'<img src="data:image/jpeg;base64,{picture.data}" width="{picture.width}" height="{picture.height}" '
            f'alt="Picture of {_text(page.name)}">'
        )
    else:
        inside = f"No picture: {_text(picture.missing)}" if picture else "No picture"
    confidence = f"confidence {page.confidence:.2f}, " if page.lines else ""
    tries = f", {page.attempts} tries" if page.attempts > 1 else ""
    text = f'<p class="text">{_text(page.text)}</p>' if page.text else ""
    return (
        f'<li><div class="picture">{inside}</div><div class="about"><div>{_text(page.name)}</div>'
        f'<p class="soft">{confidence}{seconds_of(page.seconds)}, {count_of(page.lines, "line")}{tries}</p>{text}'
        "</div></li>"
    )


def _workers(summary: RunSummary) -> str:
    if not summary.workers:
        return ""
    rows = [
        (
            _text(row.name or "not read by any"),
            f"{row.pages:,}",
            f"{row.failed:,}",
            f"{row.lines:,}",
            duration_of(row.seconds),
            seconds_of(row.seconds / row.pages),
        )
        for row in summary.workers
    ]
    heads = ("worker", "pages", "failed", "lines", "all pages took", "a page")
    more = f'<p class="soft">{count_of(summary.more_workers, "more worker")}.</p>' if summary.more_workers else ""
    return f'<section><h2>Workers</h2><div class="box">{_table("Workers", heads, rows)}{more}</div></section>'


def _table(name: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of text and, from the second column on, numbers; cells are HTML."""
    head = "".join(
        f'<th scope="col"{" class=number" if at else ""}>{escape(name)}</th>' for at, name in enumerate(heads)
    )
    body = "".join(
        "<tr>" + "".join(f"<td{' class=number' if at else ''}>{cell}</td>" for at, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" role="region" aria-label="{name}" tabindex="0">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _settings(content: ReportContent) -> str:
    run = content.run
    rest = len(run.sources) - _MOST_SOURCES
    sources = "<br>".join(_text(source) for source in run.sources[:_MOST_SOURCES])
    options = {name: value for name, value in run.options.items() if value is not None}
    facts = (
        ("sources", sources + (f"<br>and {rest:,} more" if rest > 0 else "")),
        ("destination", _text(content.address)),
        ("output", _text(", ".join(run.outputs))),
        *((_text(name), _value(value)) for name, value in sorted(options.items())),
        *((_text(name.replace("_", " ")), _value(value)) for name, value in sorted(run.planning.items())),
        ("ocrsvc", f"{_text(run.ocrsvc)} began it, {_text(content.version)} wrote this report"),
        *((_text(name), _text(value)) for name, value in _readers(content.owners)),
    )
    items = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts)
    return (
        f'<section><h2>Settings and versions</h2><div class="box"><dl class="facts">{items}</dl></div></section>'
        f"{_processes(content.owners)}"
    )


def _value(value: Any) -> str:
    words = {True: "yes", False: "no"}
    return words[value] if isinstance(value, bool) else _text(value if isinstance(value, str) else _json(value))


def _json(value: object) -> str:
    return orjson.dumps(value).decode()


def _readers(owners: Sequence[OwnerFacts]) -> list[tuple[str, str]]:
    """Engine, model and version that have read."""
    found: dict[str, set[str]] = {}
    for one in owners:
        for name, value in dict(one.facts.get("reader") or {}).items():
            found.setdefault(str(name), set()).add(str(value))
    return [(f"reader's {name}", ", ".join(sorted(values))) for name, values in sorted(found.items())]


def _processes(owners: Sequence[OwnerFacts]) -> str:
    if not owners:
        return ""
    rows = [
        (
            f"{_text(one.owner.host)}, process {one.owner.pid}",
            f"{one.pages:,}",
            _moment(one.owner.began),
            _moment(one.last),
            "in order" if one.has_ended else "not, or cut off",
        )
        for one in owners[-_MOST_OWNERS:]
    ]
    heads = ("process", "pages", "began", "last page", "ended")
    rest = len(owners) - len(rows)
    more = f'<p class="soft">{count_of(rest, "earlier process")}.</p>' if rest > 0 else ""
    return f'<section><h2>Processes</h2><div class="box">{_table("Processes", heads, rows)}{more}</div></section>'
