"""The service over TLS with real clients: HTTP, gRPC, client certificates, certificate renewal."""

import shutil
import signal
import ssl
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import cv2
import grpc
import httpx
import numpy as np
import pytest
import requests
from grpc_support import MESSAGES, V2, unary
from image_support import png
from support import Server, read_to_end, repeating, run_server, start_server, wait_until
from tls_support import RSA, Authority, environment

from ocrsvc.access.api_keys import KeyEntry
from ocrsvc.access.manage_keys import add_key, open_store
from ocrsvc.cli import tune
from ocrsvc.cli.main import run
from ocrsvc.cli.service import fetch
from ocrsvc.client.client import Client
from ocrsvc.connections.certificates import TlsFiles

_ANSWER_S = 30.0
# Less than the 10 s that a handshake may take.
_PROMPT_S = 8.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Iterator[Server]:
    """A service that serves clients with and without a certificate, over HTTP and gRPC."""
    env = {
        **environment(authority.issue("module")),
        "OCRSVC_TLS_CLIENT_CA": str(authority.file),
        "OCRSVC_TLS_CLIENTS": "optional",
        "OCRSVC_GRPC_BIND": "127.0.0.1:0",
        "OCRSVC_WORKERS": "1",
        "OCRSVC_OPS": "open",
    }
    with run_server(env) as running:
        yield running


def grpc_address(server: Server) -> str:
    return server.wait_for(r"Listening for gRPC at: (\S+)")[1]


@contextmanager
def session_of(authority: Authority, own: TlsFiles | None = None) -> Iterator[requests.Session]:
    with requests.Session() as session:
        # An authority named by the environment would take precedence.
        session.trust_env, session.verify = False, str(authority.file)
        if own is not None:
            session.cert = (str(own.certificate), str(own.key))
        yield session


