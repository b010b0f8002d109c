"""`ocrsvc batch SOURCE… --out DEST`: reads many files into one output, each page once."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import click

from ocrsvc.batch.human_readable import count_of, visible
from ocrsvc.batch.outputs.output_formats import BATCH_FORMATS
from ocrsvc.batch.request import BatchRequest, ClusterRequest, ServiceAccess, SourceRequest
from ocrsvc.cli.options import AMOUNT, COUNT, FILE, Number, command, option, reading_options
from ocrsvc.cli.service import read_key, service_access
from ocrsvc.errors import BadOption, DamagedLedger, StoreUnavailable
from ocrsvc.settings.load import read_settings
from ocrsvc.system.thread_plan import set_library_environment

if TYPE_CHECKING:
    from ocrsvc.batch.destination import Destination
    from ocrsvc.batch.run import Run

_MORE_TO_READ: Final = 75
_SOME_FAILED: Final = 1
_MOST_PROBLEMS: Final = 20
_REMEDY: Final = "Fix that, and repeat the command: what was read is kept."
# What has an option of its own, or is the run's to say.
_OWN: Final = (
    *("num_cpus", "num_gpus", "max_restarts", "max_task_retries", "max_concurrency", "name", "lifetime", "namespace"),
)

# Options that are fields of the request.
_AS_GIVEN: Final = (
    *("part_pages", "attempts", "limit", "dedupe", "retry_failed", "as_planned", "update", "take_over", "work"),
)

_source: Final = partial(option, section="Sources")
_output: Final = partial(option, section="Output")
_failing: Final = partial(option, section="Going on, and pages that fail")
_reader: Final = partial(option, section="Readers")
_service: Final = partial(option, section="Service", type=AMOUNT, metavar="SECONDS")
_cluster: Final = partial(option, section="A Ray cluster (--on ray)")
_shown: Final = partial(option, section="Progress and report")
_estimate: Final = partial(option, section="What it will take")


@command(
    "ocrsvc batch scans/ --out results",
    "ocrsvc batch scans/ --dry-run                              what it will take",
    "ocrsvc batch 's3://bucket/*.tar' --out s3://bucket/text --format parquet",
    "ocrsvc batch @list.txt --out results --on http://ocr-1:8000,http://ocr-2:8000",
    "ocrsvc batch --verify --out results                        check what was written",
    "ocrsvc batch --report --out results                        write the report again",
)
@click.argument(
    "sources",
    nargs=-1,
    metavar="SOURCE...",
    help="File, folder, pattern such as 'scans/**/*.png', list (@FILE, or - for standard input), tar, zip, Parquet "
    "or Arrow file, here or at a URL such as s3://bucket/scans/.",
)
@_source("--column", metavar="NAME", help="Column of Parquet and Arrow files that holds the images; found by default.")
@_source("--include", multiple=True, metavar="PATTERN", help="Only names such as '*.png'; may be repeated.")
@_source("--exclude", multiple=True, metavar="PATTERN", help="No names such as '*_old*'; may be repeated.")
@_source("--sample", metavar="N|P%", help="Read a random sample: this many pages, or this share of them.")
@_source("--seed", type=int, default=0, metavar="N", help="Seed of the sample (0).")
@_source("--as-planned", is_flag=True, help="Continue as planned although sources have changed since.")
@_source("--update", is_flag=True, help="Read files, too, that are new since the run was planned.")
@_source("--sorted", is_flag=True, help="Read in the order of names over all sources.")
@_output("--out", metavar="DEST", help="Folder of the output, or its URL (s3://bucket/name).")
@_output("--format", default="jsonl", metavar="FORMAT[,...]", help=f"{', '.join(BATCH_FORMATS)}; jsonl by default.")
@_output("--part-pages", type=COUNT, default=500, metavar="N", help="Pages per output file (500).")
@_output("--dedupe", is_flag=True, help="Read files of the same content once.")
@_output("--verify", is_flag=True, help="Read nothing: check that every page is in the output once.")
@_failing("--limit", type=COUNT, metavar="N", help="Stop after N pages; the same command goes on.")
@_failing(
    "--work", type=FILE, metavar="FOLDER", help="Folder on a local disk for results that are not in the output yet."
)
@_failing("--take-over", is_flag=True, help="Continue a shard whose process elsewhere has certainly ended.")
@_failing("--attempts", type=COUNT, default=3, metavar="N", help="Tries of a page before it fails (3).")
@_failing("--retry-failed", is_flag=True, help="Try pages that have failed again.")
@_failing("--keep-going", is_flag=True, help="Fail pages also when 100 tries in a row fail, and do not end then.")
@_failing("--exit-zero", is_flag=True, help="End with 0, not 1, when pages have failed.")
@_reader("--on", default="local", metavar="READER", help="local (the default), URL[,URL...], ray, ray://HOST:PORT.")
@_reader("--shard", metavar="I/N", help="Read only every Nth part, beginning with the Ith (from 0).")
@_service("--patience", default=300.0, help="How long no service may answer before the run stops (300).")
@_service(
    "--at-once",
    type=Number(int, 1, 1000),
    default=16,
    metavar="N",
    help="Files under way at each, until it refuses (16).",
)
@service_access
@_cluster("--actors", type=COUNT, metavar="N", help="Number of actors; by default all that the cluster has room for.")
@_cluster("--cpus-per-actor", type=AMOUNT, default=1.0, metavar="N", help="CPUs of each, or a part (1).")
@_cluster("--gpus-per-actor", type=AMOUNT, default=0.0, metavar="N", help="GPUs of each, or a part (0).")
@_cluster("--actor-options", default="{}", metavar="JSON", help="More of Ray's options, such as memory, resources.")
@_cluster("--actor-wait", type=AMOUNT, default=600.0, metavar="SECONDS", help="How long to wait for any (600).")
@reading_options
@_shown("--quiet", is_flag=True, help="Show no progress.")
@_shown("--metrics-port", metavar="[HOST:]PORT", help="Serve metrics for Prometheus, on 127.0.0.1 by default.")
@_shown("--no-report", is_flag=True, help="Write no report at the end.")
@_shown("--report", is_flag=True, help="Write the report of the run again, and nothing else.")
@_estimate("--dry-run", is_flag=True, help="Count pages, read a few, estimate time and cost; write nothing.")
@_estimate(
    "--machines",
    type=Number(int, 1, 1_000_000),
    metavar="N",
    help="Estimate for N such machines, or N times what --on names.",
)
@_estimate("--price-per-hour", type=AMOUNT, metavar="PRICE", help="Price of this machine, or of all that --on names.")
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
    _check_modes(args)
    if args.dry_run:
        estimate(_request_of(args), args.machines, args.price_per_hour)
        return 0
    destination = open_destination(args.out)
    with _failures_named(destination):
        if args.verify:
            return _verify(destination)
        if args.report:
            make_report(destination)
            return 0
        return _read(destination, args)


def _check_modes(args: SimpleNamespace) -> None:
    if not (args.sources or args.report or args.verify):
        raise BadOption("No source is named.", "Name files or folders that are to be read.")
    if "" in args.sources:
        raise BadOption("A source is empty: ''.", "Name files or folders that are to be read.")
    modes = {"--dry-run": args.dry_run, "--verify": args.verify, "--report": args.report}
    if sum(modes.values()) > 1:
        raise BadOption(f"{' and '.join(name for name in modes if modes[name])} are asked for.", "Give one of them.")
    if not args.dry_run and (args.machines is not None or args.price_per_hour is not None):
        raise BadOption("--machines and --price-per-hour are for --dry-run alone.", "Add --dry-run, or leave them out.")
    if args.actors is not None and not args.on.startswith("ray"):
        raise BadOption(f"--actors is for a Ray cluster, and --on is {args.on!r}.", "Add --on ray, or leave it out.")
    if not args.out and not args.dry_run:
        raise BadOption("--out is missing.", "Name the folder for the output.")


def _request_of(args: SimpleNamespace) -> BatchRequest:
    shard, shards = shard_of(args.shard)
    access, actor_options = args.access, actor_options_of(args.actor_options)
    chosen = args.reading.pages, args.column, args.include, args.exclude, args.sample, args.seed, args.sorted
    return BatchRequest(
        SourceRequest(args.sources, *chosen, read_settings(os.environ).max_body_bytes),
        args.reading.options,
        tuple(args.format.split(",")),
        args.on,
        dict(os.environ),
        shard=shard,
        shards=shards,
        keeps_going=args.keep_going,
        cluster=ClusterRequest(args.actors, args.cpus_per_actor, args.gpus_per_actor, actor_options, args.actor_wait),
        services=ServiceAccess(read_key(access.key_file), access.ca, access.certificate, args.patience, args.at_once),
        **{name: getattr(args, name) for name in _AS_GIVEN},
    )


def shard_of(text: str | None) -> tuple[int, int]:
    """Which of how many shards. Raises BadOption."""
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text or "0/1")
    if match is None or int(match[1]) >= int(match[2]):
        raise BadOption(f"--shard is {text!r}: accepted is I/N with I from 0 to N - 1, such as 0/8.")
    return int(match[1]), int(match[2])


def actor_options_of(text: str) -> Mapping[str, Any]:
    """Ray's options of actors, from JSON. Raises BadOption."""
    try:
        options = json.loads(text)
    except ValueError as error:
        raise BadOption(f"--actor-options is no JSON: {error}.") from error
    if not isinstance(options, dict):
        raise BadOption('--actor-options is no object: accepted is such as {"memory": 2000000000}.')
    if own := [name for name in _OWN if name in options]:
        raise BadOption(f"--actor-options has {own[0]}, which `ocrsvc batch` says itself.")
    return options


