"""Admission of requests, and release of the resources that an admitted request holds."""

import io
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from flask import Flask
from image_support import png
from support import data_of, wait_until
from web_support import HeldEngine, json_of, running_reader

from ocrsvc.app import create_app
from ocrsvc.http.request import Request
from ocrsvc.pipeline.read import Reader
from ocrsvc.settings.settings import Settings

SOON_S = 30.0
PNG = png()


@contextmanager
def gated_app(**settings: Any) -> Iterator[tuple[Flask, HeldEngine, Reader]]:
    engine, chosen = HeldEngine(), Settings(**settings)
    with running_reader(chosen, opener=lambda: engine, threads=1) as reader:
        try:
            yield create_app(chosen, reader), engine, reader
        finally:
            engine.go.set()


def post(app: Flask, data: bytes = PNG, path: str = "/v1/ocr", **more: Any) -> Any:
    return app.test_client().post(path, data=data, content_type="image/png", **more)


def from_address(address: str) -> dict[str, Any]:
    return {"environ_overrides": {"REMOTE_ADDR": address}}


@contextmanager
def under_way(app: Flask, engine: HeldEngine, **more: Any) -> Iterator[Future[Any]]:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(post, app, **more)
        try:
            assert engine.shown.acquire(timeout=SOON_S)
            yield asked
        finally:
            engine.go.set()
        assert asked.result(SOON_S).status_code == 200


def caller_of(environ: dict[str, Any], header: str) -> str:
    return Request(environ, Settings(caller_header=header)).caller


class UnreadBody(io.RawIOBase):
    """A body that fails the test if it is read."""

    def readinto(self, _buffer: Any) -> int:
        raise AssertionError("the body was read")


@pytest.mark.parametrize(("path", "member"), [("/v1/ocr", "status"), ("/api/tr-run/", "code"), ("/api/trocr", None)])
def test_a_caller_over_its_limit_gets_429_and_retry_after_from_every_adapter(path: str, member: str | None) -> None:
    with gated_app(caller_requests=1) as (app, engine, _), under_way(app, engine, **from_address("10.0.0.1")):
        refused = post(app, path=path, **from_address("10.0.0.1"))
        assert (refused.status_code, int(refused.headers["Retry-After"]) >= 1) == (429, True)
        if member:
            assert json_of(refused)[member] == 429


def test_each_caller_has_a_limit_and_responses_free_it() -> None:
    with gated_app(caller_requests=1) as (app, engine, _):
        with under_way(app, engine, **from_address("10.0.0.1")):
            assert post(app, b"junk", **from_address("10.0.0.2")).status_code == 415
            assert app.test_client().get("/healthz", **from_address("10.0.0.1")).status_code == 200
        for data, status in ((PNG, 200), (b"junk", 415), (b"", 400), (PNG, 200)):
            assert post(app, data, **from_address("10.0.0.1")).status_code == status


@pytest.mark.parametrize(("header", "sent", "expected"), data_of("callers")["headers"])
def test_the_caller_is_the_headers_last_entry_or_the_address(header: str, sent: dict[str, str], expected: str) -> None:
    assert caller_of({"REMOTE_ADDR": "127.0.0.1", **sent}, header) == expected


@pytest.mark.parametrize(("address", "expected"), data_of("callers")["addresses"])
def test_addresses_of_one_ipv6_network_are_one_caller(address: str, expected: str) -> None:
    assert caller_of({"REMOTE_ADDR": address}, "") == expected
    sent = {"REMOTE_ADDR": "192.0.2.1", "HTTP_X_REAL_IP": "2001:db8::1"}
    assert caller_of(sent, "X-Real-IP") == "2001:db8::1", "a header's value is used unchanged"


def test_a_full_queue_refuses_before_the_body_is_read() -> None:
    with gated_app(queue_size=1) as (app, engine, reader), under_way(app, engine), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(post, app)
        wait_until(lambda: reader.waiting() == 1)
        refused = post(app, environ_overrides={"wsgi.input": UnreadBody(), "CONTENT_LENGTH": "0"})
        assert (refused.status_code, json_of(refused)["code"]) == (503, "queue_full")
        assert int(refused.headers["Retry-After"]) >= 1
        engine.go.set()
        assert asked.result(SOON_S).status_code == 200


def test_bodies_share_a_budget_and_always_release_it() -> None:
    large = PNG + bytes(40_000)
    with gated_app(request_memory_bytes=70_000, max_body_bytes=60_000) as (app, engine, _):
        with under_way(app, engine, data=large):
            refused = post(app, large)
            assert (refused.status_code, json_of(refused)["code"]) == (503, "queue_full")
            assert post(app, b"small junk").status_code == 415
        for data, status in ((bytes(50_000), 415), (large[:41_000], 200), (bytes(60_001), 413), (large, 200)) * 3:
            assert post(app, data).status_code == status
    # The largest allowed body is accepted even if it exceeds the budget.
    with gated_app(request_memory_bytes=1024) as (app, engine, _):
        engine.go.set()
        assert post(app, PNG + bytes(100_000)).status_code == 200


@pytest.mark.parametrize("sent", ["urgent", "", "batch, interactive"])
@pytest.mark.parametrize("path", ["/v1/ocr", "/api/tr-run/", "/api/trocr"])
def test_an_unknown_priority_is_refused_by_every_adapter(path: str, sent: str) -> None:
    with gated_app() as (app, *_):
        assert post(app, path=path, headers={"X-Priority": sent}).status_code == 400


@pytest.mark.parametrize("how", [{"headers": {"X-Priority": "Batch"}}, {"query_string": {"priority": "batch"}}])
def test_batch_requests_cannot_take_all_places(how: dict[str, Any]) -> None:
    with gated_app(queue_size=4) as (app, engine, reader), under_way(app, engine), ThreadPoolExecutor(4) as pool:
        batch = [pool.submit(post, app, **how) for _ in range(3)]
        wait_until(lambda: reader.waiting() == 3)
        refused = post(app, **how)
        assert "3 places for batch requests" in json_of(refused)["detail"]
        interactive = pool.submit(post, app)
        engine.go.set()
        assert {asked.result(SOON_S).status_code for asked in [*batch, interactive]} == {200}
