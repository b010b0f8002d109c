"""`ocrsvc health`: whether a running service is ready, as an exit code; for the health checks of containers."""

from __future__ import annotations

import argparse
import http.client
from typing import Final

from ocrsvc.cli.status import address_of, ask
from ocrsvc.errors import OperatorError
from ocrsvc.settings.load import read_settings

HELP: Final = "end with 0 when a running service is ready"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `ocrsvc health`."""
    parser.add_argument("url", nargs="?", help="http://host:port or unix:path; by default where OCRSVC_BIND listens")


def run(args: argparse.Namespace) -> int:
    """Ask, and print the answer; raises OperatorError when the service does not answer or is not ready."""
    url = args.url or address_of(read_settings().bind)
    status, body = ask(url, "/readyz")
    if status != http.client.OK:
        raise OperatorError(f"{url} answers {status}.", "Its log says why no engine is warm.")
    print(body.decode().strip())
    return 0
