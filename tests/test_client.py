"""The Python client against real servers: reading, waiting, retries and errors."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.message import Message
from email.utils import format_datetime
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from documents import tiff
from image_support import decoded, encoded, png
from models_support import make_several
from support import ROOT, Reply, Server, data_of, ocrsvc, read_data, replying, run_program, run_server

from ocrsvc import errors
from ocrsvc.client import AsyncClient, Client
from ocrsvc.client.client import Outcome
from ocrsvc.client.request import ImageInput, Options, body_of, headers_of, query_of
from ocrsvc.client.response import Answer, Response, answer_of, retry_after_s
from ocrsvc.engines.model.version import BUILT_IN_DESCRIPTION
from ocrsvc.http.options import OPTIONS

WHITE = np.full((40, 120), 255, np.uint8)
PAGE = encoded(WHITE)


def page_of(width: int) -> bytes:
    return png(width, 20, 255)


def first_lines(outcomes: list[Outcome]) -> list[str]:
    return [one.text.split("\n")[0] if isinstance(one, Answer) else type(one).__name__ for one in outcomes]


@contextmanager
def scripted(*answers: Reply | None) -> Iterator[tuple[str, list[Message]]]:
    """Serve these responses, repeating the last; yield the URL and the headers of the requests."""
    seen: list[Message] = []

    def reply(headers: Message, _body: bytes) -> Reply | None:
        seen.append(headers)
        return answers[min(len(seen), len(answers)) - 1]

    with replying(reply) as url:
        yield url, seen


def problem(status: int, code: str, **headers: str) -> Reply:
    members = {"code": code, "detail": "So it is.", "remedy": "Do this.", "id": "abc", "title": "T", "status": status}
    return status, {name.replace("_", "-"): value for name, value in headers.items()}, json.dumps(members).encode()


HELLO = {"page": 1, "width": 9, "height": 8, "angle": 0, "text": "hello"}
ANSWER = {"id": "abc", "engine": {"name": "x"}, "timing": {"total_s": 0.5}, "pages": [HELLO]}
GOOD: Reply = (200, {}, json.dumps(ANSWER).encode())


@pytest.mark.parametrize(
    ("picture", "size"),
    [
        (PAGE, "120x40"),
        (bytearray(PAGE), "120x40"),
        (str(ROOT / "tests/pages/notice.png"), "640x300"),
        (ROOT / "tests/pages/notice.png", "640x300"),
        (WHITE, "120x40"),
        (np.zeros((30, 50, 3), np.uint8), "50x30"),
        (np.zeros((60, 50, 3), np.uint8)[::2], "50x30"),
    ],
)
def test_a_picture_may_be_a_path_bytes_or_an_array(server: Server, picture: ImageInput, size: str) -> None:
    with Client(server.url) as client:
        answer = client.read(picture)
    page = answer.pages[0]
    assert (page.text.split("\n")[0], f"{page.width}x{page.height}") == (size, size)
    assert (answer.engine["name"], page.lines[0].confidence, len(page.lines[0].box)) == ("fake", 1.0, 4)


def test_proxies_of_the_environment_are_not_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with Client(server.url) as client:
        assert client.read(png(60, 40, 255)).text.startswith("60x40")


def test_an_array_is_sent_with_its_colours() -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    assert np.array_equal(pixels, decoded(body_of(pixels)))
    for wrong in (np.zeros((2, 2, 2), np.uint8), np.zeros((2, 2, 4), np.uint8), np.zeros(4, np.uint8)):
        with pytest.raises(errors.BadOption, match="shape"):
            body_of(wrong)


def test_options_reach_the_service(server: Server) -> None:
    with Client(server.url) as client:
        assert len(client.read(PAGE, detect=False, min_confidence=0.00001, max_side=None).pages[0].lines) == 1
        assert client.read(PAGE, lines=False).pages[0].lines == ()
        (line, _) = client.read(PAGE, characters=True).pages[0].lines
        assert line.words is not None
        assert [word.text for word in line.words] == ["120x40"]
        assert "".join(each.text for each in line.words[0].characters) == "120x40"
        assert line.words[0].characters[0].box[2] == (20, 16)
    sent = query_of({"min_confidence": 0.00001, "detect": True, "rotate": None})
    assert sent == {"min_confidence": "0.000010000", "detect": "true"}


def test_tables_have_cells_and_regions_have_lines() -> None:
    read = answer_of(Response(200, None, json.dumps(read_data("client_page.json")).encode())).pages[0]
    (found,) = read.tables
    (one,) = read.regions
    assert (one.type, one.confidence, one.lines, one.box[1]) == ("title", 0.5, (0,), (9.0, 0.0))
    assert (found.rows, found.columns, found.html, found.markdown) == (1, 2, "<table></table>", "| a |  |")
    assert (found.cells[0].column_span, found.cells[0].lines, found.cells[0].box[2]) == (2, (0,), (9.0, 5.0))


def test_the_client_knows_every_option_of_the_api() -> None:
    assert set(get_type_hints(Options)) == set(OPTIONS) - {"format"}


def test_model_is_selected_and_an_unknown_one_refused(tmp_path: Path) -> None:
    env = {"OCRSVC_WORKERS": "1", "OCRSVC_ISOLATION": "process", **make_several(tmp_path)}
    with run_server(env) as server, Client(server.url) as client:
        assert [one.labels for one in client.models().models if one.name == "east"] == [("stable",), ("canary",)]
        (own,) = [one for one in client.models().models if one.name == "ppocr"]
        assert (own.version, own.tier, own.languages) == (1, "small", BUILT_IN_DESCRIPTION.languages)
        answer = client.read(PAGE, model="east:canary", lang="en")
        assert (answer.engine["model"], answer.engine["version"]) == ("east", "2")
        assert client.read(PAGE, lang="ru").text.endswith("north/1")
        with pytest.raises(errors.UnknownModel, match="Languages: "):
            client.read(PAGE, lang="ko")
        listed = ocrsvc("models", "list", "--url", server.url)
    (north,) = [row.split() for row in listed.stdout.splitlines() if row.startswith("north/1")]
    assert north == ["north/1", "available", "-", "tiny", "ru", "th", "-", "fake", "-", "-"]


def read_many(url: str | list[str], pictures: Iterable[ImageInput], at_once: int = 3, **how: Any) -> list[Outcome]:
    with Client(url, **{"timeout_s": 60.0} | how) as client:
        return list(client.read_many(pictures, at_once=at_once))


def read_many_async(url: str | list[str], pages: Iterable[ImageInput], at_once: int = 3, **how: Any) -> list[Outcome]:
    async def main() -> list[Outcome]:
        async with AsyncClient(url, **{"timeout_s": 60.0} | how) as client:
            return [outcome async for outcome in client.read_many(pages, at_once=at_once)]

    return asyncio.run(main())


both_ways = pytest.mark.parametrize("read", [read_many, read_many_async])
ReadMany = Callable[..., list[Outcome]]


@both_ways
def test_read_many_keeps_order_and_survives_a_failure(server: Server, read: ReadMany) -> None:
    pictures: list[ImageInput] = [page_of(30), b"text", page_of(31), "/nowhere.png", page_of(32)]
    expected = ["30x20", "UnsupportedImage", "31x20", "NothingSent", "32x20"]
    assert first_lines(read(server.url, pictures, 3)) == expected


def test_read_many_limits_requests_in_flight_and_consumes_pictures_lazily(server: Server) -> None:
    taken: list[int] = []

    def pictures() -> Iterator[bytes]:
        for width in range(20, 60):
            taken.append(width)
            yield page_of(width)

    with Client(server.url) as client:
        outcomes = client.read_many(pictures(), at_once=3)
        next(outcomes)
        assert len(taken) <= 4
        outcomes.close()


def test_failing_picture_source_leaves_no_request_in_flight(server: Server) -> None:
    def pictures() -> Iterator[bytes]:
        yield PAGE
        raise FileNotFoundError

    with Client(server.url) as client, pytest.raises(FileNotFoundError):
        list(client.read_many(pictures(), at_once=3))
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("ocrsvc-client")]


@pytest.mark.parametrize(("status", "code"), [(429, "too_many_at_once"), (503, "queue_full"), (503, "not_ready")])
def test_refusal_is_retried_after_retry_after(status: int, code: str) -> None:
    with scripted(problem(status, code, Retry_After="1"), GOOD) as (url, seen), Client(url) as client:
        began = time.monotonic()
        assert client.read(PAGE).text == "hello"
        assert time.monotonic() - began >= 1
    assert len(seen) == 2


def test_wait_beyond_the_deadline_is_not_started() -> None:
    with scripted(problem(503, "queue_full", Retry_After="30")) as (url, seen), Client(url, timeout_s=25) as client:
        began = time.monotonic()
        with pytest.raises(errors.QueueFull) as refused:
            client.read(PAGE)
        assert time.monotonic() - began < 20
    assert (refused.value.retry_after_s, len(seen)) == (30, 1)


@pytest.mark.parametrize(("status", "text", "name"), data_of("client_errors"))
def test_an_error_response_raises_its_class(status: int, text: str, name: str) -> None:
    body = text.encode() if text[0] in "<{" else problem(status, text)[2]
    with pytest.raises(errors.OcrsvcError) as caught:
        answer_of(Response(status, None, body))
    error = caught.value
    assert type(error).__name__ == name
    if b"So it is." in body:
        assert (error.detail, error.remedy, error.__notes__) == ("So it is.", "Do this.", ["The request was abc."])


def test_caller_errors_are_not_retried(server: Server) -> None:
    with scripted(problem(422, "broken_image"), GOOD) as (url, seen), Client(url) as client:
        with pytest.raises(errors.BrokenImage):
            client.read(PAGE)
        assert len(seen) == 1
    with Client(server.url) as client, pytest.raises(errors.UnsupportedImage, match="plain text"):
        client.read(b"text")


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        *(("7", 7, 7), (None, 1, 1), ("soon", 1, 1), ("Thu, 01 Jan 1970 00:00:00 GMT", 0, 0), ("+30 s", 28, 31)),
        *((hostile, 0, 10**9) for hostile in ("9" * 5000, "Mon, 20 Nov 1995 19:12:08 -" + "9" * 20, "\xb2", "-1")),
    ],
)
def test_a_retry_after_is_a_number_or_a_date(header: str | None, least: int, most: int) -> None:
    if header == "+30 s":
        header = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    assert least <= retry_after_s(header) <= most


def test_a_trickling_response_ends_at_the_deadline() -> None:
    done = threading.Event()

    def trickle(listener: socket.socket) -> None:
        with listener.accept()[0] as wire, suppress(OSError):
            wire.recv(1 << 16)
            wire.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not done.wait(0.05):
                wire.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        pool.submit(trickle, listener)
        began = time.monotonic()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with Client(url, timeout_s=0.5) as client, pytest.raises(errors.DeadlineExceeded):
            client.read(PAGE)
        done.set()
        assert time.monotonic() - began < 20


def test_the_client_loads_no_numeric_library() -> None:
    code = "import sys, ocrsvc.client; print({'numpy', 'cv2', 'onnxruntime', 'flask'} & set(sys.modules))"
    done = run_program("-c", code)
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_pages_of_a_document_have_numbers_and_errors(server: Server) -> None:
    with Client(server.url) as client:
        answer = client.read(tiff([40] * 6), pages="2,5-")
    assert ([page.number for page in answer.pages], answer.pages_total, answer.failed) == ([2, 5, 6], 6, {})
    failed = {"page": 2, "error": {"code": "engine_failed", "status": 500}}
    partly = {"id": "a", "engine": {}, "timing": {}, "pages": [HELLO, failed]}
    result = answer_of(Response(200, None, json.dumps(partly).encode()))
    assert ([page.number for page in result.pages], type(result.failed[2])) == ([1], errors.EngineFailed)


def test_stages_are_returned_on_request(server: Server) -> None:
    with Client(server.url) as client:
        asked, plain = client.read(PAGE, timing="stages"), client.read(PAGE)
    assert sum(asked.stages.values()) == pytest.approx(asked.timing["request_s"], abs=1e-5)
    assert plain.stages == {}


def test_a_request_carries_the_callers_trace() -> None:
    pytest.importorskip("opentelemetry.propagate", reason="the extra otel is not installed: opentelemetry-api")
    from opentelemetry.context import attach, detach
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    span = NonRecordingSpan(SpanContext(10, 11, is_remote=False, trace_flags=TraceFlags(1)))
    token = attach(set_span_in_context(span))
    try:
        assert headers_of(1.0)["traceparent"] == f"00-{10:032x}-{11:016x}-01"
    finally:
        detach(token)
    assert "traceparent" not in headers_of(1.0)
