"""Output of `ocrsvc batch`: summary of a run, its report, and the estimate of --dry-run."""

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

_LABELS: Final = {"local": ("this machine", "such machines")}
_OTHER_LABELS: Final = ("the present readers", "times as many")
"""Labels for services and clusters, whose number of machines is unknown."""


def summary_of(outcome: RunCounts, address: str, elapsed_s: float, shard: str | None) -> Iterator[str]:
    """Summarize a run into the output at `address`; `elapsed_s` is this command's."""
    if outcome.is_complete and not outcome.planned:
        yield "no pages to read" + (f": the run has fewer parts than --shard {shard} needs" if shard else "")
        return
    yield _pages_of_command(outcome, elapsed_s)
    done, failed = outcome.all_done, outcome.all_failed
    if (done, failed) != (outcome.done, outcome.failed.total()) or not outcome.is_complete:
        finished, planned = done + failed, count_of(outcome.planned, "page")
        where = " of this shard" if shard else ""
        yield f"total so far: {finished:,} of {planned}{where}, {done:,} read and {failed:,} failed"
    if outcome.is_complete:
        yield f"{'shard' if shard else 'output'} complete: {address}"
        if failed:
            yield "failed pages have an `error` in the output; --retry-failed reads them again"
    else:
        yield f"incomplete: {address}; run the same command again to continue"


def _pages_of_command(outcome: RunCounts, elapsed_s: float) -> str:
    copied = f", {outcome.copied:,} of them copied from files with the same content" if outcome.copied else ""
    read = f"{count_of(outcome.done, 'page')} read{copied}, {failures_of(outcome.failed)}"
    return f"{read}, in {'less than a second' if elapsed_s < 1 else duration_of(elapsed_s)}"


def make_report(destination: Destination) -> None:
    """Write the report of a run and print its address. Raises OcrsvcError, OSError."""
    from ocrsvc.batch.report import write_report

    print(f"ocrsvc: report in {destination.address.rstrip('/')}/{write_report(destination)}", file=sys.stderr)


def make_report_at_end(destination: Destination) -> None:
    """Write the report, printing an error instead of raising it."""
    try:
        make_report(destination)
    except (OcrsvcError, OSError) as error:
        print(visible(f"ocrsvc: the report could not be written: {error}"), file=sys.stderr)


def estimate(request: BatchRequest, machines: int | None, price: float | None) -> None:
    """Count the sources, read a sample, and print an estimate for all pages. Raises OcrsvcError."""
    from ocrsvc.batch.sources.load_files import SourceLoader
    from ocrsvc.batch.sources.plan_files import find_sources
    from ocrsvc.batch.sources.source_files import PlanningCounts
    from ocrsvc.batch.start import open_reader

    skipped = PlanningCounts()
    counts = count_sources(find_sources(request.sources, skipped))
    print(visible("\n".join([*_kinds(counts), *skipped.to_sentences()])))
    if not counts.sample:
        return
    with closing(SourceLoader(request.sources.most_file_bytes)) as load, closing(open_reader(request, load)) as reader:
        reader.start()
        pace = measure_pace(reader, counts.sample)
    if pace is not None:
        print("\n".join(_estimate(counts.total[1], pace, _LABELS.get(request.on, _OTHER_LABELS), machines, price)))


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
