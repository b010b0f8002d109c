"""The options of `ocrsvc batch`, and the request that they make."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import click

from ocrsvc.batch.outputs.output_formats import BATCH_FORMATS
from ocrsvc.batch.request import BatchRequest, ClusterRequest, ServiceAccess, SourceRequest
from ocrsvc.cli.options import AMOUNT, COUNT, FILE, Number, option
from ocrsvc.cli.reading_options import reading_options
from ocrsvc.cli.service import read_key, service_access
from ocrsvc.errors import BadOption
from ocrsvc.settings.load import read_settings

_AT_ONCE: Final = Number(int, 1, 1000, "a whole number from 1 to 1000")
_MACHINES: Final = Number(int, 1, 1_000_000, "a whole number from 1 to 1000000")
_MODES: Final = ("--dry-run", "--verify", "--report")
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
_reader: Final = partial(option, section="Who reads")
_service: Final = partial(option, section="Service", type=AMOUNT, metavar="SECONDS")
_cluster: Final = partial(option, section="A Ray cluster (--on ray)")
_shown: Final = partial(option, section="Progress and report")
_estimate: Final = partial(option, section="What it will take")

_OPTIONS: Final = (
    click.argument(
        "sources",
        nargs=-1,
        metavar="SOURCE...",
        help="File, folder, pattern such as 'scans/**/*.png', list (@FILE, or - for standard input), tar, zip, Parquet "
        "or Arrow file, here or at a URL such as s3://bucket/scans/.",
    ),
    _source(
        "--column", metavar="NAME", help="Column of Parquet and Arrow files that holds the images; found by default."
    ),
    _source("--include", multiple=True, metavar="PATTERN", help="Only names such as '*.png'; may be repeated."),
    _source("--exclude", multiple=True, metavar="PATTERN", help="No names such as '*_old*'; may be repeated."),
    _source("--sample", metavar="N|P%", help="Read a random sample: this many pages, or this share of them."),
    _source("--seed", type=int, default=0, metavar="N", help="Seed of the sample (0)."),
    _source("--as-planned", is_flag=True, help="Go on with what was planned, whatever became of the sources since."),
    _source("--update", is_flag=True, help="Read files, too, that are new since the run was planned."),
    _source("--sorted", is_flag=True, help="Read in the order of names over all sources."),
    _output("--out", metavar="DEST", help="Folder of the output, or its URL (s3://bucket/name)."),
    _output("--format", default="jsonl", metavar="FORMAT[,...]", help=f"{', '.join(BATCH_FORMATS)}; jsonl by default."),
    _output("--part-pages", type=COUNT, default=500, metavar="N", help="Pages per output file (500)."),
    _output("--dedupe", is_flag=True, help="Read files of the same content once."),
    _output("--verify", is_flag=True, help="Read nothing: check that every page is in the output once."),
    _failing("--limit", type=COUNT, metavar="N", help="Stop after N pages; the same command goes on."),
    _failing(
        "--work", type=FILE, metavar="FOLDER", help="Folder on a local disk for results that are not in the output yet."
    ),
    _failing("--take-over", is_flag=True, help="Continue a shard whose process elsewhere has certainly ended."),
    _failing("--attempts", type=COUNT, default=3, metavar="N", help="Tries of a page before it fails (3)."),
    _failing("--retry-failed", is_flag=True, help="Try pages that have failed again."),
    _failing("--keep-going", is_flag=True, help="Fail pages also when 100 tries in a row fail, and do not end then."),
    _failing("--exit-zero", is_flag=True, help="End with 0, not 1, when pages have failed."),
    _reader("--on", default="local", metavar="WHO", help="local (the default), URL[,URL...], ray, ray://HOST:PORT."),
    _reader("--shard", metavar="I/N", help="Read only every Nth part, beginning with the Ith (from 0)."),
    _service("--patience", default=300.0, help="How long no service may answer before the run stops (300)."),
    _service(
        "--at-once", type=_AT_ONCE, default=16, metavar="N", help="Files under way at each, until it refuses (16)."
    ),
    service_access,
    _cluster(
        "--actors", type=COUNT, metavar="N", help="Number of actors; by default all that the cluster has room for."
    ),
    _cluster("--cpus-per-actor", type=AMOUNT, default=1.0, metavar="N", help="CPUs of each, or a part (1)."),
    _cluster("--gpus-per-actor", type=AMOUNT, default=0.0, metavar="N", help="GPUs of each, or a part (0)."),
    _cluster("--actor-options", default="{}", metavar="JSON", help="More of Ray's options, such as memory, resources."),
    _cluster("--actor-wait", type=AMOUNT, default=600.0, metavar="SECONDS", help="How long to wait for any (600)."),
    reading_options,
    _shown("--quiet", is_flag=True, help="Show no progress."),
    _shown("--metrics-port", metavar="[HOST:]PORT", help="Serve metrics for Prometheus, on 127.0.0.1 by default."),
    _shown("--no-report", is_flag=True, help="Write no report at the end."),
    _shown("--report", is_flag=True, help="Write the report of the run again, and nothing else."),
    _estimate("--dry-run", is_flag=True, help="Count pages, read a few, estimate time and cost; write nothing."),
    _estimate(
        "--machines", type=_MACHINES, metavar="N", help="Estimate for N such machines, or N times what --on names."
    ),
    _estimate(
        "--price-per-hour", type=AMOUNT, metavar="PRICE", help="Price of this machine, or of all that --on names."
    ),
)


def batch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """All of them, for a function that takes them by name."""
    for one in reversed(_OPTIONS):
        command = one(command)
    return command


def check_modes(args: SimpleNamespace) -> None:
    """Raises BadOption where the command lacks what it needs."""
    if not (args.sources or args.report or args.verify):
        raise BadOption("No source is named.", "Name files or folders that are to be read.")
    if "" in args.sources:
        raise BadOption("A source is empty: ''.", "Name files or folders that are to be read.")
    modes = [name for name in _MODES if getattr(args, name[2:].replace("-", "_"))]
    if len(modes) > 1:
        raise BadOption(f"{' and '.join(modes)} are asked for.", "Give one of them.")
    if not args.dry_run and (args.machines is not None or args.price_per_hour is not None):
        raise BadOption("--machines and --price-per-hour are for --dry-run alone.", "Add --dry-run, or leave them out.")
    if args.actors is not None and not args.on.startswith("ray"):
        raise BadOption(f"--actors is for a Ray cluster, and --on is {args.on!r}.", "Add --on ray, or leave it out.")
    if not args.out and not args.dry_run:
        raise BadOption("--out is missing.", "Name the folder for the output.")


def request_of(args: SimpleNamespace) -> BatchRequest:
    """What the options ask for. Raises BadOption, SettingsError, OperatorError."""
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
    for name in _OWN:
        if name in options:
            raise BadOption(f"--actor-options has {name}, which `ocrsvc batch` says itself.")
    return options