@contextmanager
def _failures_named(destination: Destination) -> Iterator[None]:
    """Has a disk that fails raise StoreUnavailable."""
    try:
        yield
    except OSError as error:
        said = error.strerror or error
        raise StoreUnavailable(f"{destination.address} cannot be read or written: {said}.", _REMEDY) from error
    except sqlite3.Error as error:
        what = f"The work folder of {destination.address} cannot be read or written: {error}."
        raise StoreUnavailable(what, _REMEDY) from error


def _read(destination: Destination, args: SimpleNamespace) -> int:
    from ocrsvc.batch.progress import showing
    from ocrsvc.batch.sources.source_files import PlanningCounts
    from ocrsvc.batch.start import open_run
    from ocrsvc.cli.batch_summary import make_report_at_end, summary_of

    counts = PlanningCounts()
    with (
        showing(quiet=args.quiet, metrics=args.metrics_port) as progress,
        open_run(destination, _request_of(args), progress, counts) as work,
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
        for other in before:
            signal.signal(other, signal.SIG_DFL)
        name = signal.Signals(number).name
        print(f"\nocrsvc: {name}: finishing what is being read; once more ends at once", file=sys.stderr)
        work.drain()

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            signal.signal(number, drain)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _verify(destination: Destination) -> int:
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
