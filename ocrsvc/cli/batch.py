"""`ocrsvc batch SOURCE… --out DEST`: reads many files into one output, each page once."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import click

from ocrsvc.batch.visible_text import visible
from ocrsvc.cli.batch_options import batch_options, check_modes, request_of
from ocrsvc.cli.options import Command
from ocrsvc.errors import DamagedLedger, StoreUnavailable
from ocrsvc.system.thread_plan import set_library_environment

if TYPE_CHECKING:
    from ocrsvc.batch.destination import Destination
    from ocrsvc.batch.run import Run

_MORE_TO_READ: Final = 75
_SOME_FAILED: Final = 1
_MOST_PROBLEMS: Final = 20


@click.command(
    cls=Command,
    examples=(
        "ocrsvc batch scans/ --out results",
        "ocrsvc batch scans/ --dry-run                              what it will take",
        "ocrsvc batch 's3://bucket/*.tar' --out s3://bucket/text --format parquet",
        "ocrsvc batch @list.txt --out results --on http://ocr-1:8000,http://ocr-2:8000",
        "ocrsvc batch --verify --out results                        check what was written",
        "ocrsvc batch --report --out results                        write the report again",
    ),
)
@batch_options
def batch(**given: Any) -> int:
    """Read many files into one output, each page once.

    The same command goes on after an interruption. It ends with 0 if everything was read, 1 if pages have failed (0
    with --exit-zero), 75 if there is more to be read, and with --verify 65 if the output is not what was written.
    """
    # Before the numeric libraries load, which read the environment once: so they are imported inside functions here.
    set_library_environment(os.environ)
    from ocrsvc.batch.destination import open_destination
    from ocrsvc.cli.batch_summary import estimate, make_report

    args = SimpleNamespace(**given)
    check_modes(args)
    if args.dry_run:
        estimate(request_of(args), args.machines, args.price_per_hour)
        return 0
    destination = open_destination(args.out)
    with _failures_named(destination):
        if args.verify:
            return _verify(destination)
        if args.report:
            make_report(destination)
            return 0
        return _read(destination, args)


@contextmanager
def _failures_named(destination: Destination) -> Iterator[None]:
    """Has a disk that fails raise StoreUnavailable."""
    remedy = "Fix that, and repeat the command: what was read is kept."
    try:
        yield
    except OSError as error:
        said = error.strerror or error
        raise StoreUnavailable(f"{destination.address} cannot be read or written: {said}.", remedy) from error
    except sqlite3.Error as error:
        what = f"The work folder of {destination.address} cannot be read or written: {error}."
        raise StoreUnavailable(what, remedy) from error


def _read(destination: Destination, args: SimpleNamespace) -> int:
    """Plan or go on, read, and say how it went."""
    from ocrsvc.batch.progress import showing
    from ocrsvc.batch.sources.source_files import PlanningCounts
    from ocrsvc.batch.start import open_run
    from ocrsvc.cli.batch_summary import make_report_at_end, summary_of

    counts = PlanningCounts()
    with (
        showing(quiet=args.quiet, metrics=args.metrics_port) as progress,
        open_run(destination, request_of(args), progress, counts) as work,
        _draining(work),
    ):
        for sentence in counts.to_sentences():
            print(visible(f"ocrsvc: {sentence}"), file=sys.stderr)
        outcome = work.execute()
    for sentence in summary_of(outcome, destination.address, outcome.clock() - outcome.began_s, args.shard):
        print(f"ocrsvc: {sentence}", file=sys.stderr)
    if not args.no_report:
        make_report_at_end(destination)
    return _code(is_complete=outcome.is_complete, failed=outcome.all_failed if not args.exit_zero else 0)


@contextmanager
def _draining(work: Run) -> Iterator[None]:
    """SIGINT and SIGTERM have the run stop after what is being read; the second one ends the process."""

    def drain(number: int, _frame: object) -> None:
        for other in (signal.SIGINT, signal.SIGTERM):
            signal.signal(other, signal.SIG_DFL)
        name = signal.Signals(number).name
        print(f"\nocrsvc: {name}: finishing what is being read; once more ends at once", file=sys.stderr)
        work.drain()

    before = {number: signal.signal(number, drain) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _verify(destination: Destination) -> int:
    """Check that every page is in the output once, and print what is wrong."""
    from ocrsvc.batch.progress import count_of
    from ocrsvc.batch.verify import verify

    found = verify(destination)
    for problem in found.problems[:_MOST_PROBLEMS]:
        print(visible(problem))
    print(
        f"{count_of(found.pages, 'page')} in {count_of(found.parts, 'part')}: {found.done:,} read, {found.failed:,} "
        f"failed; {found.finished:,} in the output, {count_of(len(found.problems), 'problem')}"
    )
    if found.problems:
        print("The output was changed or removed after it was written: read into another destination.")
        return DamagedLedger.exit_code
    return _code(is_complete=found.is_complete, failed=found.failed)


def _code(*, is_complete: bool, failed: int) -> int:
    if not is_complete:
        return _MORE_TO_READ
    return _SOME_FAILED if failed else 0
