"""`ocrsvc batch SOURCE… --out DEST`: reads many files into one output, each page exactly once."""

import json
import os
import re
import signal
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, cast

import click

from ocrsvc.batch.destination import Destination, open_destination
from ocrsvc.batch.dry_run import Pace, count_sources, measure_pace
from ocrsvc.batch.human_readable import bytes_of, count_of, duration_of, failures_of, rate_of, visible
from ocrsvc.batch.outputs.output_formats import BATCH_FORMATS
from ocrsvc.batch.progress import RunCounts, showing
from ocrsvc.batch.request import BatchRequest, ClusterRequest, ServiceAccess, SourceRequest
from ocrsvc.batch.run import Run
from ocrsvc.batch.sources.source_files import PlanningCounts
from ocrsvc.cli.options import AMOUNT, COUNT, FILE, Number, command, option, reading_options
from ocrsvc.cli.output import table
from ocrsvc.cli.service import read_key, service_access
from ocrsvc.client.request import Options
from ocrsvc.errors import BadOption, DamagedRun, OcrsvcError, StoreUnavailable
from ocrsvc.settings.load import read_settings
from ocrsvc.system.thread_plan import set_library_environment

_MORE_TO_READ: Final = 75
_MAX_PROBLEMS: Final = 20
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_REMEDY: Final = "Fix that and run the same command again: finished pages are kept."
# Refused in --actor-options, because command-line options or the run itself set these Ray options.
_RESERVED: Final = (
    *("num_cpus", "num_gpus", "max_restarts", "max_task_retries", "max_concurrency", "name", "lifetime", "namespace"),
)

# Command-line options with the same name as their field of BatchRequest.
_REQUEST_FIELDS: Final = (
    *("part_pages", "attempts", "limit", "dedupe", "retry_failed", "as_planned", "update", "take_over", "work"),
)

_source: Final = partial(option, section="Sources")
_output: Final = partial(option, section="Output")
_failing: Final = partial(option, section="Continuing, and failed pages")
_reader: Final = partial(option, section="Readers")
_service: Final = partial(option, section="Service", type=AMOUNT, metavar="SECONDS")
_cluster: Final = partial(option, section="A Ray cluster (--on ray)")
_shown: Final = partial(option, section="Progress and report")
_estimate: Final = partial(option, section="Estimate")


