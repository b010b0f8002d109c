"""A real service with API keys: wrong keys are refused before the body, keys are never logged, clients send keys."""

import itertools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import pytest
import requests
from grpc_support import MESSAGES, V2, infer_request, unary
from image_support import png
from keys_support import WRONG, bearer
from support import Server, ocrsvc, reserved_port, run_server, start_server, wait_until

from ocrsvc.access.api_keys import KeyEntry, KeyLimits, Scope
from ocrsvc.access.key_store import KeyStore
from ocrsvc.access.manage_keys import add_key, check_store, open_store, revoke_key, rotate_key
from ocrsvc.client import Client
from ocrsvc.errors import KeyRefused, QuotaExceeded, ScopeMissing

PAGE = png()
OCR = "/v1/ocr"
FORM = "multipart/form-data; boundary=x"
# Larger than the kernel's socket buffers, so a client could not send it unread.
LARGE_BYTES = 50_000_000
_ANSWER_S = 20.0
# Less than the 10 s of a long poll: long polls must not use the threads reserved for health checks.
_LIVENESS_S = 8.0


@dataclass(slots=True)
class KeyedServer:
    """A running service with one worker and a key store; `secrets` are the added keys by name."""

    server: Server
    rpc: str
    store: KeyStore
    secrets: dict[str, str]

    def add(self, name: str, *scopes: Scope, **limits: int) -> str:
        """Add a key and wait until the service accepts it."""
        secret = add_key(self.store, KeyEntry(name, frozenset(scopes or ("read",)), limits=KeyLimits(**limits)))
        self.secrets[name] = secret
        wait_until(lambda: self.status_of(secret) == 200, f"the key {name}")
        return secret

    def status_of(self, secret: str) -> int:
        """HTTP status of a request that every valid key permits."""
        return httpx.get(f"{self.server.url}/version", headers=bearer(secret), timeout=_ANSWER_S).status_code


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedServer]:
    address = f"sqlite:{tmp_path_factory.mktemp('keys') / 'keys.db'}"
    env = {"OCRSVC_WORKERS": "1", "OCRSVC_KEYS": address, "OCRSVC_ACCESS_LOG": "json"}
    with reserved_port() as port, run_server(env | {"OCRSVC_GRPC_BIND": (rpc := f"127.0.0.1:{port}")}) as server:
        store = open_store(address)
        found = KeyedServer(server, rpc, store, {})
        found.add("reader")
        found.add("operator", "operate")
        yield found
        store.close()


