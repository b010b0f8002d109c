"""`ocrsvc mcp`: serves tools to assistants by the Model Context Protocol, over stdio or HTTP."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ocrsvc.cli.options import COUNT, FILE, check_at_most_one, command, option
from ocrsvc.cli.service import Access, read_key, service_access
from ocrsvc.errors import OperatorError
from ocrsvc.settings.load import read_settings
from ocrsvc.system.thread_plan import set_library_environment

if TYPE_CHECKING:
    from ocrsvc.integrations.mcp_files import PageSource, Sources

_http: Final = partial(option, section="Over HTTP")
_limit: Final = partial(option, section="Limits", type=COUNT, metavar="N", show_default=True)


@command(
    "ocrsvc mcp --folder ~/scans",
    "ocrsvc mcp --url http://127.0.0.1:8000",
    "ocrsvc mcp --http 127.0.0.1:8765 --token-file token --folder ~/scans",
)
@_http("--http", metavar="HOST:PORT", help="Serve streamable HTTP at /mcp instead of standard input and output.")
@_http("--token-file", type=FILE, help="File with a token that clients must send.")
@option(
    "--folder",
    "folders",
    type=FILE,
    multiple=True,
    metavar="FOLDER",
    help="Folder whose files may be read, without links that leave it; repeatable. By default the current folder, none "
    "with --http.",
)
@option("--engine", metavar="NAME", help="Engine to use instead of OCRSVC_ENGINE.")
@option("--url", section="Service", metavar="URL[,URL...]", help="Service or services to read with instead.")
@service_access
@_limit("--most-bytes", "max_bytes", default=64 << 20, help="Largest file.")
@_limit("--most-pages", "max_pages", default=20, help="Maximum pages per call.")
@_limit("--most-letters", "max_letters", default=50_000, help="Maximum characters in a call's result.")
def mcp(  # noqa: PLR0913  a command's options are its arguments
    *,
    http: str | None,
    token_file: Path | None,
    folders: Sequence[Path],
    engine: str | None,
    url: str | None,
    access: Access,
    max_bytes: int,
    max_pages: int,
    max_letters: int,
) -> None:
    """Serve page-reading tools to assistants (MCP) until the client disconnects or a signal comes."""
    check_at_most_one(engine=engine, url=url)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    set_library_environment(os.environ)
    try:
        from ocrsvc.cli.read import start_reader
        from ocrsvc.integrations.mcp_files import EnginePages, ServicePages
        from ocrsvc.integrations.mcp_server import PATH, listen, make_server, serve
    except ModuleNotFoundError as error:
        remedy = "Install the extra: pip install '.[mcp]'."
        raise OperatorError(f"ocrsvc mcp needs the package {error.name}.", remedy) from error
    # An engine in this process starts when a tool is first called.
    source: PageSource = ServicePages(access.client(url)) if url else EnginePages(lambda: start_reader(engine))
    try:
        files = _sources(folders or ([Path.cwd()] if http is None else []), max_bytes)
        server = make_server(source, files, max_pages, max_letters)
        if http is None:
            server.run("stdio")
            return
        token = read_key(token_file) if token_file is not None else ""
        with listen(*_address(http), token) as listener:
            host, port = listener.getsockname()[:2]
            print(f"MCP at http://{f'[{host}]' if ':' in host else host}:{port}{PATH}", file=sys.stderr, flush=True)
            serve(server, listener, token, max_bytes)
    finally:
        source.close()


def _sources(folders: Sequence[Path], max_bytes: int) -> Sources:
    from ocrsvc.connections.policy import policy_of_files
    from ocrsvc.integrations.mcp_files import Sources

    if wrong := [folder for folder in folders if not folder.is_dir()]:
        raise OperatorError(f"{wrong[0]} is not a folder.", "Name an existing folder with --folder.")
    settings = read_settings(os.environ)
    return Sources([folder.resolve() for folder in folders], max_bytes, policy_of_files(settings), settings.url_s)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or len(port) > 5 or int(port) > 65_535:
        raise OperatorError(f"--http is {text!r}.", "Write it as 127.0.0.1:8765.")
    return host.strip("[]"), int(port)
