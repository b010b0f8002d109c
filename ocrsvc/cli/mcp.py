"""`ocrsvc mcp`: tools for assistants that speak the Model Context Protocol, over stdio or HTTP."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ocrsvc.cli.api_key import add_argument, read_key
from ocrsvc.cli.number_arguments import whole_number
from ocrsvc.cli.tls_arguments import add_tls_arguments
from ocrsvc.errors import OperatorError
from ocrsvc.settings.load import read_settings
from ocrsvc.system.thread_plan import plan_for, set_library_environment

if TYPE_CHECKING:
    from ocrsvc.mcp_server.page_sources import PageSource
    from ocrsvc.mcp_server.sources import Sources
    from ocrsvc.pipeline.read import Reader

HELP: Final = "serve the tools read_image and read_document to assistants (MCP)"
_EXTRA: Final = "Install the extra: ocrsvc[mcp]."
_MOST_PAGES: Final = "100000"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `ocrsvc mcp`."""
    parser.add_argument(
        "--http", metavar="HOST:PORT", help="serve streamable HTTP there, at /mcp, instead of standard input and output"
    )
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="with --http: a token that clients send, which others lack"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        action="append",
        metavar="FOLDER",
        help="where files may be read, links out of it excepted; may be repeated. By default the current folder, and "
        "none with --http",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--engine", help="engine to use in this process instead of the one that OCRSVC_ENGINE names")
    where.add_argument("--url", help="address of a service that reads, or of several, with commas between")
    add_argument(parser)
    add_tls_arguments(parser)
    for name, default, what in (
        ("bytes", 64 << 20, "largest file"),
        ("pages", 20, "pages that one call reads at most"),
        ("letters", 50_000, "letters that one call answers at most"),
    ):
        parser.add_argument(
            f"--most-{name}", type=whole_number(), default=default, help=f"{what}; {default} by default"
        )


def run(args: argparse.Namespace) -> int:
    """Serve until the client leaves or a signal comes; logs go to stderr."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    # Before the numeric libraries load, which read the environment once.
    set_library_environment(os.environ)
    try:
        from ocrsvc.mcp_server.server import Limits, make_server
        from ocrsvc.mcp_server.streamable_http import PATH, listen, serve
    except ModuleNotFoundError as error:
        raise OperatorError(f"ocrsvc mcp needs the package {error.name}.", _EXTRA) from error
    source = _page_source(args)
    try:
        server = make_server(source, _sources(args), Limits(args.most_pages, args.most_letters))
        if args.http is None:
            server.run("stdio")
            return 0
        token = read_key(args.token_file) if args.token_file is not None else ""
        with listen(*_address(args.http), token) as listener:
            host, port = listener.getsockname()[:2]
            print(f"MCP at http://{f'[{host}]' if ':' in host else host}:{port}{PATH}", file=sys.stderr, flush=True)
            serve(server, listener, token, args.most_bytes)
    finally:
        source.close()
    return 0


def _sources(args: argparse.Namespace) -> Sources:
    from ocrsvc.mcp_server.sources import Sources
    from ocrsvc.outgoing.policy import policy_of_files

    folders = args.folder or ([Path.cwd()] if args.http is None else [])
    for folder in folders:
        if not folder.is_dir():
            raise OperatorError(f"{folder} is no folder.", "Name one that is there with --folder.")
    settings = read_settings(os.environ)
    return Sources([folder.resolve() for folder in folders], args.most_bytes, policy_of_files(settings), settings.url_s)


def _page_source(args: argparse.Namespace) -> PageSource:
    """A service, or an engine in this process that is opened when it is first needed. Raises OperatorError."""
    from ocrsvc.mcp_server.page_sources import EnginePages, ServicePages

    if not args.url:
        return EnginePages(lambda: _start_reader(args.engine))
    try:
        from ocrsvc.client.client import Client
    except ModuleNotFoundError as error:
        raise OperatorError(f"--url needs the package {error.name}.", "Install the extra: ocrsvc[client].") from error
    own = None if args.cert is None else (args.cert, args.cert_key or args.cert)
    urls: str | list[str] = args.url.split(",") if "," in args.url else args.url
    return ServicePages(Client(urls, api_key=read_key(args.key_file), ca=args.ca, certificate=own))


def _start_reader(engine: str | None) -> Reader:
    """A reader that is warm; raises EngineUnavailable or SettingsError."""
    from ocrsvc.pipeline.read import Reader

    own = {"OCRSVC_MAX_PAGES": _MOST_PAGES} | ({"OCRSVC_ENGINE": engine} if engine else {})
    settings = read_settings(os.environ | own)
    reader = Reader(settings, plan_for(settings, workers=1))
    reader.start()
    return reader


def _address(text: str) -> tuple[str, int]:
    """Raises OperatorError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or len(port) > 5 or int(port) > 65_535:
        raise OperatorError(f"--http is {text!r}.", "Write it as 127.0.0.1:8765.")
    return host.strip("[]"), int(port)