@contextmanager
def connect(server: Server, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    with (
        server.connect() as wire,
        context.wrap_socket(wire, server_hostname="localhost", suppress_ragged_eofs=False) as tls,
    ):
        yield tls


def test_https_responses_have_security_headers(server: Server, authority: Authority) -> None:
    with session_of(authority) as session:
        answer = session.post(f"{server.url}/v1/ocr", data=png(), timeout=_ANSWER_S)
    assert (answer.status_code, answer.headers["Strict-Transport-Security"]) == (200, "max-age=31536000")
    assert (answer.headers["X-Content-Type-Options"], answer.headers["Referrer-Policy"]) == ("nosniff", "no-referrer")
    with connect(server, authority.client(None, "h2", "http/1.1")) as tls:
        assert (tls.version(), tls.selected_alpn_protocol()) == ("TLSv1.3", "http/1.1")


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_curl_exchanges_large_bodies(server: Server, authority: Authority, version: str, tmp_path: Path) -> None:
    page = tmp_path / "page.bmp"
    # An uncompressed file of 6 MB.
    cv2.imwrite(str(page), np.full((2000, 1000, 3), 255, np.uint8))
    ask = ("curl", "-sS", "--fail", f"--tlsv{version}", "--tls-max", version, "--cacert", str(authority.file))
    send = ("--data-binary", f"@{page}", "-w", "%{http_code} %{size_upload}", "-o", str(tmp_path / "out"))
    command = [*ask, *send, f"{server.url}/v1/ocr"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    assert (done.stdout, done.stderr) == (f"200 {page.stat().st_size}", "")
    with session_of(authority) as session:
        document = session.get(f"{server.url}/openapi.json", timeout=_ANSWER_S)
    assert document.status_code == 200
    assert len(document.content) > 40_000


def is_ready(address: str, credentials: grpc.ChannelCredentials, method: str = "ServerReady", **fields: str) -> bool:
    """Whether a call over a grpcio channel succeeds; False if the channel or the call is refused."""
    with grpc.secure_channel(address, credentials) as channel:
        call = unary(channel, f"{V2}{method}", f"inference.{method}Response")
        try:
            call(MESSAGES[f"inference.{method}Request"](**fields), timeout=_ANSWER_S)
        except grpc.RpcError:
            return False
    return True


def test_all_clients_can_use_tls(server: Server, authority: Authority, capsys: pytest.CaptureFixture[str]) -> None:
    with Client(server.url, ca=authority.file) as client:
        assert client.read(png()).text
    assert is_ready(grpc_address(server), grpc.ssl_channel_credentials(authority.file.read_bytes()))
    answered_s = tune.send(server.url, tune.Load([png()], clients=2, seconds=0.0), until_s=0.0)
    assert None not in answered_s
    assert run(["status", server.url, "--ca", str(authority.file)]) == 0
    assert "1 workers" in capsys.readouterr().out


def test_health_command_accepts_only_the_configured_certificate(
    server: Server, authority: Authority, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    host, port = server.address
    monkeypatch.setenv("OCRSVC_BIND", f"{host}:{port}")
    monkeypatch.setenv("OCRSVC_TLS_CERTIFICATE", str(authority.file.with_name("module.pem")))
    assert run(["health"]) == 0
    assert "ready" in capsys.readouterr().out
    # A service with another certificate at this address is refused.
    monkeypatch.setenv("OCRSVC_TLS_CERTIFICATE", str(authority.issue("elsewhere").certificate))
    assert run(["health"]) == 69
    assert "CERTIFICATE_VERIFY_FAILED" in capsys.readouterr().err


def test_plain_http_gets_an_error_and_plain_grpc_is_closed(server: Server) -> None:
    answer = requests.get(server.url.replace("https", "http"), timeout=_ANSWER_S)
    assert (answer.status_code, answer.headers["Connection"]) == (400, "close")
    assert "https://" in answer.text
    with grpc.insecure_channel(grpc_address(server)) as channel:
        ready = unary(channel, f"{V2}ServerReady", "inference.ServerReadyResponse")
        with pytest.raises(grpc.RpcError) as refused:
            ready(MESSAGES["inference.ServerReadyRequest"](), timeout=_ANSWER_S)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_an_unknown_authoritys_certificate_is_refused(server: Server, authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path).issue("stranger")
    with session_of(authority, stranger) as session, pytest.raises(requests.ConnectionError):
        session.get(f"{server.url}/healthz", timeout=_ANSWER_S)
    with session_of(authority, authority.issue("theirs")) as session:
        assert session.get(f"{server.url}/healthz", timeout=_ANSWER_S).status_code == 200
    with session_of(authority) as session:
        numbers = session.get(f"{server.url}/metrics", timeout=_ANSWER_S).text
    assert 'ocrsvc_tls_handshakes_total{outcome="refused"}' in numbers
    assert "ocrsvc_tls_certificate_not_after_timestamp_seconds" in numbers


def half_hello(authority: Authority) -> bytes:
    outgoing = ssl.MemoryBIO()
    tls = authority.client().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def test_incomplete_handshakes_do_not_delay_other_clients(server: Server, authority: Authority) -> None:
    hello = half_hello(authority)
    with ExitStack() as stack, httpx.Client(verify=authority.client()) as client:
        for number in range(200):
            wire = stack.enter_context(server.connect())
            # Clients that send nothing, stop within the ClientHello, or never answer the server's first message.
            wire.sendall((b"", hello[:100], hello)[number % 3])
        times_s = []
        for _ in range(50):
            began_s = time.monotonic()
            assert client.get(f"{server.url}/healthz", timeout=_ANSWER_S).status_code == 200
            times_s.append(time.monotonic() - began_s)
        assert max(times_s) < _PROMPT_S, statistics.quantiles(times_s)


def test_half_handshakes_are_closed_at_the_connection_limit(authority: Authority) -> None:
    env = {**environment(authority.issue("crowded")), "OCRSVC_WORKERS": "1"}
    args = ("--worker-connections", "12", "--threads", "4")
    with run_server(env, args) as server, ExitStack() as stack, session_of(authority) as session:
        hello = half_hello(authority)
        for _ in range(12):
            stack.enter_context(server.connect()).sendall(hello)
        began_s = time.monotonic()
        assert session.get(f"{server.url}/healthz", timeout=_ANSWER_S).status_code == 200
        # Otherwise it would wait for the handshake timeout of 10 s.
        assert time.monotonic() - began_s < 8


@pytest.mark.parametrize(
    ("sent", "status"),
    [(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close", b"200 OK"), (b"no request at all", b"400 Bad Request")],
)
def test_tls_responses_end_with_close_notify(server: Server, authority: Authority, sent: bytes, status: bytes) -> None:
    with connect(server, authority.client()) as tls:
        tls.sendall(sent + b"\r\n\r\n")
        # Without close_notify, read_to_end would raise ssl.SSLEOFError.
        assert read_to_end(tls).startswith(b"HTTP/1.1 %b\r\n" % status)


def test_close_notify_with_a_request_closes_after_the_response(server: Server, authority: Authority) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = authority.client().wrap_bio(to_client, to_server, server_hostname="localhost")
    with server.connect() as wire:
        while not tls.version() or to_server.pending:
            with suppress(ssl.SSLWantReadError):
                tls.do_handshake()
            wire.sendall(to_server.read())
            if not tls.version():
                to_client.write(wire.recv(1 << 16))
        tls.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with suppress(ssl.SSLWantReadError):
            tls.unwrap()
        wire.sendall(to_server.read())
        to_client.write(read_to_end(wire))
    assert tls.read(1 << 16).startswith(b"HTTP/1.1 200 OK\r\n")


@contextmanager
def load(server: Server, authority: Authority) -> Iterator[list[str]]:
    """Run two clients in a loop, one with keep-alive; yields the outcome of each request."""
    outcomes: list[str] = []
    pause = threading.Event()

    def ask(client: httpx.Client) -> None:
        # Pause between requests, so that new workers get processor time.
        pause.wait(0.005)
        try:
            answer = client.post(f"{server.url}/v1/ocr", content=png(), timeout=_ANSWER_S)
            outcomes.append("ok" if answer.status_code == 200 else answer.text)
        except httpx.HTTPError as error:
            outcomes.append(repr(error))

    with ExitStack() as stack:
        for headers in ({}, {"Connection": "close"}):
            client = stack.enter_context(httpx.Client(verify=authority.client(), headers=headers))
            stack.enter_context(repeating(partial(ask, client)))
        yield outcomes


def serial_of(server: Server, authority: Authority) -> str:
    with connect(server, authority.client()) as tls:
        found = tls.getpeercert()
    assert found is not None
    return str(found["serialNumber"])


def test_certificates_and_workers_are_replaced_under_load(authority: Authority) -> None:
    env = {**environment(authority.issue("renewed")), "OCRSVC_WORKERS": "2", "OCRSVC_MAX_REQUESTS": "60"}
    with run_server(env) as server:
        server.wait_for("READY in", count=2)
        first = serial_of(server, authority)
        with load(server, authority) as outcomes:
            authority.issue("renewed", key_type=RSA)
            server.wait_for("New connections get the new certificate", count=2)
            wait_until(lambda: serial_of(server, authority) != first)
            second = serial_of(server, authority)
            # An unusable key is ignored, also after SIGHUP.
            Path(env["OCRSVC_TLS_KEY"]).write_text("no key")
            server.wait_for("certificates stay as they were: OCRSVC_TLS_KEY is")
            server.process.send_signal(signal.SIGHUP)
            server.wait_for("ocrsvc keeps its settings")
            server.wait_for("WANTS a successor")
            third = serial_of(server, authority)
            authority.issue("renewed")
            server.wait_for("New certificate: ", count=2)
            server.wait_for("READY in", count=4)
            wait_until(lambda: outcomes.count("ok") > 60, "answers over both certificates")
    assert set(outcomes) == {"ok"}
    assert first != second == third, server.log


def test_stopping_worker_sends_close_notify(authority: Authority, tmp_path: Path) -> None:
    env = {**environment(authority.issue("stopping")), "OCRSVC_WORKERS": "1"}
    path = tmp_path / "plain"
    # A stopping worker keeps idle connections for 1 s.
    with start_server(env, ("--keep-alive", "1", "-b", f"unix:{path}")) as server:
        server.wait_for("READY in")
        # Unix sockets do not use TLS.
        assert b"ok" in fetch(f"unix:{path}", "/healthz")
        with connect(server, authority.client()) as tls:
            tls.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert tls.recv(1 << 16).startswith(b"HTTP/1.1 200 OK\r\n")
            server.process.send_signal(signal.SIGTERM)
            assert tls.recv(1) == b""
        assert server.wait_for_exit() == 0


@pytest.fixture(scope="module")
def strict(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service that requires client certificates; CN=loader maps to an API key."""
    keys = f"sqlite:{tmp_path_factory.mktemp('keys') / 'keys.db'}"
    store = open_store(keys)
    add_key(store, KeyEntry("nightly", frozenset({"read"})))
    store.close()
    env = {
        **environment(authority.issue("strict")),
        "OCRSVC_TLS_CLIENT_CA": str(authority.file),
        "OCRSVC_TLS_NAMES": "CN=loader:nightly, DNS=gone.example:revoked",
        "OCRSVC_KEYS": keys,
        "OCRSVC_GRPC_BIND": "127.0.0.1:0",
        "OCRSVC_WORKERS": "1",
    }
    with run_server(env) as running:
        yield running


def test_a_client_without_a_certificate_is_refused_where_one_is_required(strict: Server, authority: Authority) -> None:
    with session_of(authority) as session, pytest.raises(requests.ConnectionError):
        session.get(f"{strict.url}/healthz", timeout=_ANSWER_S)
    assert not is_ready(grpc_address(strict), grpc.ssl_channel_credentials(authority.file.read_bytes()))
    strict.wait_for("A TLS handshake failed: peer did not return a certificate")


@pytest.mark.parametrize(
    ("stem", "names", "statuses"),
    [
        ("loader", ("loader.example",), (200, 200, 403)),
        ("visitor", ("a.example",), (200, 401, 401)),
        ("gone", ("gone.example",), (200, 401, 401)),
    ],
)
def test_client_certificate_maps_to_a_key(
    strict: Server, authority: Authority, stem: str, names: tuple[str, ...], statuses: tuple[int, int, int]
) -> None:
    own = authority.issue(stem, *names, common_name=stem)
    with session_of(authority, own) as session:
        found = (
            session.get(f"{strict.url}/healthz", timeout=_ANSWER_S).status_code,
            session.post(f"{strict.url}/v1/ocr", data=png(), timeout=_ANSWER_S).status_code,
            session.get(f"{strict.url}/metrics", timeout=_ANSWER_S).status_code,
        )
    assert found == statuses
    credentials = grpc.ssl_channel_credentials(
        authority.file.read_bytes(), own.key.read_bytes(), own.certificate.read_bytes()
    )
    assert is_ready(grpc_address(strict), credentials, "ModelMetadata", name="ocr") is (statuses[1] == 200)


def test_client_sends_its_certificate_and_other_origins_are_refused(strict: Server, authority: Authority) -> None:
    own = authority.issue("loader", common_name="loader")
    with Client(strict.url, ca=authority.file, certificate=(own.certificate, own.key)) as client:
        assert client.read(png()).text
    with session_of(authority, own) as session:
        headers = {"Origin": "https://elsewhere.example"}
        answer = session.post(f"{strict.url}/v1/ocr", data=png(), headers=headers, timeout=_ANSWER_S)
    assert (answer.status_code, answer.json()["code"]) == (403, "host_not_allowed")
