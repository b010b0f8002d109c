"""Host names, pages of other sites, and X-Content-Type-Options: nosniff on every response."""

import re
from pathlib import Path

import pytest
import requests
from flask.testing import FlaskClient
from image_support import png
from support import Server, data_of, read_to_end
from web_support import running_app

from ocrsvc.http.origins import is_host_allowed
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.settings.settings import Settings

PAGE = "https://page.example"
SERVER_ENV = {"OCRSVC_HOSTS": ""}


@pytest.mark.parametrize(("host", "allowed", "listens_at", "answered"), data_of("host_names")["hosts"])
def test_accepted_host_names(host: str, allowed: list[str], listens_at: str, *, answered: bool) -> None:
    assert is_host_allowed(host, tuple(allowed), listens_at) is answered


def test_a_service_on_loopback_refuses_other_host_names(server: Server) -> None:
    assert requests.get(f"{server.url}/healthz", timeout=30).status_code == 200
    for path in ("/healthz", "/api/ocr/get_options", "/metrics", "/"):
        answer = requests.get(server.url + path, headers={"Host": "evil.example:80"}, timeout=30)
        assert (answer.status_code, "OCRSVC_HOSTS" in answer.text) == (403, True), path


def response_headers(client: FlaskClient, path: str, method: str = "POST", origin: str = PAGE) -> dict[str, str]:
    headers = {"Origin": origin, "Access-Control-Request-Headers": "Content-Type"}
    return dict(client.open(path, method=method, headers=headers).headers)


@pytest.mark.parametrize("path", ["/v1/ocr", "/api/ocr", "/api/tr-run/", "/parse/image"])
def test_other_sites_read_responses_only_where_cors_allows_it(path: str) -> None:
    name = "Access-Control-Allow-Origin"
    for cors, expected in (((), None), ((PAGE,), PAGE), (("*",), "*"), (("https://other.example",), None)):
        with running_app(Settings(cors=cors)) as app:
            for method in ("POST", "OPTIONS"):
                headers = response_headers(app.test_client(), path, method)
                assert headers.get(name) == expected
                is_allowed = headers.get("Access-Control-Allow-Headers") == "Content-Type"
                assert is_allowed is bool(expected and method != "POST")


@pytest.mark.parametrize("path", ["/metrics", "/ops/workers", "/ops/overview", "/ops/denylist"])
def test_operators_routes_refuse_pages_of_other_sites(path: str) -> None:
    with running_app(Settings(cors=("*",))) as app:
        client = app.test_client()
        for origin, status in ((PAGE, 403), ("null", 403), ("http://localhost", 200)):
            assert client.get(path, headers={"Origin": origin}).status_code == status
        assert client.delete("/ops/denylist", headers={"Origin": PAGE}).status_code == 403
        assert client.get(path).status_code == 200


NAME, VALUE = "X-Content-Type-Options", "nosniff"


def test_every_response_has_the_security_header(tmp_path: Path) -> None:
    with running_app(Settings(ops="open"), jobs=JobStore(tmp_path, 10**8, 3600.0)) as app:
        client, seen = app.test_client(), set()
        for rule in app.url_map.iter_rules():
            path = re.sub(r"<[^>]*>", "x", rule.rule)
            for method in (rule.methods or set()) | {"OPTIONS", "PATCH"}:
                with client.open(path, method=method) as answer:
                    assert answer.headers.getlist(NAME) == [VALUE], (method, path)
                    seen.add(answer.status_code)
        assert client.get("/unknown").headers.getlist(NAME) == [VALUE]
    assert {200, 400, 404, 405} <= seen


def test_files_streams_and_304_responses_have_the_security_header() -> None:
    with running_app() as app:
        client = app.test_client()
        for query in ("", "?format=text", "?format=ndjson", "?format=pdf", "?format=zip"):
            with client.post(f"/v1/ocr{query}", data=png()) as answer:
                assert answer.headers.getlist(NAME) == [VALUE]
        tag = client.get("/static/page.css").headers["ETag"]
        answer = client.get("/static/page.css", headers={"If-None-Match": tag})
        assert (answer.status_code, answer.headers.getlist(NAME)) == (304, [VALUE])


def test_responses_to_malformed_heads_have_the_security_header(server: Server) -> None:
    heads = {
        b"GET / HTTP/1.1\r\n\r\n": b"400",
        b"GET /" + bytes(9000).replace(b"\0", b"a") + b" HTTP/1.1\r\nHost: x\r\n\r\n": b"414",
        b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: odd\r\n\r\n": b"501",
        b"GET / HTTP/1.1\r\nHost: x\r\nA: " + bytes(1 << 17).replace(b"\0", b"a"): b"431",
    }
    for head, status in heads.items():
        with server.connect() as wire:
            wire.sendall(head)
            answer = read_to_end(wire)
        assert answer.split(b" ")[1] == status, answer
        assert answer.count(f"{NAME}: {VALUE}\r\n".encode()) == 1
