"""`ocrsvc mcp` with the official SDK's client: in process, over stdio and over HTTP."""

import asyncio
import json
import os
import re
import sys
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import pytest
from documents import BLACK, GRAY, pdf
from image_support import png
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import MCPServer
from outgoing_support import local_policy, response, serving
from support import ROOT, Server, data_of, run_server
from web_support import TEXT, KnownEngine, as_base64, running_reader

from ocrsvc.cli.main import run
from ocrsvc.connections.policy import OutgoingPolicy
from ocrsvc.imaging.page_ranges import format_ranges
from ocrsvc.integrations.mcp_files import EnginePages, PageResult, Sources
from ocrsvc.integrations.mcp_server import DocumentText, cut, make_server
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import Page
from ocrsvc.settings.settings import Settings

T = TypeVar("T")
SEEN = "200x100 auto True False None"
PNG = png(64, 32)
# PYTHONPATH may add packages to the environment.
_PATH = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
TOKEN = "a-token-of-the-test"


def ask(server: Any, act: Callable[[Client], Awaitable[T]]) -> T:
    async def asked() -> T:
        async with Client(server, read_timeout_seconds=30) as client:
            return await act(client)

    return asyncio.run(asked())


def call(server: Any, name: str, **arguments: object) -> tuple[bool, list[str]]:
    result = ask(server, lambda client: client.call_tool(name, arguments))
    return result.is_error, [content.text for content in result.content if content.type == "text"]


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    with running_reader(Settings(max_pages=100), KnownEngine) as reader:
        yield reader


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files with links to the inside and outside, and a pipe."""
    outside, folder = tmp_path_factory.mktemp("outside"), tmp_path_factory.mktemp("files")
    (outside / "secret.png").write_bytes(PNG)
    (folder / "page.png").write_bytes(PNG)
    (folder / "three.pdf").write_bytes(pdf(GRAY, BLACK, GRAY))
    (folder / "large.png").write_bytes(bytes(200_000))
    (folder / "out.png").symlink_to(outside / "secret.png")
    (folder / "outer").symlink_to(outside)
    (folder / "in.png").symlink_to(folder / "page.png")
    os.mkfifo(folder / "pipe")
    return folder


@pytest.fixture(scope="module")
def sources(folder: Path) -> Sources:
    return Sources([folder], 100_000, OutgoingPolicy(()), 5.0)


@pytest.fixture(scope="module")
def server(reader: Reader, sources: Sources) -> MCPServer:
    return make_server(EnginePages(lambda: reader), sources, 2, 1000)


def test_tools_describe_their_parameters(server: MCPServer) -> None:
    tools = {tool.name: tool for tool in ask(server, lambda client: client.list_tools()).tools}
    assert set(tools) == {"read_image", "read_document"}
    assert set(tools["read_document"].input_schema["properties"]) == {"path", "base64", "url", "pages", "format"}
    assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools.values())


def test_an_image_is_read_by_path_base64_or_allowed_url(server: MCPServer, sources: Sources, reader: Reader) -> None:
    for sent in ({"path": "page.png"}, {"path": "in.png"}, {"base64": as_base64(PNG)}):
        assert call(server, "read_image", **sent) == (False, [f"{TEXT}\n64x32 auto True False None\n"])
    with serving(response(PNG)) as host:
        asked = make_server(EnginePages(lambda: reader), replace(sources, policy=local_policy()), 1, 100)
        assert call(asked, "read_image", url=f"{host.url}/a.png")[0] is False


def test_lines_and_words_have_boxes_on_request(server: MCPServer) -> None:
    _, (_, lines) = call(server, "read_image", path="page.png", lines=True)
    assert json.loads(lines)["lines"][0]["box"] == [[16, 8], [48, 8], [48, 16], [16, 16]]
    assert "words" not in json.loads(lines)["lines"][0]
    _, (_, words) = call(server, "read_image", path="page.png", words=True)
    assert json.loads(words)["lines"][0]["words"][0]["text"] == "True"


def test_a_document_is_read_in_parts_with_a_note_on_what_is_left(server: MCPServer) -> None:
    failed, (text,) = call(server, "read_document", path="three.pdf")
    assert not failed
    assert text.startswith(f"--- page 1 of 3 ---\n{TEXT}\n{SEEN}\n")
    assert "[This page cannot be read: A black page.]" in text
    assert text.endswith("[1 more of the requested pages were not read; call again with pages='3'.]")
    last = call(server, "read_document", path="three.pdf", pages="3")
    assert last == (False, [f"--- page 3 of 3 ---\n{TEXT}\n{SEEN}\n"])


def test_each_page_is_reported_as_progress(server: MCPServer) -> None:
    reported: list[tuple[float, float | None, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        reported.append((progress, total, message))

    sent = {"path": "three.pdf", "pages": "1-"}
    ask(server, lambda client: client.call_tool("read_document", sent, progress_callback=note))
    assert reported == [(1, 2, "page 1 of 2"), (2, 2, "page 2 of 2")]


@pytest.mark.parametrize(("sent", "named"), [*data_of("mcp_refused")["calls"], ({"base64": "A" * 200_000}, "larger")])
def test_forbidden_or_unreadable_files_are_refused(server: MCPServer, sent: dict[str, object], named: str) -> None:
    failed, (text,) = call(server, "read_document", **sent)
    assert (failed, named in text) == (True, True), text


def test_pages_that_do_not_fit_are_listed_and_not_read() -> None:
    whole = DocumentText("text", 10, ((1, 5),))
    page = PageResult(1, 5, 3, Page(10, 10, 0, ()))
    assert [whole.add(page), whole.add(replace(page, number=2))] == [True, False]
    assert whole.text().endswith("[4 more of the requested pages were not read; call again with pages='2-5'.]")
    assert cut("abc", 3) == "abc"
    assert cut("abcd", 3).startswith("abc\n[Truncated to 3 of 4 characters")
    assert format_ranges([1, 2, 3, 7, 9, 10]) == ["1-3", "7", "9-10"]


def test_a_cancelled_call_ends_within_a_page(sources: Sources) -> None:
    ended = threading.Event()

    class Endless:
        def pages(self, *asked: Any, **_more: Any) -> Generator[PageResult, None, None]:
            is_gone = asked[1]
            try:
                while not is_gone():
                    yield PageResult(1, 9, 9, Page(1, 1, 0, ()))
            finally:
                ended.set()

        def close(self) -> None:
            pass

    async def give_up(client: Client) -> None:
        async def leave(progress: float, total: float | None, message: str | None) -> None:
            del progress, total, message
            task.cancel()

        sent = {"base64": as_base64(PNG)}
        task = asyncio.ensure_future(client.call_tool("read_document", sent, progress_callback=leave))
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(ended.wait, 30)

    ask(make_server(Endless(), sources, 9, 1000), give_up)


def test_over_stdio_nothing_but_the_protocol_is_printed(folder: Path) -> None:
    command = ["-m", "ocrsvc", "mcp", "--engine", "fake", "--folder", str(folder)]
    started = StdioServerParameters(command=sys.executable, args=command, env=_PATH)
    assert call(started, "read_image", path="page.png")[1][0].startswith("64x32\n")


class Mcp(Server):
    """A running `ocrsvc mcp --http`; `module` is the module that Python starts."""

    def __init__(self, words: Sequence[str], module: str = "ocrsvc", folder: Path = ROOT) -> None:
        packages = {"PYTHONPATH": os.pathsep.join([_PATH["PYTHONPATH"], str(folder)])}
        super().__init__([module, "mcp", "--http", "127.0.0.1:0", *words], packages, ROOT)
        self.wait_for("MCP at")

    def close(self) -> None:
        self.stop()

    @property
    def url(self) -> str:
        found = re.search(r"MCP at (\S+)", self.log)
        assert found is not None
        return found[1]


def test_over_http_a_service_reads_for_clients_with_the_token(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    words = ["--token-file", str(tmp_path / "token"), "--folder", str(folder)]
    with run_server({"OCRSVC_ENGINE": "fake"}) as service, closing(Mcp([*words, "--url", service.url])) as served:
        assert httpx2.post(served.url, json={}).status_code == 401
        text, places, document = (content.text for content in asyncio.run(_asked(served.url)))
    assert text.startswith("64x32\n")
    assert json.loads(places)["lines_total"] == 2
    assert re.findall(r"--- page (\d) of 7 ---\n200x100", document) == list("234567")


async def _asked(url: str) -> list[Any]:
    http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30)
    async with http, Client(streamable_http_client(url, http_client=http)) as client:
        image = await client.call_tool("read_image", {"path": "page.png", "words": True})
        whole = await client.call_tool("read_document", {"base64": as_base64(pdf(*[GRAY] * 7)), "pages": "2-"})
        return [*image.content, *whole.content]


def test_idle_sessions_are_limited(folder: Path, tmp_path: Path) -> None:
    few = "from ocrsvc.cli.main import run; from ocrsvc.integrations import mcp_server; mcp_server.MAX_SESSIONS = 3"
    (tmp_path / "few_sessions.py").write_text(f"import sys; {few}; run(sys.argv[1:])")
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    begin = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    accept = {"Accept": "application/json, text/event-stream"}
    served = Mcp(["--engine", "fake", "--folder", str(folder)], "few_sessions", tmp_path)
    with closing(served), httpx2.Client(headers=accept, timeout=30) as client:
        begun = [client.post(served.url, json=begin) for _ in range(4)]
        assert [answer.status_code for answer in begun] == [200, 200, 200, 503]
        client.delete(served.url, headers={"Mcp-Session-Id": begun[0].headers["Mcp-Session-Id"]})
        assert client.post(served.url, json=begin).status_code == 200


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--http", "0.0.0.0:0"], "--token-file"),
        (["--http", "here"], "127.0.0.1:8765"),
        (["--folder", "/none"], "not a folder"),
    ],
)
def test_invalid_configuration_stops_the_start(
    words: list[str], named: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logging.basicConfig", lambda **_how: None)
    assert run(["mcp", *words]) == 78
    assert named in capfd.readouterr().err
