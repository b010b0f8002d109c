"""`ocrsvc batch SOURCE… --out DEST`: reads many files into one output, each page once."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ocrsvc.batch.outputs.output_formats import BATCH_FORMATS
from ocrsvc.batch.visible_text import visible
from ocrsvc.cli.batch_cluster import add_cluster_arguments, cluster_request_of
from ocrsvc.cli.batch_dry_run import add_dry_run_arguments, estimate
from ocrsvc.cli.batch_report import make_report, make_report_at_end
from ocrsvc.cli.batch_services import add_service_arguments, service_access_of
from ocrsvc.cli.batch_sources import add_source_arguments, source_request_of
from ocrsvc.cli.batch_summary import summary_of
from ocrsvc.cli.number_arguments import whole_number
from ocrsvc.cli.reading_options import add_reading_options, options_of
from ocrsvc.errors import BadOption, DamagedLedger, StoreUnavailable
from ocrsvc.system.thread_plan import set_library_environment

if TYPE_CHECKING:
    from ocrsvc.batch.destination import Destination
    from ocrsvc.batch.run import Run
    from ocrsvc.batch.start import BatchRequest

HELP: Final = "read many files into one output, each page once"
_USAGE: Final = """%(prog)s SOURCE… --out DEST [OPTION…]
       %(prog)s SOURCE… --dry-run [OPTION…]
       %(prog)s --verify --out DEST
       %(prog)s --report --out DEST"""
_FORMATS: Final = ", ".join(BATCH_FORMATS)
_PART_PAGES: Final = 500
_COUNT: Final = whole_number()
_MORE_TO_READ: Final = 75
_MOST_PROBLEMS: Final = 20
_SOME_FAILED: Final = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `ocrsvc batch`."""
    parser.usage = _USAGE
    add_source_arguments(parser)
    _add_output_arguments(parser.add_argument_group("output"))
    _add_going_on_arguments(parser.add_argument_group("going on, and pages that fail"))
    group = parser.add_argument_group("who reads")
    group.add_argument(
        "--on", default="local", metavar="WHO", help="local (the default), URL[,URL…], ray, ray://HOST:PORT"
    )
    group.add_argument("--shard", metavar="I/N", help="work on every Nth part from the Ith (from 0) alone")
    add_service_arguments(parser)
    add_cluster_arguments(parser)
    add_reading_options(parser.add_argument_group("how pages are read"))
    _add_progress_arguments(parser.add_argument_group("progress and report"))
    add_dry_run_arguments(parser)


