"""Arguments that say how services are asked that read the pages of a batch run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ocrsvc.cli import api_key

if TYPE_CHECKING:
    from ocrsvc.batch.readers.opening import ServiceAccess


def add_service_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    group = parser.add_argument_group("services (--on URL[,URL…])")
    group.add_argument(
        "--patience",
        type=_seconds,
        default=300.0,
        metavar="SECONDS",
        help="how long no service may answer before the run stops (300)",
    )
    group.add_argument(
        "--at-once",
        type=_count,
        default=16,
        metavar="N",
        help="files under way at each service, until it refuses one (16)",
    )
    api_key.add_argument(group)
    group.add_argument("--ca", type=Path, metavar="FILE", help="authority of the services' certificates, in PEM")
    group.add_argument("--cert", type=Path, metavar="FILE", help="own certificate for services that ask, in PEM")
    group.add_argument("--cert-key", type=Path, metavar="FILE", help="its key; by default in the same file")


def service_access_of(args: argparse.Namespace) -> ServiceAccess:
    """How services are asked. Raises OperatorError for a key file that cannot be used."""
    from ocrsvc.batch.readers.opening import ServiceAccess

    own = None if args.cert is None else (args.cert, args.cert_key or args.cert)
    return ServiceAccess(api_key.read_key(args.key_file), args.ca, own, args.patience, args.at_once)


def _seconds(text: str) -> float:
    if not text.replace(".", "", 1).isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return float(text)


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to 1000")
    return int(text)
