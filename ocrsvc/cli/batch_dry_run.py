"""`ocrsvc batch --dry-run`: what the sources hold, and what reading it would take and cost."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from ocrsvc.batch.visible_text import visible
from ocrsvc.cli.number_arguments import amount, whole_number

if TYPE_CHECKING:
    from ocrsvc.batch.dry_run import Pace, SourceCounts
    from ocrsvc.batch.start import BatchRequest

_NAMES: Final = {"local": ("this machine", "such machines")}
_OTHERS: Final = ("what reads now", "times as much")
"""Of services and clusters nobody knows how many machines they are."""


def add_dry_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its arguments."""
    group = parser.add_argument_group("what it will take")
    group.add_argument(
        "--dry-run",
        action="store_true",
        help="count files and pages, read a few, estimate time and cost; write nothing",
    )
    group.add_argument(
        "--machines",
        type=whole_number(1_000_000),
        metavar="N",
        help="with --dry-run: how many machines such as this would read, or times as many as --on names",
    )
    group.add_argument(
        "--price-per-hour",
        type=amount(1e9, "price"),
        metavar="PRICE",
        help="with --dry-run: of this machine, or of all that --on names, in any currency",
    )


def estimate(request: BatchRequest, machines: int | None, price: float | None) -> int:
    """Count, read a sample, and print; always 0. Raises OcrsvcError."""
    from ocrsvc.batch.dry_run import count_sources, measure_pace
    from ocrsvc.batch.sources.plan_files import find_sources
    from ocrsvc.batch.sources.source_files import PlanningCounts
    from ocrsvc.batch.start import opened_reader

    left_out = PlanningCounts()
    counts = count_sources(find_sources(request.sources, left_out))
    print(visible("\n".join([*_table(counts), *left_out.to_sentences()])))
    if not counts.sample:
        return 0
    with opened_reader(request) as reader:
        pace = measure_pace(reader, counts.sample)
    if pace is not None:
        print("\n".join(_estimate(counts.total.pages, pace, _NAMES.get(request.on, _OTHERS), machines, price)))
    return 0


def _table(counts: SourceCounts) -> list[str]:
    from ocrsvc.batch.dry_run import kinds_by_pages
    from ocrsvc.batch.progress import bytes_of

    rows = [("kind", "files", "pages", "bytes")]
    rows += [
        (kind, f"{each.files:,}", f"{each.pages:,}", bytes_of(each.bytes))
        for kind, each in (*kinds_by_pages(counts).items(), ("all", counts.total))
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        f"{row[0]:{widths[0]}}  "
        + "  ".join(f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    ]


def _estimate(pages: int, pace: Pace, names: tuple[str, str], machines: int | None, price: float | None) -> list[str]:
    from ocrsvc.batch.progress import count_of, duration_of, rate_of

    hours = pace.seconds_for(pages) / 3600
    failed = f" ({pace.failed} failed)" if pace.failed else ""
    rate = f"{rate_of(pace.pages_per_s)} pages/s (± {pace.spread * 100:.0f} %), {pace.at_once} at once"
    lines = ["", f"{count_of(pace.pages, 'page')} read{failed}: {rate}"]
    shown = [1] if machines == 1 else [1, machines] if machines else [1, 10, 100]
    for count in shown:
        name = names[0] if count == 1 else f"{count} {names[1]}"
        lines.append(f"{name:22} {duration_of(pace.seconds_for(pages, count))}")
    if price is not None:
        lines.append(f"{'price':22} {hours * price:,.2f} ({hours:,.2g} hours at {price:g})")
    return lines