def raw(service: KeyedServer, *lines: str, path: str = OCR, kind: str = "image/png") -> bytes:
    """Send only the head of a request; returns the first bytes of the response."""
    head = "\r\n".join((f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Type: {kind}", *lines, "", ""))
    with service.server.connect() as wire:
        wire.sendall(head.encode("latin-1"))
        return wire.recv(65536)


@pytest.mark.parametrize(
    ("key", "status"), [("", 401), (f"Authorization: Bearer {WRONG}", 401), ("X-API-Key: {operator}", 403)]
)
@pytest.mark.parametrize("framing", [f"Content-Length: {LARGE_BYTES}", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("expect", ["", "Expect: 100-continue"])
def test_without_a_valid_key_the_body_is_not_received(
    service: KeyedServer, key: str, status: int, framing: str, expect: str
) -> None:
    lines = [line.format(**service.secrets) for line in (key, framing, expect) if line]
    answer = raw(service, *lines)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert b"Connection: close" in answer
    assert b'"code":"%s"' % {401: b"key_refused" if key else b"key_missing", 403: b"scope_missing"}[status] in answer


def test_the_body_is_received_with_a_valid_key_or_if_it_may_contain_one(service: KeyedServer) -> None:
    expecting = (f"Content-Length: {len(PAGE)}", "Expect: 100-continue")
    assert raw(service, f"X-API-Key: {service.secrets['reader']}", *expecting).startswith(b"HTTP/1.1 100 ")
    for path, kind, status in (
        # A percent-encoded path is decoded first.
        ("/parse%2Fimage", FORM, 100),
        # A query key belongs to Google's format, not to this path's.
        (f"/parse/image?key={WRONG}", FORM, 100),
        (f"/v1/images:annotate?key={service.secrets['reader']}", "application/json", 100),
        (f"/v1/images:annotate?key={WRONG}", "application/json", 401),
        (f"{OCR}?key={service.secrets['reader']}", "application/json", 401),
        ("/parse/image", "application/json", 401),
        ("/parse/images", FORM, 401),
    ):
        answer = raw(service, *expecting, path=path, kind=kind)
        assert answer.startswith(b"HTTP/1.1 %d " % status), (path, kind)


@pytest.mark.parametrize("name", ["revoked", "rotated"])
def test_an_expired_secret_ends_http_and_grpc_streams(service: KeyedServer, name: str) -> None:
    secret = service.add(name, concurrency=1)
    sent = infer_request(PAGE).SerializeToString()
    with grpc.insecure_channel(service.rpc) as channel:
        requests = iter(lambda: sent, None)
        answers = channel.stream_stream(f"{V2}ModelStreamInfer")(requests, metadata=(("x-api-key", secret),))
        next(answers)
        if name == "revoked":
            revoke_key(service.store, name, 1.0)
        else:
            rotate_key(service.store, name, 0.0, time.time())
        wait_until(lambda: service.status_of(secret) == 401)
        with pytest.raises(grpc.RpcError) as raised:
            for _ in itertools.islice(answers, 1000):
                pass
        assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_grpc_call_with_a_wrong_key_ends_before_its_message_arrives(service: KeyedServer) -> None:
    with grpc.insecure_channel(service.rpc) as channel:
        # A client that sends no message and does not end its stream.
        done = threading.Event()
        silence = iter(lambda: done.wait(_ANSWER_S) and b"", b"")
        answers = channel.stream_stream(f"{V2}ModelStreamInfer")(silence, metadata=(("x-api-key", WRONG),))
        with pytest.raises(grpc.RpcError) as raised:
            next(answers)
        done.set()
        assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.usefixtures("one_day")
def test_grpc_pages_count_and_quota_errors_have_retry_times(service: KeyedServer) -> None:
    metadata = (("authorization", f"Bearer {service.add('tensors', pages_a_day=3)}"),)
    with grpc.insecure_channel(service.rpc) as channel:
        infer = unary(channel, f"{V2}ModelInfer", "inference.ModelInferResponse")
        infer(infer_request(PAGE, PAGE), metadata=metadata)
        with pytest.raises(grpc.RpcError) as raised:
            infer(infer_request(PAGE, PAGE), metadata=metadata)
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        trailers = dict(raised.value.trailing_metadata())
        assert 0 < int(trailers["grpc-retry-pushback-ms"]) <= 86_400_000
        infer(infer_request(PAGE), metadata=metadata)
        with pytest.raises(grpc.RpcError):
            infer(infer_request(PAGE), metadata=metadata)
        ready = unary(channel, f"{V2}ServerReady", "inference.ServerReadyResponse")
        assert ready(MESSAGES["inference.ServerReadyRequest"]()).ready


@pytest.mark.usefixtures("one_day")
def test_python_client_sends_its_key_and_raises_key_errors(service: KeyedServer) -> None:
    with Client(service.server.url, api_key=service.add("client", pages_a_day=1)) as client:
        assert client.read(PAGE).pages
        with pytest.raises(QuotaExceeded):
            client.read(PAGE)
    for secret, refusal in ((WRONG, KeyRefused), (service.secrets["operator"], ScopeMissing)):
        with Client(service.server.url, api_key=secret) as client, pytest.raises(refusal):
            client.read(PAGE)


def test_commands_send_a_key(service: KeyedServer, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(service.secrets["operator"])
    image = tmp_path / "page.png"
    image.write_bytes(PAGE)

    status = ocrsvc("status", service.server.url, "--key-file", str(tmp_path / "key"))
    assert (status.returncode, "1 workers" in status.stdout) == (0, True), status.stderr
    refused = ocrsvc("status", service.server.url)
    assert (refused.returncode, "--key-file" in refused.stderr) == (78, True)
    read = ocrsvc("read", str(image), "--url", service.server.url, OCRSVC_API_KEY=service.secrets["reader"])
    assert (read.returncode, read.stdout.strip() != "") == (0, True), read.stderr
    missing = ocrsvc("read", str(image), "--url", service.server.url)
    assert (missing.returncode, "--key-file" in missing.stderr) == (77, True)


def test_secrets_appear_in_no_log_or_metric(service: KeyedServer) -> None:
    secret = service.secrets["reader"]
    image = {"base64Image": "data:image/png;base64,AAAA"}
    with httpx.Client(base_url=service.server.url, timeout=_ANSWER_S) as client:
        for sent in ({}, bearer(service.secrets["operator"])):
            client.post(OCR, content=PAGE, headers=sent)
        for key in (secret, WRONG):
            client.post(OCR, content=PAGE, headers=bearer(key))
            client.post(OCR, content=PAGE, auth=("anna", key))
            client.get("/parse/imageurl", params={"apikey": key})
            client.get("/parse/imageurl", params={"apikey": key}, headers={"Accept": key, "X-Request-Id": "last"})
            client.post("/parse/image", data=image | {"apikey": key})
        metrics = client.get("/metrics", headers=bearer(service.secrets["operator"])).text
        denylist = client.get("/ops/denylist", headers=bearer(service.secrets["operator"])).text
    # Malformed request heads that contain a key.
    for line in (f"Authorization : Bearer {secret}", f"Authorization: Bearer {secret}\x01", f" {secret}"):
        raw(service, line, "Content-Length: 0")
    # A URL with an unescaped space, as some clients send.
    assert raw(service, "Content-Length: 0", path=f"/parse/imageurl?url=a b&apikey={secret}").startswith(
        b"HTTP/1.1 400 "
    )
    service.server.wait_for(f"Invalid HTTP Version: 'b&apikey={secret[:17]}…")
    with grpc.insecure_channel(service.rpc) as channel, pytest.raises(grpc.RpcError):
        channel.unary_unary(f"{V2}ModelInfer")(b"", metadata=(("x-api-key", WRONG),), timeout=_ANSWER_S)
    service.server.wait_for('"id":"last"', count=2)
    written = service.server.log + metrics + denylist
    assert secret not in written
    assert WRONG not in written
    assert secret[-20:] not in written
    events = [json.loads(line) for line in service.server.lines if line.startswith('{"time"')]
    assert {"ok", "key_missing", "key_refused", "scope_missing"} <= {event["code"] for event in events}


def test_the_access_log_names_the_key_of_each_request(service: KeyedServer) -> None:
    with httpx.Client(base_url=service.server.url, timeout=_ANSWER_S) as client:
        for key in (service.secrets["reader"], WRONG):
            client.post(OCR, content=PAGE, headers={**bearer(key), "X-Request-Id": "over-http"})
        client.get("/metrics", headers={**bearer(service.secrets["operator"]), "X-Request-Id": "over-http"})
    metadata = (("x-api-key", service.secrets["reader"]), ("x-request-id", "over-grpc"))
    with grpc.insecure_channel(service.rpc) as channel:
        unary(channel, f"{V2}ModelInfer", "inference.ModelInferResponse")(infer_request(PAGE), metadata=metadata)
    for id_, keys in (("over-http", ["reader", None, "operator"]), ("over-grpc", ["reader"])):
        service.server.wait_for(f'"id":"{id_}"', count=len(keys))
        lines = [line for line in service.server.lines if f'"id":"{id_}"' in line]
        assert [json.loads(line).get("key") for line in lines] == keys


def test_liveness_is_answered_during_long_polls_with_escaped_paths(tmp_path: Path) -> None:
    address = f"sqlite:{tmp_path / 'keys.db'}"
    check_store(address)
    store = open_store(address)
    key = bearer(add_key(store, KeyEntry("slow", frozenset({"jobs"}), limits=KeyLimits(requests_per_s=1))))
    store.close()
    env = {"OCRSVC_WORKERS": "2", "OCRSVC_KEYS": address, "OCRSVC_JOBS_DIR": str(tmp_path)}
    with start_server(env | {"OCRSVC_FAKE_LATENCY_S": "600"}) as server, ExitStack() as stack:
        server.wait_for("READY in", count=2)
        sent = {"files": ("a.png", PAGE)}
        job = requests.post(f"{server.url}/v1/convert/file/async", files=sent, headers=key, timeout=_ANSWER_S)
        for version in ("/v1", "%76%31") * 4:
            wire = stack.enter_context(server.connect())
            path = f"/{version}/status/poll/{job.json()['task_id']}?wait=10"
            lines = (f"GET {path} HTTP/1.1", "Host: localhost", f"Authorization: {key['Authorization']}", "", "")
            wire.sendall("\r\n".join(lines).encode())
        for _ in range(20):
            assert requests.get(f"{server.url}/healthz", timeout=_LIVENESS_S).status_code == 200
