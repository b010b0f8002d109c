"""With API keys, every route and gRPC method except health requires a key; these tests call all of them."""

import socket
from collections.abc import Iterator, Mapping
from typing import Any

import grpc
import pytest
from flask import Flask
from flask.testing import FlaskClient
from grpc_support import MESSAGES, V2, calling, infer_request, known_model, serving
from keys_support import WRONG, Keys, bearer, keys_in
from support import read_data
from web_support import TEXT, running_app

from ocrsvc.access.key_routes import Routes
from ocrsvc.grpc_server.access import CallAccess
from ocrsvc.grpc_server.server import RpcServer
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.plugins import adapters
from ocrsvc.settings.settings import Settings

ROUTES = read_data("access_routes.json")
HEALTH = frozenset(ROUTES["health"])
RPC_HEALTH = frozenset(ROUTES["health over gRPC"])
# Paths that an adapter routes itself, so that the URL map does not list them.
INNER = ROUTES["within adapters"]
BAD = ("none", "empty", "wrong", "revoked", "expired", "other scope")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keys]:
    with keys_in(tmp_path_factory.mktemp("keys")) as found:
        found.add("gone", "read", "jobs", "operate")
        found.revoke("gone")
        found.add("late", "read", "jobs", "operate", expires_at=found.now_s)
        found.add("reader", "read")
        found.add("worker", "jobs")
        found.add("operator", "operate")
        found.add("all", "read", "jobs", "operate")
        yield found


@pytest.fixture(scope="module")
def app(keys: Keys, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flask]:
    settings = Settings(keys=keys.address, ops="open")
    jobs = JobStore(tmp_path_factory.mktemp("jobs"), 10**6, 60.0)
    with running_app(settings, keys.gate, jobs) as running:
        yield running


def headers_of(keys: Keys, kind: str, path: str) -> Mapping[str, str]:
    """Request headers of this kind of caller."""
    if kind in {"none", "empty"}:
        return {"X-API-Key": ""} if kind == "empty" else {}
    if kind == "other scope":
        reads = not path.startswith(("/ops", "/metrics", "/api/doc/"))
        return bearer(keys.secrets["operator" if reads else "reader"])
    named = {"revoked": "gone", "expired": "late"}
    return bearer(keys.secrets[named[kind]] if kind in named else WRONG)


def all_routes(app: Flask) -> list[tuple[str, str]]:
    """Every (method, path) of the application, and some unknown ones."""
    found = {
        (method, path)
        for rule in app.url_map.iter_rules()
        for path in (rule.rule.translate({ord("<"): None, ord(">"): None}),)
        for method in rule.methods or ()
    }
    found |= {(method, path) for path in (*INNER, *HEALTH) for method in ("GET", "POST", "HEAD", "OPTIONS")}
    return sorted(found | {("GET", "/nowhere"), ("DELETE", "/v1/ocr"), ("POST", "/healthz"), ("GET", "//ops/workers")})


def send(client: FlaskClient, method: str, path: str, headers: Mapping[str, str]) -> Any:
    """Send a request with exactly this path; the test client would parse a path with // as a host name."""
    return client.open("/", method=method, headers=headers, environ_overrides={"PATH_INFO": path})


# Every valid key may read descriptions of the service, whatever its scope.
FOR_ANY = ("/", "/index.html", "/docs", "/version", "/openapi.json", "/nowhere", "/healthz", "/readyz", "/static/")


