"""`ocrsvc health`: whether a running service is ready, as an exit code; for the health checks of containers."""

from __future__ import annotations

import argparse
import http.client
from typing import Final

from ocrsvc.cli.status import ask, refusal_of, service_of
from ocrsvc.cli.tls_arguments import add_tls_arguments

HELP: Final = "end with 0 when a running service is ready"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `ocrsvc health`."""
    parser.add_argument(
        "url", nargs="?", help="http://host:port, https://… or unix:path; by default where OCRSVC_BIND listens"
    )
    add_tls_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Ask, and print the answer; raises OperatorError when the service does not answer or is not ready."""
    url, context = service_of(args)
    status, body = ask(url, "/readyz", context=context)
    if status != http.client.OK:
        raise refusal_of(url, status, body)
    print(body.decode().strip())
    return 0
