"""The arguments of commands that ask a service over TLS."""

from __future__ import annotations

import argparse
import ssl
from pathlib import Path

from ocrsvc.tls.client_context import client_context


def add_tls_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare --ca, --cert and --cert-key."""
    parser.add_argument("--ca", type=Path, metavar="FILE", help="authority of the service's certificate, in PEM")
    parser.add_argument("--cert", type=Path, metavar="FILE", help="certificate to show to the service, in PEM")
    parser.add_argument(
        "--cert-key", type=Path, metavar="FILE", help="its key, in PEM; by default in the same file as the certificate"
    )


def context_of(args: argparse.Namespace) -> ssl.SSLContext | None:
    """What they ask for; None for nothing. Raises OperatorError."""
    return client_context(args.ca, args.cert, args.cert_key)
