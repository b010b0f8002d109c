"""Unmodified clients of the wire formats read a page from a real server with the fake engine.

Each client runs in a separate process and must print what that engine reads. If a client is not available, its recorded
requests are sent again, and the answers must contain what it needs. `make clients` fetches all available clients, runs
these tests, and writes docs/clients.md.
"""

import dataclasses
import operator
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from client_rows import CLIENTS, PIPELINE_RPC_PORT, Client, Target
from fetch_clients import ClientUnavailable, Cost, fetched_path
from image_support import png
from PIL import Image
from recorded_clients import FOLDER, Recorder, replay
from support import Server, start_server

from ocrsvc.plugins import adapters

# Ports of clients that cannot be configured to use another one.
HARD_WIRED = frozenset(client.port for client in CLIENTS if client.port)
# Set by benchmarks/clients.py: also run clients that start slowly; and record all requests again.
RUNS_ALL = os.environ.get("OCRSVC_CLIENTS_ALL") == "1"
RECORDS = os.environ.get("OCRSVC_CLIENTS_RECORD") == "1"
PAGES = ("page.png", "zh-dream.png", "img1.png", "tests/test_files/ch_en_num.jpg", "pages/page.png")


@pytest.fixture(scope="module")
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, recorder: Recorder) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("client")
    for name in PAGES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png())
    # Umi-OCR's document demo reads XXXXX.pdf.
    for name in ("XXXXX.pdf", "document.pdf"):
        Image.new("L", (64, 32), 200).save(folder / name)
    # Where a PDF's text layer may be used, only pages with visible content are read.
    scan = Image.new("L", (64, 32), 200)
    scan.paste(0, (16, 8, 48, 16))
    scan.save(folder / "scan.pdf")
    with ExitStack() as stack:
        free = frozenset(port for port in HARD_WIRED if _is_free(port))
        other = _started(stack, {"OCRSVC_TRWEBOCR_BOXES": "poly"})
        http, grpc = _serve(stack, frozenset() if RECORDS else free)
        other.wait_for("READY in")
        target = Target(http, other.url.removeprefix("http://"), grpc, folder, free)
        yield _watched(target, recorder, stack) if RECORDS else target


def _serve(stack: ExitStack, ports: frozenset[int]) -> tuple[str, str]:
    """Start the service, on these ports too; returns its HTTP and gRPC addresses on other ports."""
    names = [name for name, entry in adapters().items() if entry.port in ports]
    binds = [part for name in names for part in ("-b", f"127.0.0.1:{adapters()[name].port}")]
    grpc = [f"127.0.0.1:{port}" for port in (0, *({PIPELINE_RPC_PORT} & ports))]
    variables = {"OCRSVC_USUAL_PORTS": ",".join(names), "OCRSVC_GRPC_BIND": ",".join(grpc)}
    server = _started(stack, variables, binds)
    server.wait_for("READY in")
    found = (re.findall(rf"{before}(127\.0\.0\.1:(\d+))", server.log) for before in ("http://", "gRPC at: "))
    http, grpc = (next(address for address, port in each if int(port) not in ports) for each in found)
    return http, grpc


def _started(stack: ExitStack, env: Mapping[str, str], args: Sequence[str] = ()) -> Server:
    """Start a service without waiting for READY; the stack stops it and requires exit code 0."""
    server = stack.enter_context(start_server(env, args))

    def end() -> None:
        assert server.stop() == 0, server.log

    stack.callback(end)
    return server


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _watched(target: Target, recorder: Recorder, stack: ExitStack) -> Target:
    """The same addresses behind the recorder, which also listens on the hard-wired ports."""

    def watch(server: str, port: int = 0) -> str:
        listener = socket.create_server(("127.0.0.1", port))
        stack.enter_context(recorder.listening(listener, server))
        return f"127.0.0.1:{listener.getsockname()[1]}"

    for port in target.ports:
        watch(target.grpc if port == PIPELINE_RPC_PORT else target.http, port)
    return dataclasses.replace(target, http=watch(target.http), poly=watch(target.poly), grpc=watch(target.grpc))


@pytest.mark.parametrize("client", [client for client in CLIENTS if client.repeats], ids=operator.attrgetter("key"))
def test_recorded_client_requests_are_served_and_contain_no_local_paths(client: Client, target: Target) -> None:
    _replay(client, target)
    sent = _recording(client).read_bytes()
    assert len(sent) < 10_000
    assert not re.search(rb"/(tmp|root|home|Users|var)/|(?<![\d.])(?!127\.)\d{1,3}(\.\d{1,3}){3}(?![\d.])", sent)


@pytest.mark.parametrize("client", CLIENTS, ids=operator.attrgetter("key"))
def test_real_client_or_its_recording_is_served(
    client: Client, target: Target, recorder: Recorder, record_property: Callable[[str, object], None]
) -> None:
    for name, value in (("format", client.adapter), ("client", client.name), ("version", client.source.version)):
        record_property(name, value)
    try:
        at = _fetched(client, target)
    except ClientUnavailable as lack:
        record_property("lack", str(lack))
        _replay_or_skip(client, target, str(lack))
        record_property("result", "recorded")
        return
    recorder.begin()
    printed = client.run(target, at)
    assert [text for text in client.said if text not in printed] == [], printed
    record_property("result", "passed")
    if RECORDS and client.repeats:
        recorder.save(client.key, png())


def _fetched(client: Client, target: Target) -> Path:
    if client.port is not None and client.port not in target.ports:
        raise ClientUnavailable(f"port {client.port}, the only one it can use, is taken")
    most = Cost.MINUTES if RUNS_ALL else Cost.SECONDS
    for source in client.sources:
        if source.cost is Cost.MINUTES and not RUNS_ALL:
            raise ClientUnavailable("it is large and starts slowly; make clients runs it")
        fetched_path(source, most)
    return client.sources[0].path()


def _replay_or_skip(client: Client, target: Target, lack: str) -> None:
    """Send the recorded requests; skips the test with the reason if there are none."""
    if not client.repeats:
        pytest.skip(f"{lack}; its requests depend on the answers, so there is no recording")
    _replay(client, target)


def _replay(client: Client, target: Target) -> None:
    """Send the recorded requests; the answers must contain what the client needs."""
    http = target.poly if client.key.startswith("chineseocr_lite") else target.http
    answers = replay(_recording(client), http, target.grpc)
    everything = b"".join(answer.body for answer in answers)
    assert [text for text in client.answered if text.encode() not in everything] == [], everything
    assert sum(not answer.fine for answer in answers) == client.refused, answers


def _recording(client: Client) -> Path:
    (found,) = FOLDER.glob(f"{client.key}.*")
    return found