@command(
    "ocrsvc batch scans/ --out results",
    "ocrsvc batch scans/ --dry-run                              estimate time and cost",
    "ocrsvc batch 's3://bucket/*.tar' --out s3://bucket/text --format parquet",
    "ocrsvc batch @list.txt --out results --on http://ocr-1:8000,http://ocr-2:8000",
    "ocrsvc batch --verify --out results                        check what was written",
    "ocrsvc batch --report --out results                        write the report again",
)
@click.argument(
    "sources",
    nargs=-1,
    metavar="SOURCE...",
    help="File, folder, pattern such as 'scans/**/*.png', list (@FILE, or - for standard input), tar, zip or "
    "Parquet file, here or at a URL such as s3://bucket/scans/.",
)
@_source("--column", metavar="NAME", help="Column with the images in Parquet files; detected by default.")
@_source("--include", multiple=True, metavar="PATTERN", help="Read only files named like '*.png'; repeatable.")
@_source("--exclude", multiple=True, metavar="PATTERN", help="Skip files named like '*_old*'; repeatable.")
@_source("--sample", metavar="N|P%", help="Read a random sample: this many pages, or this share of them.")
@_source("--seed", type=int, default=0, metavar="N", help="Seed of the sample (0).")
@_source("--as-planned", is_flag=True, help="Continue with the planned pages although sources have changed.")
@_source("--update", is_flag=True, help="Also read files added since the run was planned.")
@_source("--sorted", is_flag=True, help="Read in the order of file names over all sources.")
@_output("--out", metavar="DEST", help="Folder of the output, or its URL (s3://bucket/name).")
@_output("--format", default="jsonl", metavar="FORMAT[,...]", help=f"{', '.join(BATCH_FORMATS)}; jsonl by default.")
@_output("--part-pages", type=COUNT, default=500, metavar="N", help="Pages per output file (500).")
@_output("--dedupe", is_flag=True, help="Read files with the same content only once.")
@_output("--verify", is_flag=True, help="Read nothing; check that the output has every page exactly once.")
@_failing("--limit", type=COUNT, metavar="N", help="Stop after N pages; the same command continues.")
@_failing("--work", type=FILE, metavar="FOLDER", help="Folder on a local disk for results not yet in the output.")
@_failing("--take-over", is_flag=True, help="Continue another process's shard; only if that process has ended.")
@_failing("--attempts", type=COUNT, default=3, metavar="N", help="Attempts per page before it fails (3).")
@_failing("--retry-failed", is_flag=True, help="Read failed pages again.")
@_failing("--keep-going", is_flag=True, help="Do not stop after 100 failed attempts in a row.")
@_failing("--exit-zero", is_flag=True, help="Exit with 0 instead of 1 if pages have failed.")
@_reader(
    "--on", "--url", default="local", metavar="READER", help="local (default), URL[,URL...], ray, ray://HOST:PORT."
)
@_reader("--shard", metavar="I/N", help="Read every Nth part, starting with part I (from 0).")
@_service("--patience", default=300.0, help="Stop if no service has answered for this long (300).")
@_service("--at-once", type=Number(int, 1, 1000), default=16, metavar="N", help="Concurrent files per service (16).")
@service_access
@_cluster("--actors", type=COUNT, metavar="N", help="Number of actors; by default as many as fit on the cluster.")
@_cluster("--cpus-per-actor", type=AMOUNT, default=1.0, metavar="N", help="CPUs per actor; fractions allowed (1).")
@_cluster("--gpus-per-actor", type=AMOUNT, default=0.0, metavar="N", help="GPUs per actor; fractions allowed (0).")
@_cluster("--actor-options", default="{}", metavar="JSON", help="Further Ray options, such as memory and resources.")
@_cluster("--actor-wait", type=AMOUNT, default=600.0, metavar="SECONDS", help="Longest wait for the first actor (600).")
@reading_options
@_shown("--quiet", is_flag=True, help="Show no progress.")
@_shown("--metrics-port", metavar="[HOST:]PORT", help="Serve Prometheus metrics, by default on 127.0.0.1.")
@_shown("--no-report", is_flag=True, help="Do not write a report at the end.")
@_shown("--report", is_flag=True, help="Only write the run's report again.")
@_estimate("--dry-run", is_flag=True, help="Count pages, read a few, estimate time and cost; write no output.")
@_estimate("--machines", type=Number(int, 1, 10**6), metavar="N", help="Assume N machines, or N times those of --on.")
@_estimate("--price-per-hour", type=AMOUNT, metavar="PRICE", help="Price of this machine, or of all machines of --on.")
def batch(**options: Any) -> int:
    """Read many files into one output, each page exactly once.

    After an interruption the same command continues. The exit code is 0 if everything was read, 1 if pages have failed
    (0 with --exit-zero), 75 if pages are left to read; with --verify it is 65 if the output was changed.
    """
    set_library_environment(os.environ)
    args = SimpleNamespace(**options)
    _check_modes(args)
    if args.dry_run:
        _estimate_run(_request_of(args), args)
        return 0
    destination = open_destination(args.out)
    try:
        if args.verify:
            return _verify(destination)
        if args.report:
            _make_report(destination)
            return 0
        return _read(destination, args)
    except (OSError, sqlite3.Error) as error:
        what = destination.address if isinstance(error, OSError) else f"The work folder of {destination.address}"
        reason = getattr(error, "strerror", None) or error
        raise StoreUnavailable(f"{what} cannot be read or written: {reason}.", _REMEDY) from error