@pytest.mark.parametrize("kind", BAD)
def test_all_routes_but_health_need_a_valid_key(app: Flask, keys: Keys, kind: str) -> None:
    client, answered = app.test_client(), set()
    for method, path in all_routes(app):
        response = send(client, method, path, headers_of(keys, kind, path.replace("//", "/")))
        any_scope = kind == "other scope" and (path in FOR_ANY or path.startswith("/static/"))
        # A valid key of any scope may learn that a route does not exist.
        expected = {403, 404, 405} if kind == "other scope" else {401}
        if path in HEALTH:
            answered.add(path)
            assert response.status_code == 200 if method in {"GET", "HEAD", "OPTIONS"} else 405, (method, path)
        elif not any_scope:
            # This includes OPTIONS and methods that the route does not allow.
            assert response.status_code in expected, (method, path, response.status_code)
            assert TEXT not in response.text
            assert ("WWW-Authenticate" in response.headers) is (response.status_code == 401)
    assert answered == HEALTH


def test_a_valid_key_reaches_every_route(app: Flask, keys: Keys) -> None:
    client = app.test_client()
    for method, path in all_routes(app):
        response = send(client, method, path, bearer(keys.secrets["all"]))
        assert response.status_code not in {401, 403}, (method, path, response.status_code)


@pytest.mark.parametrize(("name", "path", "status"), ROUTES["a scope allows its routes and the description"])
def test_a_scope_allows_its_routes_and_the_description(
    app: Flask, keys: Keys, name: str, path: str, status: int
) -> None:
    response = send(app.test_client(), "GET", path, bearer(keys.secrets[name]))
    assert response.status_code == status


def test_only_health_routes_are_open() -> None:
    assert Routes(adapters()).health == HEALTH | RPC_HEALTH
    assert Routes(()).health == {"/healthz", "/readyz", "/grpc.health.v1.Health/Check"}


def test_settings_with_keys_need_a_gate(keys: Keys) -> None:
    with pytest.raises(ValueError, match="API keys"), running_app(Settings(keys=keys.address)):
        pass


# gRPC


@pytest.fixture
def rpc(keys: Keys) -> Iterator[tuple[RpcServer, int]]:
    """A server of all services over the known engine, protected by keys, and its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    access, port = CallAccess(keys.gate, Routes(adapters())), int(listener.getsockname()[1])
    with known_model() as methods, serving(methods, listener, access) as server:
        yield server, port


def call(channel: grpc.Channel, path: str, metadata: Mapping[str, str]) -> grpc.StatusCode:
    """The status of a call with an empty message; for a stream, of its first answer."""
    sent = tuple((name.lower(), value) for name, value in metadata.items())
    try:
        if path.endswith("ModelStreamInfer"):
            next(channel.stream_stream(path)(iter([b""]), metadata=sent, timeout=10))
        else:
            channel.unary_unary(path)(b"", metadata=sent, timeout=10)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@pytest.mark.parametrize("kind", BAD)
def test_all_methods_but_health_need_a_valid_key(rpc: tuple[RpcServer, int], keys: Keys, kind: str) -> None:
    server, port = rpc
    refused = grpc.StatusCode.PERMISSION_DENIED if kind == "other scope" else grpc.StatusCode.UNAUTHENTICATED
    with calling(port) as channel:
        paths = (*server.state.methods, "/no.Service/Method", f"/{V2}ServerLive")
        codes = {path: call(channel, path, headers_of(keys, kind, path)) for path in paths}
    # An empty message names no model, hence NOT_FOUND.
    answered = {path for path, code in codes.items() if code in {grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND}}
    assert answered == RPC_HEALTH
    assert {code for path, code in codes.items() if path not in answered} == {refused}


def test_a_valid_key_reaches_every_method(rpc: tuple[RpcServer, int], keys: Keys) -> None:
    server, port = rpc
    closed = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
    with calling(port) as channel:
        for path in server.state.methods:
            assert call(channel, path, bearer(keys.secrets["reader"])) not in closed, path
        request = infer_request(b"no image").SerializeToString()
        infer = channel.unary_unary(f"{V2}ModelInfer", response_deserializer=MESSAGES["inference.ModelInferResponse"])
        with pytest.raises(grpc.RpcError) as raised:
            infer(request, metadata=(("x-api-key", keys.secrets["reader"]),), timeout=10)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
