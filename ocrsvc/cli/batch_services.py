"""Arguments of `ocrsvc batch` about services that read its pages."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ocrsvc.cli import api_key
from ocrsvc.cli.number_arguments import amount, whole_number

if TYPE_CHECKING:
    from ocrsvc.batch.readers.open_reader import ServiceAccess


def add_service_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    group = parser.add_argument_group("services (--on URL[,URL…])")
    group.add_argument(
        "--patience",
        type=amount(1e9, "number of seconds"),
        default=300.0,
        metavar="SECONDS",
        help="how long no service may answer before the run stops (300)",
    )
    group.add_argument(
        "--at-once",
        type=whole_number(1000),
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
    from ocrsvc.batch.readers.open_reader import ServiceAccess

    own = None if args.cert is None else (args.cert, args.cert_key or args.cert)
    return ServiceAccess(api_key.read_key(args.key_file), args.ca, own, args.patience, args.at_once)
