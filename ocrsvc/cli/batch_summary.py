"""What `ocrsvc batch` says: what was read and what is left, the report, and what reading would take and cost."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Final

from ocrsvc.batch.dry_run import Pace, SourceCounts, count_sources, measure_pace
from ocrsvc.batch.human_readable import bytes_of, count_of, duration_of, failures_of, rate_of, visible
from ocrsvc.cli.output import table
from ocrsvc.errors import OcrsvcError

if TYPE_CHECKING:
    from ocrsvc.batch.destination import Destination
    from ocrsvc.batch.progress import RunCounts
    from ocrsvc.batch.request import BatchRequest

_NAMES: Final = {"local": ("this machine", "such machines")}
_OTHERS: Final = ("what reads now", "times as much")
"""For services and clusters, whose number of machines is unknown."""


def summary_of(outcome: RunCounts, address: str, elapsed_s: float, shard: str | None) -> Iterator[str]:
    """Sentences about a run into the output at this address, whose command has read so long."""
    if outcome.is_complete and not outcome.planned:
        yield "there is no page to read" + (f": the run has fewer parts than --shard {shard} needs" if shard else "")
        return
    yield _own_pages(outcome, elapsed_s)
    done, failed = outcome.all_done, outcome.all_failed
    if (done, failed) != (outcome.done, outcome.failed.total()) or not outcome.is_complete:
        finished, planned = done + failed, count_of(outcome.planned, "page")
        where = " of this shard" if shard else ""
        yield f"by all commands so far: {finished:,} of {planned}{where}, {done:,} read and {failed:,} failed"
    if outcome.is_complete:
        yield f"all{' of this shard' if shard else ''} is in {address}"
        if failed:
            yield "why pages failed is in the output as `error`; the same command with --retry-failed tries them again"
    else:
        yield f"there is more to be read into {address}: give the same command again"


def _own_pages(outcome: RunCounts, elapsed_s: float) -> str:
    copied = f", {outcome.copied:,} of them copied from files of the same content" if outcome.copied else ""
    read = f"{count_of(outcome.done, 'page')} read{copied}, {failures_of(outcome.failed)}"
    return f"{read}, in {'less than a second' if elapsed_s < 1 else duration_of(elapsed_s)}"


def make_report(destination: Destination) -> None:
    """Write the report of a run, and say where it is. Raises OcrsvcError and OSError."""
    from ocrsvc.batch.report import write_report
    from ocrsvc.batch.sources.load_files import SourceLoader

    with closing(SourceLoader()) as load:
        name = write_report(destination, load)
    print(f"ocrsvc: report in {destination.address.rstrip('/')}/{name}", file=sys.stderr)


def make_report_at_end(destination: Destination) -> None:
    """The same after a run, which does not fail for want of a report."""
    try:
        make_report(destination)
    except (OcrsvcError, OSError) as error:
        print(visible(f"ocrsvc: the report could not be written: {error}"), file=sys.stderr)


def estimate(request: BatchRequest, machines: int | None, price: float | None) -> None:
    """Count what the sources hold, read a sample, and print what reading all would take. Raises OcrsvcError."""
    from ocrsvc.batch.sources.plan_files import find_sources
    from ocrsvc.batch.sources.source_files import PlanningCounts
    from ocrsvc.batch.start import opened_reader

    left_out = PlanningCounts()
    counts = count_sources(find_sources(request.sources, left_out))
    print(visible("\n".join([*_kinds(counts), *left_out.to_sentences()])))
    if not counts.sample:
        return
    with opened_reader(request) as reader:
        pace = measure_pace(reader, counts.sample)
    if pace is not None:
        print("\n".join(_estimate(counts.total[1], pace, _NAMES.get(request.on, _OTHERS), machines, price)))


def _kinds(counts: SourceCounts) -> Iterator[str]:
    counted = (*counts.kinds.items(), ("all", counts.total))
    rows = [(kind, f"{files:,}", f"{pages:,}", bytes_of(size)) for kind, (files, pages, size) in counted]
    return table(("kind", "files", "pages", "bytes"), rows, to_right=True)


def _estimate(
    pages: int, pace: Pace, names: tuple[str, str], machines: int | None, price: float | None
) -> Iterator[str]:
    failed = f" ({pace.failed} failed)" if pace.failed else ""
    rate = f"{rate_of(pace.pages_per_s)} pages/s (± {pace.spread * 100:.0f} %), {pace.at_once} at once"
    yield ""
    yield f"{count_of(pace.pages, 'page')} read{failed}: {rate}"
    for count in (1, 10, 100) if machines is None else sorted({1, machines}):
        name = names[0] if count == 1 else f"{count} {names[1]}"
        yield f"{name:22} {duration_of(pace.seconds_for(pages, count))}"
    if price is not None:
        hours = pace.seconds_for(pages) / 3600
        yield f"{'price':22} {hours * price:,.2f} ({hours:,.2g} hours at {price:g})"