def _check_modes(args: SimpleNamespace) -> None:
    if "" in args.sources or not (args.sources or args.report or args.verify):
        what = "A source is empty: ''." if args.sources else "No source is named."
        raise BadOption(what, "Name files or folders to read.")
    modes = {"--dry-run": args.dry_run, "--verify": args.verify, "--report": args.report}
    if sum(modes.values()) > 1:
        names = " and ".join(name for name in modes if modes[name])
        raise BadOption(f"{names} exclude each other.", "Give one of them.")
    if not args.dry_run and (args.machines is not None or args.price_per_hour is not None):
        raise BadOption("--machines and --price-per-hour need --dry-run.", "Add --dry-run, or omit them.")
    if args.actors is not None and not args.on.startswith("ray"):
        raise BadOption(f"--actors needs a Ray cluster, but --on is {args.on!r}.", "Use --on ray, or omit --actors.")
    if not args.out and not args.dry_run:
        raise BadOption("--out is missing.", "Name the output folder.")


def _request_of(args: SimpleNamespace) -> BatchRequest:
    shard, shards = shard_of(args.shard)
    access, actor_options = args.access, actor_options_of(args.actor_options)
    options = dict(args.reading)
    chosen = options.pop("pages"), args.column, args.include, args.exclude, args.sample, args.seed, args.sorted
    return BatchRequest(
        SourceRequest(args.sources, *chosen, read_settings(os.environ).max_body_bytes),
        cast("Options", options),
        tuple(args.format.split(",")),
        args.on,
        dict(os.environ),
        shard=shard,
        shards=shards,
        keeps_going=args.keep_going,
        cluster=ClusterRequest(args.actors, args.cpus_per_actor, args.gpus_per_actor, actor_options, args.actor_wait),
        services=ServiceAccess(read_key(access.key_file), access.ca, access.certificate, args.patience, args.at_once),
        **{name: getattr(args, name) for name in _REQUEST_FIELDS},
    )


def shard_of(text: str | None) -> tuple[int, int]:
    """Parse I/N into the shard and the number of shards. Raises BadOption."""
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text or "0/1")
    if match is None or int(match[1]) >= int(match[2]):
        raise BadOption(f"--shard is {text!r}: accepted is I/N with I from 0 to N - 1, such as 0/8.")
    return int(match[1]), int(match[2])


def actor_options_of(text: str) -> Mapping[str, Any]:
    """Parse Ray's actor options from JSON. Raises BadOption."""
    try:
        options = json.loads(text)
    except ValueError as error:
        raise BadOption(f"--actor-options is not valid JSON: {error}.") from error
    if not isinstance(options, dict):
        raise BadOption("--actor-options is not a JSON object.", 'Write it as {"memory": 2000000000}.')
    if reserved := [name for name in _RESERVED if name in options]:
        raise BadOption(f"--actor-options must not have {reserved[0]}, which `ocrsvc batch` sets itself.")
    return options


def _read(destination: Destination, args: SimpleNamespace) -> int:
    from ocrsvc.batch.start import open_run

    counts = PlanningCounts()
    with (
        showing(quiet=args.quiet, metrics=args.metrics_port) as progress,
        open_run(destination, _request_of(args), progress, counts) as work,
        _draining(work),
    ):
        for sentence in counts.to_sentences():
            print(visible(f"ocrsvc: {sentence}"), file=sys.stderr)
        outcome = work.execute()
    for sentence in _summary_of(outcome, destination.address, outcome.clock() - outcome.began_s, args.shard):
        print(f"ocrsvc: {sentence}", file=sys.stderr)
    if not args.no_report:
        try:
            _make_report(destination)
        except (OcrsvcError, OSError) as error:
            print(visible(f"ocrsvc: the report could not be written: {error}"), file=sys.stderr)
    return _exit_code(is_complete=outcome.is_complete, failed=outcome.all_failed if not args.exit_zero else 0)


def _summary_of(outcome: RunCounts, address: str, elapsed_s: float, shard: str | None) -> Iterator[str]:
    """Sentences on the result of a run in the output at `address`; `elapsed_s` is the duration of this command."""
    if outcome.is_complete and not outcome.planned:
        why = f"the run has fewer parts than --shard {shard} needs" if shard else "no images or PDFs were found"
        yield f"no pages to read: {why}"
        return
    copied = f", {outcome.copied:,} of them copied from files with the same content" if outcome.copied else ""
    took = "less than a second" if elapsed_s < 1 else duration_of(elapsed_s)
    yield f"{count_of(outcome.done, 'page')} read{copied}, {failures_of(outcome.failed)}, in {took}"
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


