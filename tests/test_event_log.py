"""The service log and the access log: every line matches one schema, and no request waits for a log."""

import io
import json
import logging
import os
import shlex
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
from image_support import png
from jsonschema import Draft202012Validator, FormatChecker
from support import ROOT, run_server

from ocrsvc.telemetry.access_log import AccessLog, Event, Origin, as_json, as_text
from ocrsvc.telemetry.event_log import TARGETS, BackgroundHandler, JsonFormatter, ReadyStreamHandler
from ocrsvc.telemetry.log_lines import LINE_BYTES
from ocrsvc.telemetry.request_ids import with_ids
from ocrsvc.telemetry.trace_context import TraceContext

_SCHEMA_FILE = ROOT / "docs" / "log.schema.json"
SCHEMA = Draft202012Validator(json.loads(_SCHEMA_FILE.read_text("utf-8")), format_checker=FormatChecker())
TRACE = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
JSON = {"OCRSVC_LOG_FORMAT": "json", "OCRSVC_ACCESS_LOG": "json", "OCRSVC_WORKERS": "1"}


def checked(line: str) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(line)
    SCHEMA.validate(event)
    return event


def record(message: str, *values: object, level: int = logging.INFO, error: BaseException | None = None) -> Any:
    found = (type(error), error, error.__traceback__) if error is not None else None
    return logging.LogRecord("ocrsvc.web", level, __file__, 1, message, values, found)


def test_a_line_matches_the_schema_and_names_event_and_request() -> None:
    with with_ids("mine", TRACE):
        line = JsonFormatter(3).format(record("READY in %.1f s", 1.25))
    event = checked(line)
    assert (event["event"], event["worker"], event["id"], event["trace_id"]) == ("ready", 3, "mine", TRACE.trace_id)
    assert (event["message"], event["level"], event["logger"]) == ("READY in 1.2 s", "info", "ocrsvc.web")
    plain = checked(JsonFormatter().format(record("Loading the engine fake")))
    assert (plain["event"], plain["worker"], "id" in plain) == ("message", None, False)


@pytest.mark.parametrize("text", ["a\nb", '"quoted"', "\x1b[31m", "\u2028", "\ud800", "正品" * 5000, "x" * 100_000])
def test_any_message_becomes_one_line_of_bounded_length(text: str) -> None:
    error = ValueError(text)
    for line in (
        JsonFormatter().format(record("%s", text, error=error)),
        as_json(Event(0.0, "id", "::1", "POST", text, "api", 200, "ok", 1, 2, 0.5), Origin(1)).decode(),
    ):
        assert len(line.encode()) <= LINE_BYTES
        assert "\x1b" not in line
        checked(line)


@pytest.fixture
def targets() -> Iterator[io.StringIO]:
    written, logger = io.StringIO(), logging.getLogger(TARGETS)
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonFormatter(1))
    logger.propagate, logger.handlers[:] = False, [handler]
    yield written
    logger.handlers[:] = []


def test_lines_keep_their_order_and_the_ids_of_their_thread(targets: io.StringIO) -> None:
    background = BackgroundHandler(on_drop=lambda: pytest.fail("dropped"))
    for number in range(20):
        with with_ids(f"id-{number}", None):
            background.emit(record("line %d", number))
    background.stop(10.0)
    background.emit(record("afterwards"))
    events = [checked(line) for line in targets.getvalue().splitlines()]
    assert [event["message"] for event in events] == [*(f"line {number}" for number in range(20)), "afterwards"]
    assert [event["id"] for event in events[:-1]] == [f"id-{number}" for number in range(20)]
    assert not [thread for thread in threading.enumerate() if thread.name == "event-log"]


def test_a_message_with_mismatched_values_is_logged_without_them(targets: io.StringIO) -> None:
    background = BackgroundHandler(on_drop=bool)
    background.emit(record("%d pages", "three"))
    background.stop(20.0)
    assert checked(targets.getvalue())["message"] == "%d pages"


def test_lines_dropped_at_a_full_queue_are_counted_and_reported(targets: io.StringIO) -> None:
    dropped: list[int] = []
    is_waiting, may_continue = threading.Event(), threading.Event()

    class Slow(logging.Handler):
        def emit(self, _record: logging.LogRecord) -> None:
            is_waiting.set()
            may_continue.wait(20)

    logging.getLogger(TARGETS).addHandler(Slow())
    background = BackgroundHandler(lambda: dropped.append(1), max_queued=2)
    background.emit(record("first"))
    assert is_waiting.wait(20)
    for _ in range(10):
        background.emit(record("more"))
    assert len(dropped) == 8
    may_continue.set()
    background.stop(20.0)
    events = [checked(line) for line in targets.getvalue().splitlines()]
    assert [event["event"] for event in events] == ["message", "dropped", "message", "message"]
    assert events[1]["message"] == "DROPPED 8 lines of this log"


