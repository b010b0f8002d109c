"""Plots of a report: columns as SVG that fits any width, labels as text of the page, and the figures as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from ocrsvc.batch.report.run_summary import Histogram

_HEIGHT: Final = 100
_GAP: Final = 0.12
"""Of a column's width, between it and the next."""


@dataclass(frozen=True, slots=True)
class Plot:
    """One plot.

    Attributes:
        title: What it shows.
        said: The same in a sentence, for those who do not see it and for those who do.
        histogram: The columns.
        labels: Of the edges: one more than columns.
        ticks: What stands below, from left to right, evenly spread.
        most: What the highest column means.
        unit: What is counted, and what `more` of the histogram counts.
        rows_of: What the table's first column is.
    """

    title: str
    said: str
    histogram: Histogram
    labels: Sequence[str]
    ticks: Sequence[str]
    most: str
    unit: tuple[str, str]
    rows_of: str


def figure(plot: Plot) -> str:
    """A plot as HTML."""
    ticks = "".join(f"<span>{escape(tick)}</span>" for tick in plot.ticks)
    return (
        f'<figure class="box"><figcaption>{escape(plot.title)}</figcaption><p class="soft">{escape(plot.said)}</p>'
        f'<span class="most" aria-hidden="true">{escape(plot.most)}</span>{_svg(plot)}'
        f'<div class="ticks" aria-hidden="true">{ticks}</div>{_key(plot)}'
        f"<details><summary>Figures</summary>{_table(plot)}</details></figure>"
    )


def _svg(plot: Plot) -> str:
    counts, more = plot.histogram.counts, plot.histogram.more or [0] * len(plot.histogram.counts)
    highest = max((a + b for a, b in zip(counts, more, strict=True)), default=0) or 1
    parts = [f'<line class="grid" x1="0" x2="{len(counts)}" y1="{y}" y2="{y}"/>' for y in (0.5, 25, 50, 75)]
    for at, (count, others) in enumerate(zip(counts, more, strict=True)):
        height, top = _HEIGHT * count / highest, _HEIGHT * others / highest
        parts.append(_column("bar", at, _HEIGHT - height, height) if count else "")
        parts.append(_column("more", at, _HEIGHT - height - top, top) if others else "")
    return (
        f'<svg viewBox="0 0 {len(counts)} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(f"{plot.title}: {plot.said}")}">{"".join(parts)}</svg>'
    )


def _column(kind: str, at: int, y: float, height: float) -> str:
    # What is there is seen, however little.
    shown = max(height, 0.7)
    return (
        f'<rect class="{kind}" x="{at + _GAP / 2:g}" y="{min(y, _HEIGHT - shown):.2f}" width="{1 - _GAP:g}" '
        f'height="{shown:.2f}"/>'
    )


def _key(plot: Plot) -> str:
    """What the colours mean, where there are two."""
    if not any(plot.histogram.more):
        return ""
    first, second = (escape(unit) for unit in plot.unit)
    return f'<p class="key"><i></i>{first}<i class="more"></i>{second}</p>'


def _table(plot: Plot) -> str:
    counts, more = plot.histogram.counts, plot.histogram.more
    heads = [plot.unit[0], plot.unit[1]] if any(more) else [plot.unit[0]]
    head = "".join(f'<th scope="col" class="number">{escape(name)}</th>' for name in heads)
    rows = []
    for at, count in enumerate(counts):
        values = [count, more[at]] if any(more) else [count]
        if any(values):
            cells = "".join(f'<td class="number">{value:,}</td>' for value in values)
            rows.append(f'<tr><th scope="row">{escape(f"{plot.labels[at]} to {plot.labels[at + 1]}")}</th>{cells}</tr>')
    return (
        f'<div class="scroll"><table><thead><tr><th scope="col">{escape(plot.rows_of)}</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