def _make_report(destination: Destination) -> None:
    """Write the report of a run, and print its path or URL. Raises OcrsvcError, OSError."""
    from ocrsvc.batch.report import write_report

    print(f"ocrsvc: report in {destination.address.rstrip('/')}/{write_report(destination)}", file=sys.stderr)


@contextmanager
def _draining(work: Run) -> Iterator[None]:
    """On SIGINT or SIGTERM, finish the pages in progress, then stop; a second signal ends the process immediately."""

    def drain(number: int, _frame: object) -> None:
        for other in _SIGNALS:
            signal.signal(other, signal.SIG_DFL)
        name = signal.Signals(number).name
        print(f"\nocrsvc: {name}: finishing pages in progress; repeat to stop at once", file=sys.stderr)
        work.drain()

    before = {number: signal.signal(number, drain) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _verify(destination: Destination) -> int:
    from ocrsvc.batch.verify import verify

    result = verify(destination)
    for problem in result.problems[:_MAX_PROBLEMS]:
        print(visible(problem))
    state = "damaged" if result.problems else "complete" if result.is_complete else "incomplete"
    read = f"{result.done:,} read, {result.failed:,} failed"
    parts = f"{result.finished:,} of {result.parts:,} parts"
    print(f"Output {state}: {count_of(result.pages, 'page')} ({read}), {parts} written.")
    if result.problems:
        print(f"{count_of(len(result.problems), 'problem')}: the output was changed after it was written.")
        return DamagedRun.exit_code
    return _exit_code(is_complete=result.is_complete, failed=result.failed)


def _exit_code(*, is_complete: bool, failed: int) -> int:
    return int(failed > 0) if is_complete else _MORE_TO_READ


def _estimate_run(request: BatchRequest, args: SimpleNamespace) -> None:
    """Count the sources, read a sample, and print an estimate for all pages. Raises OcrsvcError."""
    from ocrsvc.batch.sources.load_files import SourceLoader
    from ocrsvc.batch.sources.plan_files import find_sources
    from ocrsvc.batch.start import open_reader

    skipped = PlanningCounts()
    counts = count_sources(find_sources(request.sources, skipped))
    counted = (*counts.kinds.items(), ("all", counts.total))
    rows = [(kind, f"{files:,}", f"{pages:,}", bytes_of(size)) for kind, (files, pages, size) in counted]
    lines = table(("kind", "files", "pages", "bytes"), rows, to_right=True)
    print(visible("\n".join([*lines, *skipped.to_sentences()])))
    if not counts.sample:
        return
    with closing(SourceLoader(request.sources.max_file_bytes)) as load, closing(open_reader(request, load)) as reader:
        reader.start()
        pace = measure_pace(reader, counts.sample)
    if pace is not None:
        print("\n".join(_estimate_lines(counts.total[1], pace, args)))


def _estimate_lines(pages: int, pace: Pace, args: SimpleNamespace) -> Iterator[str]:
    failed = f" ({pace.failed} failed)" if pace.failed else ""
    rate = f"{rate_of(pace.pages_per_s)} pages/s (± {pace.spread * 100:.0f} %), {pace.at_once} at once"
    yield ""
    yield f"{count_of(pace.pages, 'page')} read{failed}: {rate}"
    # The number of machines in a service or cluster is unknown: estimate for multiples of those that read now.
    one, several = ("this machine", "such machines") if args.on == "local" else ("the present readers", "times as many")
    for count in (1, 10, 100) if args.machines is None else sorted({1, args.machines}):
        name = one if count == 1 else f"{count} {several}"
        yield f"{name:22} {duration_of(pace.seconds_for(pages, count))}"
    if (price := args.price_per_hour) is not None:
        hours = pace.seconds_for(pages) / 3600
        yield f"{'price':22} {hours * price:,.2f} ({hours:,.2g} hours at {price:g})"