def test_a_pipe_without_a_reader_loses_lines_and_blocks_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocrsvc.telemetry.event_log._PATIENCE_MS", 1)
    dropped: list[int] = []
    out, into = os.pipe()
    with os.fdopen(into, "w") as stream:
        handler = ReadyStreamHandler(stream)
        handler.setFormatter(JsonFormatter())
        handler.on_drop = lambda: dropped.append(1)
        while not dropped:
            handler.emit(record("x" * 3000))
        while b"first" not in os.read(out, 1 << 20):
            handler.emit(record("first"))
    os.close(out)


def test_every_line_of_a_service_matches_the_schema(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, threading, warnings\n"
        "def warn():\n"
        "    warnings.warn('a test warning')\n"
        "    raise KeyError('an uncaught error')\n"
        "os.register_at_fork(after_in_child=lambda: threading.Timer(0.3, warn).start())\n"
    )
    env = {**JSON, "PYTHONPATH": f"{tmp_path}:{ROOT}", "OCRSVC_ISOLATION": "process", "OCRSVC_FAKE_FAULT": "crash"}
    with run_server(env) as server:
        sent = {"X-Request-Id": 'a"b', "traceparent": f"00-{TRACE.trace_id}-{TRACE.span_id}-00"}
        files = {"file": ("secret-name.png", png(), "image/png")}
        requests.post(f"{server.url}/v1/ocr?secret=1", files=files, headers=sent, timeout=30)
        requests.post(f"{server.url}/v1/ocr", files=files, headers=sent, timeout=30)
        requests.get(f"{server.url}/%0a%22nowhere", timeout=30)
        server.wait_for('"event":"request"', count=3)
        server.wait_for("a test warning")
        server.wait_for("an uncaught error")
        os.kill(server.workers()[0], signal.SIGUSR2)
        server.wait_for("RECYCLED worker")
    events = [checked(line) for line in list(server.lines)]
    assert {event["logger"] for event in events} >= {"gunicorn.error", "ocrsvc.access", "py.warnings", "ocrsvc"}
    assert {event["event"] for event in events} >= {"request", "ready", "draining", "recycled", "lost"}
    [bad, read, _] = [event for event in events if event["event"] == "request"]
    assert (bad["id"], bad["trace_id"], bad["status"], bad["level"]) == ('a"b', TRACE.trace_id, 400, "info")
    assert read["code"] == "image_crashes_engine"
    assert {event["worker"] for event in events} >= {None, 0}
    assert "secret" not in server.log


# The time is 2023-11-14 22:13:20.25 UTC.
EVENT = Event(1_700_000_000.25, "id-1", "127.0.0.1", "POST", "/v1/ocr", "api", 200, "ok", 10, 20, 0.0123456)


def test_a_text_event_is_one_line_of_pairs() -> None:
    with_key, without = (as_text(replace(EVENT, key=key), Origin(1)).decode() for key in ("acme", ""))
    pairs = dict(word.split("=", 1) for word in shlex.split(without))
    assert (pairs["path"], pairs["bytes_in"]) == ("/v1/ocr", "10")
    assert with_key == without.rstrip() + " key=acme\n"


@pytest.mark.parametrize("path", ["/a\nb status=500", '/"x', "/\u2028", "/\x1b[31m", "", "/" + "x" * 5000])
def test_no_path_can_forge_a_line(path: str) -> None:
    line = as_text(replace(EVENT, path=path), Origin(1)).decode()
    assert (line.count("\n"), len(line.splitlines())) == (1, 1)
    assert "\x1b" not in line
    assert "status=500" not in shlex.split(line)
    assert len(line) < 1000


def test_an_access_log_without_a_reader_drops_lines_and_never_waits() -> None:
    dropped: list[int] = []
    out, into = os.pipe()
    with os.fdopen(out, "rb"), os.fdopen(into, "wb"):
        log = AccessLog("json", on_drop=lambda: dropped.append(1), target=into, max_queued=10)
        began = time.monotonic()
        for _ in range(2000):
            log.put(EVENT)
        assert time.monotonic() - began < 5
        assert len(dropped) > 1000
        log.stop(0.1)
        os.set_blocking(into, False)
        while any(thread.name == "access-log" for thread in threading.enumerate()):
            os.read(out, 1 << 16)


def test_a_closed_access_log_drops_and_counts_lines() -> None:
    dropped: list[int] = []
    out, into = os.pipe()
    os.close(out)
    log = AccessLog("text", on_drop=lambda: dropped.append(1), target=into)
    log.put(EVENT)
    log.stop(10.0)
    os.close(into)
    assert dropped == [1]
