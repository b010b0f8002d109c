"""Arguments of `ocrsvc batch` that say which files and pages are read."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ocrsvc.settings.load import read_settings

if TYPE_CHECKING:
    from ocrsvc.batch.sources.source_files import SourceRequest


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    parser.add_argument(
        "sources",
        nargs="*",
        metavar="SOURCE",
        help="file, folder, pattern such as 'scans/**/*.png', list (@FILE, or - for standard input), tar, zip, Parquet "
        "or Arrow file, on this machine or at a URL such as s3://bucket/scans/",
    )
    group = parser.add_argument_group("sources")
    group.add_argument(
        "--column", metavar="NAME", help="column of Parquet and Arrow files that holds the images; found, if left out"
    )
    group.add_argument("--include", action="append", default=[], metavar="PATTERN", help="only names such as '*.png'")
    group.add_argument("--exclude", action="append", default=[], metavar="PATTERN", help="no names such as '*_old*'")
    group.add_argument("--sample", metavar="N|P%", help="read so many pages, or about that share of them, by chance")
    group.add_argument("--seed", type=_whole, metavar="N", default=0, help="another number gives another sample (0)")
    group.add_argument(
        "--as-planned", action="store_true", help="go on with what was planned, whatever became of the sources since"
    )
    group.add_argument("--update", action="store_true", help="read files, too, that are new since the run was planned")
    group.add_argument("--sorted", action="store_true", help="in the order of names over all sources")


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None


def source_request_of(args: argparse.Namespace, environment: Mapping[str, str]) -> SourceRequest:
    """What they ask for. Raises SettingsError."""
    from ocrsvc.batch.sources.source_files import SourceRequest

    return SourceRequest(
        tuple(args.sources),
        args.pages,
        args.column,
        tuple(args.include),
        tuple(args.exclude),
        args.sample,
        args.seed,
        args.sorted,
        read_settings(environment).max_body_bytes,
    )
