"""The access log: one line a request, and no request waits for it."""

from __future__ import annotations

import json
import os
import shlex
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from web_support import as_base64, picture

from ocrsvc.app import create_app
from ocrsvc.http.request_metrics import RequestMetrics
from ocrsvc.pipeline.read import Reader
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan
from ocrsvc.telemetry.access_log import AccessLog, Event, Origin, as_json, as_text
from ocrsvc.telemetry.metrics_store import MetricsStore

# 1700000000 is 2023-11-14 22:13:20 UTC (date -u -d @1700000000).
EVENT = Event(1_700_000_000.25, "id-1", "127.0.0.1", "POST", "/v1/ocr", "api", 200, "ok", 10, 20, 0.0123456)


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    """Both ends of a pipe."""
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


def lines_of(end: int) -> list[str]:
    """What is in a pipe now, or comes soon."""
    return os.read(end, 1 << 16).decode().splitlines()


def test_an_event_as_json_is_one_line_with_its_moment() -> None:
    line = as_json(EVENT, Origin(1))
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    entry = json.loads(line)
    assert entry["time"] == "2023-11-14T22:13:20.250+00:00"
    assert (entry["id"], entry["status"], entry["seconds"]) == ("id-1", 200, 0.012346)


def test_an_event_as_text_is_one_line_of_pairs_with_its_key_if_it_has_one() -> None:
    with_key, without = (as_text(replace(EVENT, key=key), Origin(1)).decode() for key in ("acme", ""))
    pairs = dict(word.split("=", 1) for word in shlex.split(without))
    assert (pairs["path"], pairs["bytes_in"]) == ("/v1/ocr", "10")
    assert with_key == without.rstrip() + " key=acme\n"


@pytest.mark.parametrize("path", ["/a\nb status=500", '/"x', "/\u2028", "/\x1b[31m", "", "/" + "x" * 5000])
def test_no_path_can_forge_a_line(path: str) -> None:
    line = as_text(replace(EVENT, path=path), Origin(1)).decode()
    assert line.count("\n") == 1
    assert "\x1b" not in line
    assert len(line.splitlines()) == 1
    assert "status=500" not in shlex.split(line)
    assert len(line) < 1000


def test_events_are_written_in_order_and_all_of_them_before_the_end() -> None:
    with pipe() as (out, into):
        log = AccessLog("json", on_drop=lambda: pytest.fail("dropped"), target=into)
        for number in range(50):
            log.put(replace(EVENT, id=f"id-{number}"))
        log.stop(10.0)
        assert [json.loads(line)["id"] for line in lines_of(out)] == [f"id-{number}" for number in range(50)]


def test_a_log_that_nobody_reads_drops_and_counts_and_never_waits() -> None:
    dropped: list[int] = []
    with pipe() as (out, into):
        log = AccessLog("json", on_drop=lambda: dropped.append(1), target=into, most=10)
        began = time.monotonic()
        for _ in range(2000):
            log.put(EVENT)
        assert time.monotonic() - began < 5
        assert len(dropped) > 1000
        log.stop(0.1)
        os.set_blocking(into, False)
        while any(thread.name == "access-log" for thread in threading.enumerate()):
            lines_of(out)


def test_a_log_that_is_closed_drops_and_counts() -> None:
    dropped: list[int] = []
    out, into = os.pipe()
    os.close(out)
    log = AccessLog("text", on_drop=lambda: dropped.append(1), target=into)
    log.put(EVENT)
    log.stop(10.0)
    os.close(into)
    assert dropped == [1]


def test_a_request_is_reported_with_its_id_and_code_and_nothing_of_its_page() -> None:
    page = as_base64(picture())
    with pipe() as (out, into):
        settings = Settings()
        reader = Reader(settings, ThreadPlan(1, 4, 1))
        store = MetricsStore()
        log = AccessLog("json", on_drop=lambda: pytest.fail("dropped"), target=into)
        app = create_app(settings, reader, RequestMetrics(store, store.common, access_log=log))
        client = app.test_client()
        client.post(f"/api/tr-run/?img={page[:40]}", headers={"X-Request-Id": "mine"}, data=b"x" * 5)
        client.get("/nowhere")
        log.stop(10.0)
        text = os.read(out, 1 << 16).decode()
    first, second = map(json.loads, text.splitlines())
    assert (first["id"], first["door"], first["path"], first["bytes_in"]) == ("mine", "trwebocr", "/api/tr-run/", 5)
    assert (second["door"], second["status"], second["code"]) == ("none", 404, "not_found")
    assert page[:20] not in text


def test_an_event_that_cannot_be_written_is_dropped_and_the_next_one_is_not() -> None:
    dropped: list[int] = []
    with pipe() as (out, into):
        log = AccessLog("json", on_drop=lambda: dropped.append(1), target=into)
        # More than JSON's writer takes.
        log.put(replace(EVENT, bytes_in=2**70))
        log.put(EVENT)
        log.stop(10.0)
        assert (len(lines_of(out)), len(dropped)) == (1, 1)


def test_while_no_thread_can_be_started_events_are_dropped_and_the_log_begins_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dropped = []

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with pipe() as (out, into):
        log = AccessLog("json", lambda: dropped.append(1), into)
        with monkeypatch.context() as refusing:
            refusing.setattr(threading.Thread, "start", refuse)
            log.put(EVENT)
        assert len(dropped) == 1
        log.put(replace(EVENT, id="id-2"))
        log.stop(5.0)
        assert [json.loads(line)["id"] for line in lines_of(out)] == ["id-2"]