def _add_output_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--out", metavar="DEST", help="folder of the output, or its URL (s3://…)")
    group.add_argument(
        "--format",
        default="jsonl",
        metavar="FORMAT[,FORMAT…]",
        help=f"{_FORMATS}; jsonl, if left out",
    )
    group.add_argument(
        "--part-pages", type=_COUNT, metavar="N", default=_PART_PAGES, help="pages of a file of the output (500)"
    )
    group.add_argument("--dedupe", action="store_true", help="read files of the same content once")
    group.add_argument(
        "--verify", action="store_true", help="read nothing: check that every page is in the output of DEST once"
    )


def _add_going_on_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--limit", type=_COUNT, metavar="N", help="stop after N pages; the same command goes on")
    group.add_argument("--work", type=Path, metavar="FOLDER", help="for what is not in the output yet; on a local disk")
    group.add_argument(
        "--take-over", action="store_true", help="continue a shard whose process on another machine has certainly ended"
    )
    group.add_argument("--attempts", type=_COUNT, metavar="N", default=3, help="tries of a page before it fails (3)")
    group.add_argument("--retry-failed", action="store_true", help="try pages that have failed again")
    group.add_argument(
        "--keep-going", action="store_true", help="fail pages also when 100 tries in a row fail, and do not end then"
    )
    group.add_argument("--exit-zero", action="store_true", help="exit with 0, not 1, when pages have failed")


def _add_progress_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--quiet", action="store_true", help="show no progress")
    group.add_argument("--metrics-port", metavar="[HOST:]PORT", help="tell Prometheus how it goes, on 127.0.0.1")
    group.add_argument("--no-report", action="store_true", help="write no report at the end")
    group.add_argument(
        "--report", action="store_true", help="write the report of the run in DEST again, and nothing else"
    )


def run(args: argparse.Namespace) -> int:
    """Plan or go on, read, and say how it went.

    Returns:
        0 if everything was read, 1 if pages have failed (0 with --exit-zero), 75 if there is more to be read; with
        --verify also 65 if the output is not what was written.
    """
    # Before the numeric libraries load, which read the environment once: so they are imported inside functions here.
    set_library_environment(os.environ)
    from ocrsvc.batch.destination import open_destination
    from ocrsvc.batch.progress_display import showing
    from ocrsvc.batch.sources.source_files import PlanningCounts
    from ocrsvc.batch.start import open_run

    _check_what(args)
    if args.dry_run:
        return estimate(_request_of(args), args.machines, args.price_per_hour)
    destination = open_destination(args.out)
    if args.verify:
        return _verify(destination)
    try:
        if args.report:
            return make_report(destination)
        counts = PlanningCounts()
        with (
            showing(quiet=args.quiet, metrics=args.metrics_port) as progress,
            open_run(destination, _request_of(args), progress, counts) as work,
            _draining(work),
        ):
            for sentence in counts.to_sentences():
                print(visible(f"ocrsvc: {sentence}"), file=sys.stderr)
            outcome = work.execute()
    except OSError as error:
        raise StoreUnavailable(
            f"{destination.address} cannot be read or written: {error.strerror or error}.",
            "Fix that, and repeat the command: what was read is kept.",
        ) from error
    except sqlite3.Error as error:
        raise StoreUnavailable(
            f"The work folder of {destination.address} cannot be read or written: {error}.",
            "Fix that, and repeat the command: what was read is kept.",
        ) from error
    for sentence in summary_of(outcome, destination.address, outcome.elapsed_s, args.shard):
        print(f"ocrsvc: {sentence}", file=sys.stderr)
    if not args.no_report:
        make_report_at_end(destination)
    if not outcome.is_complete:
        return _MORE_TO_READ
    return _SOME_FAILED if outcome.all_failed and not args.exit_zero else 0


def _verify(destination: Destination) -> int:
    from ocrsvc.batch.progress import count_of
    from ocrsvc.batch.verify import verify

    try:
        found = verify(destination)
    except OSError as error:
        raise StoreUnavailable(f"{destination.address} cannot be read: {error.strerror or error}.") from error
    for problem in found.problems[:_MOST_PROBLEMS]:
        print(visible(problem))
    print(
        f"{count_of(found.pages, 'page')} in {count_of(found.parts, 'part')}: {found.done:,} read, {found.failed:,} "
        f"failed; {found.finished:,} in the output, {count_of(len(found.problems), 'problem')}"
    )
    if found.problems:
        print("The output was changed or removed after it was written: read into another destination.")
        return DamagedLedger.exit_code
    if not found.is_complete:
        return _MORE_TO_READ
    return _SOME_FAILED if found.failed else 0


def _check_what(args: argparse.Namespace) -> None:
    """Raises BadOption where the command lacks what it needs."""
    if not (args.sources or args.report or args.verify):
        raise BadOption("No source is named.", "Name files or folders that are to be read.")
    if "" in args.sources:
        raise BadOption("A source is empty: ''.", "Name files or folders that are to be read.")
    modes = [name for name in ("--dry-run", "--verify", "--report") if getattr(args, name[2:].replace("-", "_"))]
    if len(modes) > 1:
        raise BadOption(f"{' and '.join(modes)} are asked for.", "Give one of them.")
    if not args.dry_run and (args.machines is not None or args.price_per_hour is not None):
        raise BadOption("--machines and --price-per-hour are for --dry-run alone.", "Add --dry-run, or leave them out.")
    if args.actors is not None and not args.on.startswith("ray"):
        raise BadOption(f"--actors is for a Ray cluster, and --on is {args.on!r}.", "Add --on ray, or leave it out.")
    if not args.out and not args.dry_run:
        raise BadOption("--out is missing.", "Name the folder for the output.")


def _request_of(args: argparse.Namespace) -> BatchRequest:
    from ocrsvc.batch.run import RunSettings
    from ocrsvc.batch.start import BatchRequest

    shard, shards = _shard_of(args.shard)
    settings = RunSettings(args.attempts, shard, shards, args.limit, args.dedupe, args.keep_going)
    sources, formats = source_request_of(args, os.environ), tuple(args.format.split(","))
    return BatchRequest(
        sources,
        options_of(args),
        formats,
        args.on,
        args.part_pages,
        args.retry_failed,
        settings,
        dict(os.environ),
        as_planned=args.as_planned,
        cluster=cluster_request_of(args),
        services=service_access_of(args),
        update=args.update,
        work=args.work,
        take_over=args.take_over,
    )


def _shard_of(text: str | None) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text or "0/1")
    if match is None or int(match[1]) >= int(match[2]):
        raise BadOption(f"--shard is {text!r}: accepted is I/N with I from 0 to N - 1, such as 0/8.")
    return int(match[1]), int(match[2])


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
