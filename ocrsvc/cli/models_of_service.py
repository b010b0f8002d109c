"""`ocrsvc models list --url`: the models of a running service, as it tells its clients."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ocrsvc.cli.api_key import add_argument, read_key
from ocrsvc.cli.tls_arguments import add_tls_arguments
from ocrsvc.errors import OperatorError


def add_service_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare --url, and what a service may want of who asks it."""
    parser.add_argument("--url", help="address of a service whose models are listed, instead of those in a folder")
    add_argument(parser)
    add_tls_arguments(parser)


def entries_of_service(args: argparse.Namespace) -> list[Mapping[str, Any]]:
    """An entry for each version, without what a service keeps to itself. Raises OcrsvcError."""
    try:
        from ocrsvc.client import Client
    except ModuleNotFoundError as error:
        raise OperatorError(f"--url needs the package {error.name}.", "Install the extra: ocrsvc[client].") from error

    own = None if args.cert is None else (args.cert, args.cert_key or args.cert)
    with Client(args.url, api_key=read_key(args.key_file), ca=args.ca, certificate=own) as client:
        listed = client.models()
    return [asdict(one) | {"state": one.state.lower(), "reason": ""} for one in listed.models]
