"""Streamed answers: when pages are sent, how streams end, and the cost of clients that disconnect or do not read."""

import asyncio
import http.client
import io
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest
from flask.testing import FlaskClient
from image_support import png
from keys_support import bearer, keys_in
from PIL import Image
from support import Server, wait_until
from web_support import running_app

from ocrsvc.client.client import AsyncClient, Client
from ocrsvc.client.response import pages_of
from ocrsvc.errors import BadOption, DeadlineExceeded, QueueFull, ServerError, Unreachable, UnsupportedImage
from ocrsvc.http.request import current_request
from ocrsvc.http.responses import SentPieces
from ocrsvc.serving.memory_budget import Budget, Share
from ocrsvc.settings.settings import Settings
from ocrsvc.worker.connection import Sender

LATENCY_S = 0.15


def tiff(pages: int, shade: int = 100) -> bytes:
    images = [Image.new("RGB", (64, 32), (shade + number % 100, number // 100, 0)) for number in range(pages)]
    file = io.BytesIO()
    images[0].save(file, "TIFF", save_all=True, append_images=images[1:])
    return file.getvalue()


SERVER_ENV = {"OCRSVC_FAKE_LATENCY_S": str(LATENCY_S), "OCRSVC_ENGINE_THREADS": "1"}
SERVER_ENV |= {"OCRSVC_MAX_PAGES": "100", "OCRSVC_OPS": "open"}


def connected(server: Server) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=20)


@contextmanager
def response_to(server: Server, body: bytes, query: str = "format=ndjson", **headers: str) -> Iterator[Any]:
    """Send a request; yields its response, of which only the head has been read."""
    with closing(connected(server)) as connection:
        connection.request("POST", f"/v1/ocr?{query}", body, {"Content-Type": "image/tiff", **headers})
        yield connection.getresponse()


def parts_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def requests_with(server: Server, code: str) -> float:
    return server.metric(f'ocrsvc_requests_total{{adapter="api",code="{code}",status="200"}}')


def test_pages_are_sent_as_they_are_read_on_a_kept_connection(server: Server) -> None:
    with closing(connected(server)) as connection:
        for _ in range(2):
            connection.request("POST", "/v1/ocr?format=ndjson", tiff(12), {"Content-Type": "image/tiff"})
            response = connection.getresponse()
            arrived_s = [time.monotonic() for _ in response]
            # Each page takes LATENCY_S: the first is sent before the other eleven are read.
            assert arrived_s[-1] - arrived_s[0] > LATENCY_S
            headers = ("Transfer-Encoding", "X-Accel-Buffering")
            assert [response.getheader(name) for name in headers] == ["chunked", "no"]


def test_a_stream_has_the_pages_of_json_and_a_final_summary(server: Server) -> None:
    with response_to(server, tiff(3), "format=ndjson&pages=2-&timing=stages") as response:
        *pages, last = parts_of(response.read().decode())
    with response_to(server, tiff(3), "pages=2-") as response:
        whole = json.load(response)
    assert pages == [page | {"pages_total": 3, "pages_wanted": 2} for page in whole["pages"]]
    end = last["end"]
    assert (end["engine"], end["pages_read"], end["pages_failed"]) == (whole["engine"], 2, 0)
    assert end["timing"]["total_s"] > 2 * LATENCY_S > 0
    assert {"receive_s", "detect_s", "answer_s"} < set(end["timing"]["stages"])


def test_http_1_0_clients_get_a_stream_without_chunks(server: Server) -> None:
    body, address = tiff(2), urlsplit(server.url)
    with socket.create_connection((address.hostname or "", address.port or 0), 20) as wire:
        wire.sendall(b"POST /v1/ocr?format=ndjson HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        head, _, text = b"".join(iter(lambda: wire.recv(65536), b"")).partition(b"\r\n\r\n")
    assert b"Transfer-Encoding" not in head
    assert [next(iter(part)) for part in parts_of(text.decode())] == ["page", "page", "end"]


def test_disconnect_stops_reading_within_a_page(server: Server) -> None:
    before = requests_with(server, "client_gone")
    with response_to(server, tiff(100)) as response:
        response.readline()
    read = server.metric("ocrsvc_images_total")
    with response_to(server, tiff(1), "format=json") as response:
        assert response.status == 200
        response.read()
    # The page in progress and the second request's page; a busy machine reads some more, but not all hundred.
    assert server.metric("ocrsvc_images_total") <= read + 30
    wait_until(lambda: requests_with(server, "client_gone") == before + 1, "the request is counted")


def test_the_deadline_ends_an_answer_with_an_error(server: Server) -> None:
    before = requests_with(server, "deadline_exceeded")
    with response_to(server, tiff(40), **{"X-Request-Timeout": str(20 * LATENCY_S)}) as response:
        assert response.status == 200
        *pages, last = parts_of(response.read().decode())
    assert 1 <= len(pages) <= 20
    assert (last["error"]["code"], last["error"]["status"]) == ("deadline_exceeded", 504)
    wait_until(lambda: requests_with(server, "deadline_exceeded") == before + 1, "the request is counted")


def sent(client: FlaskClient, *files: bytes, query: str = "?format=ndjson", accept: str = "*/*") -> Any:
    data = {"file": [(io.BytesIO(file), "x") for file in files]}
    return client.post(f"/v1/ocr{query}", data=data, headers={"Accept": accept})


def test_accept_selects_the_format_and_events_have_the_same_parts(client: FlaskClient) -> None:
    response = sent(client, tiff(2), png(8, 8), query="", accept="text/event-stream")
    assert response.content_type == "text/event-stream"
    for accept in ("application/x-ndjson", "application/x-ndjson, application/json;q=0.5"):
        assert sent(client, png(), query="", accept=accept).content_type == "application/x-ndjson"
    events = [event.splitlines() for event in response.text.split("\n\n")[:-1]]
    assert [event[0] for event in events] == ["event: page"] * 3 + ["event: end"]
    *pages, end = [json.loads(event[1].removeprefix("data: ")) for event in events]
    places = [(part["page"], part["source"]["file"], part["source"]["page"]) for part in pages]
    assert (places, "page" in end) == ([(1, 1, 1), (2, 1, 2), (3, 2, 1)], False)


def test_a_file_that_fails_does_not_affect_the_others(client: FlaskClient) -> None:
    failed, page, last = parts_of(sent(client, b"none", png(8, 8)).text)
    assert (failed["page"], failed["error"]["code"], page["page"]) == (1, "unsupported_image", 2)
    assert (last["end"]["pages_read"], last["end"]["pages_failed"]) == (1, 1)


@pytest.mark.parametrize(("file", "status"), [(b"none", 415), (b"\x89PNG\r\n\x1a\n", 422), (b"", 400)])
def test_an_answer_that_cannot_begin_has_an_error_status(client: FlaskClient, file: bytes, status: int) -> None:
    response = sent(client, file)
    assert (response.status_code, response.content_type) == (status, "application/problem+json")


def test_unexpected_failure_ends_a_stream_and_is_hidden(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocrsvc.api.streaming.page_to_dict", Mock(side_effect=KeyError("a secret")))
    response = sent(client, png())
    assert [part["error"]["code"] for part in parts_of(response.text)] == ["internal"]
    assert "secret" not in response.text


def test_streamed_pages_count_for_the_key_even_after_a_disconnect(tmp_path: Path) -> None:
    with keys_in(tmp_path) as keys:
        headers = bearer(keys.add(pages_a_day=6))
        with running_app(Settings(keys=keys.address), keys.gate) as app:
            client = app.test_client()

            def begin() -> Any:
                return client.post("/v1/ocr?format=ndjson", data=tiff(3), headers=headers, buffered=False)

            assert len(list(begin().iter_encoded())) == 4
            assert (keys.usage().today, keys.usage().reserved, keys.usage().requests) == (3, 0, 0)
            left = begin()
            next(left.iter_encoded())
            left.close()
            assert (keys.usage().today, keys.usage().reserved, keys.usage().requests) == (4, 0, 0)
            refused = begin()
            # Two of the key's six pages are left, and the document has three.
            assert (refused.status_code, refused.json["code"]) == (429, "quota_exceeded")


def test_unread_pages_count_as_memory_of_their_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocrsvc.http.responses._PUSH_S", 0.01)
    budget, piece = Budget(8 << 20), bytes(1 << 20)
    here, there = socket.socketpair()
    with here, there, running_app(Settings()) as app, app.test_request_context(), Share(budget) as share:
        with Share(budget) as other:
            other.take(1)
            sender, request = Sender(here), current_request()
            request.share, request.received = share, cast(Any, SimpleNamespace(push=sender.push))
            sent = SentPieces(request)
            sender.sendall(b"head")
            with suppress(QueueFull):
                while sent.count_bytes < budget.total_bytes:
                    for allowed in sent.send(piece):
                        sender.sendall(allowed)
        assert 3 << 20 <= share.held_bytes == sum(map(len, sender.unsent)) < 4 << 20
        there.setblocking(False)
        while sender.unsent:
            there.recv(1 << 20)
            list(sent.send(b""))
        assert share.held_bytes == 0


def test_the_client_yields_pages_and_raises_the_final_error(server: Server) -> None:
    with Client(server.url, timeout_s=20) as client:
        coming = client.stream(tiff(9), pages="1-8")
        arrived_s = [time.monotonic() for page in coming if (page.total, page.wanted) == (9, 8)]
        assert len(arrived_s) == 8
        assert arrived_s[-1] - arrived_s[0] > LATENCY_S
        with pytest.raises(UnsupportedImage):
            next(client.stream(b"none"))
        pages = client.stream(tiff(40), timeout_s=20 * LATENCY_S)
        assert [next(pages).number, next(pages).number] == [1, 2]
        with pytest.raises(DeadlineExceeded):
            list(pages)


def test_closing_an_async_stream_ends_the_reading(server: Server) -> None:
    async def ask() -> None:
        async with AsyncClient(server.url, timeout_s=20) as client, aclosing(client.stream(tiff(90))) as pages:
            page = await anext(pages)
            assert (page.number, page.total) == (1, 90)
        async with AsyncClient([server.url, server.url]) as several:
            with pytest.raises(BadOption):
                several.stream(b"")

    asyncio.run(ask())
    # If the other 89 pages were still read, they would keep the engine's only thread busy for 13 s.
    with Client(server.url, timeout_s=5) as client:
        client.read(png(30))


def test_truncated_stream_is_detected() -> None:
    page = b'{"page":1,"width":1,"height":1,"angle":0,"text":"a\xe2\x80\xa8b","pages_total":1,"pages_wanted":1}\n'
    answer = page + b'{"end":{}}\n'

    def numbers(*pieces: bytes) -> list[int]:
        async def come() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece

        async def read() -> list[int]:
            return [one.number async for one in pages_of(come())]

        return asyncio.run(read())

    assert numbers(*(answer[at : at + 7] for at in range(0, len(answer), 7))) == [1]
    with pytest.raises(Unreachable):
        numbers(page)
    with pytest.raises(ServerError):
        numbers(b"[]\n")


def test_a_service_that_stops_finishes_its_streams(server: Server) -> None:
    # Ends the module's server, so this test must be the last one.
    with response_to(server, tiff(4)) as response:
        response.readline()
        server.process.terminate()
        assert "end" in parts_of(response.read().decode())[-1]
