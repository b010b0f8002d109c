"""A service on localhost answers to its own names, and no web page of another site reads its answers unless it may."""

from __future__ import annotations

import pytest
import requests
from flask.testing import FlaskClient
from support import run_server
from web_support import json_of, running_app

from ocrsvc.http.origins import is_host_allowed
from ocrsvc.settings.settings import Settings

PAGE = "https://page.example"


@pytest.mark.parametrize(
    ("host", "allowed", "listens_at", "answered"),
    [
        ("127.0.0.1:8000", (), "127.0.0.1", True),
        ("localhost:8000", (), "127.0.0.1", True),
        ("LOCALHOST.", (), "::1", True),
        ("[::1]:8000", (), "::1", True),
        ("127.8.9.1", (), "127.0.0.1", True),
        ("ocr.localhost", (), "127.0.0.1", True),
        ("evil.example:8000", (), "127.0.0.1", False),
        ("127.0.0.1.evil.example", (), "127.0.0.1", False),
        ("10.0.0.5", (), "::ffff:127.0.0.1", False),
        ("evil.example", (), "0.0.0.0", True),
        ("evil.example", (), "10.0.0.5", True),
        ("evil.example", (), "", True),
        ("ocr.example:80", ("ocr.example",), "127.0.0.1", True),
        ("OCR.example", ("ocr.example",), "0.0.0.0", True),
        ("127.0.0.1", ("ocr.example",), "127.0.0.1", False),
        ("[2001:db8::1]:80", ("2001:db8::1",), "::", True),
        ("evil.example", ("*",), "127.0.0.1", True),
    ],
)
def test_which_names_are_answered(host: str, allowed: tuple[str, ...], listens_at: str, *, answered: bool) -> None:
    assert is_host_allowed(host, allowed, listens_at) is answered


def test_a_real_service_on_a_loopback_address_answers_to_no_name_that_points_there() -> None:
    with run_server({"OCRSVC_WORKERS": "1", "OCRSVC_HOSTS": ""}) as server:
        assert requests.get(f"{server.url}/healthz", timeout=30).status_code == 200
        for path in ("/healthz", "/api/ocr/get_options", "/metrics", "/"):
            answer = requests.get(server.url + path, headers={"Host": "evil.example:80"}, timeout=30)
            assert (answer.status_code, "OCRSVC_HOSTS" in answer.text) == (403, True), path


def asked(client: FlaskClient, path: str, method: str = "POST", origin: str = PAGE) -> dict[str, str]:
    headers = {"Origin": origin, "Access-Control-Request-Headers": "Content-Type"}
    return dict(client.open(path, method=method, headers=headers).headers)


@pytest.mark.parametrize("path", ["/v1/ocr", "/api/ocr", "/api/tr-run/", "/parse/image"])
def test_pages_of_other_sites_read_answers_only_where_the_operator_says_so(path: str) -> None:
    name = "Access-Control-Allow-Origin"
    for cors, expected in (((), None), ((PAGE,), PAGE), (("*",), "*"), (("https://other.example",), None)):
        with running_app(Settings(cors=cors)) as app:
            for method in ("POST", "OPTIONS"):
                headers = asked(app.test_client(), path, method)
                assert headers.get(name) == expected
                assert (headers.get("Access-Control-Allow-Headers") == "Content-Type") is bool(
                    expected and method != "POST"
                )


@pytest.mark.parametrize("path", ["/metrics", "/ops/workers", "/ops/quarantine"])
def test_operators_routes_refuse_pages_of_other_sites(path: str) -> None:
    with running_app(Settings(cors=("*",))) as app:
        client = app.test_client()
        refused = client.get(path, headers={"Origin": PAGE})
        assert (refused.status_code, json_of(refused)["code"]) == (403, "host_not_allowed")
        assert client.get(path, headers={"Origin": "null"}).status_code == 403
        assert client.get(path, headers={"Origin": "http://localhost"}).status_code == 200
        assert client.get(path).status_code == 200
