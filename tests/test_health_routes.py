"""The routes of one worker's health, readiness and version."""

from __future__ import annotations

import platform
from importlib.util import find_spec

import pytest
from web_support import INFO, client_raising, json_of, running_app

from ocrsvc import __version__
from ocrsvc.errors import NotReady

NOT_LOADED = NotReady("The engine is not loaded yet.")


def test_a_worker_without_an_engine_is_alive() -> None:
    response = client_raising(NOT_LOADED).get("/healthz")
    assert (response.status_code, json_of(response)) == (200, {"status": "ok"})


def test_a_worker_without_an_engine_is_not_ready_and_says_when_to_ask_again() -> None:
    response = client_raising(NOT_LOADED).get("/readyz")
    assert (response.status_code, response.content_type) == (503, "application/problem+json")
    assert json_of(response)["code"] == "not_ready"
    assert int(response.headers["Retry-After"]) >= 1


def test_a_worker_is_ready_when_its_engine_is_warm_and_no_longer_when_it_stops() -> None:
    with running_app() as app:
        response = app.test_client().get("/readyz")
        assert (response.status_code, json_of(response)) == (200, {"status": "ready"})
    assert app.test_client().get("/readyz").status_code == 503


def test_the_version_names_the_service_the_engine_and_the_libraries() -> None:
    with running_app() as app:
        answer = json_of(app.test_client().get("/version"))
    assert (answer["name"], answer["version"]) == ("ocrsvc", __version__)
    assert (answer["engine"]["name"], answer["engine"]["provider"]) == (INFO.name, INFO.provider)
    assert answer["libraries"]["python"] == platform.python_version()
    assert {"flask", "numpy"} <= set(answer["libraries"])
    assert ("openvino" in answer["libraries"]) is (find_spec("openvino") is not None)


def test_the_version_can_be_asked_before_the_engine_is_loaded() -> None:
    assert json_of(client_raising(NOT_LOADED).get("/version"))["engine"] is None


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/version", "/openapi.json"])
def test_no_cache_may_keep_what_is_only_true_now(path: str) -> None:
    with running_app() as app:
        response = app.test_client().get(path)
    assert response.headers["Cache-Control"] == "no-store"
    assert response.headers["X-Request-Id"]


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/version", "/openapi.json", "/hi"])
def test_head_is_get_without_the_body(path: str) -> None:
    with running_app() as app:
        get, head = app.test_client().get(path), app.test_client().head(path)
    assert (head.status_code, head.data) == (200, b"")
    assert head.headers["Content-Length"] == get.headers["Content-Length"]
