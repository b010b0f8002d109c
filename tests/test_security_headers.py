"""Every answer says that browsers must not guess its type, whichever way it comes about."""

from __future__ import annotations

import re
from pathlib import Path

from support import read_to_end, run_server
from web_support import picture, running_app

from ocrsvc.jobs.job_store import JobStore
from ocrsvc.settings.settings import Settings

NAME, VALUE = "X-Content-Type-Options", "nosniff"


def test_every_route_answers_with_it_and_so_does_what_is_refused(tmp_path: Path) -> None:
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


def test_pages_files_streams_and_what_has_not_changed_have_it() -> None:
    with running_app() as app:
        client = app.test_client()
        for query in ("", "?format=text", "?format=ndjson", "?format=pdf", "?format=zip"):
            with client.post(f"/v1/ocr{query}", data=picture()) as answer:
                assert answer.headers.getlist(NAME) == [VALUE]
        tag = client.get("/static/page.css").headers["ETag"]
        answer = client.get("/static/page.css", headers={"If-None-Match": tag})
        assert (answer.status_code, answer.headers.getlist(NAME)) == (304, [VALUE])


def test_an_answer_for_which_no_memory_is_left_has_it() -> None:
    with running_app(Settings(request_memory_bytes=1024, max_body_bytes=1024)) as app:
        answer = app.test_client().get("/openapi.json")
    assert (answer.status_code, answer.headers.getlist(NAME)) == (413, [VALUE])


def test_heads_that_never_reach_the_application_are_answered_with_it() -> None:
    heads = {
        b"GET / HTTP/1.1\r\n\r\n": b"400",
        b"GET / HTTP/1.1\r\nHost: x\r\nA b: c\r\n\r\n": b"400",
        b"GET /" + bytes(9000).replace(b"\0", b"a") + b" HTTP/1.1\r\nHost: x\r\n\r\n": b"414",
        b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: odd\r\n\r\n": b"501",
        b"GET / HTTP/1.1\r\nHost: x\r\nA: " + bytes(1 << 17).replace(b"\0", b"a"): b"431",
    }
    with run_server({"OCRSVC_WORKERS": "1"}) as server:
        for head, status in heads.items():
            with server.connect() as wire:
                wire.sendall(head)
                answer = read_to_end(wire)
            assert answer.split(b" ")[1] == status, answer
            assert answer.count(f"{NAME}: {VALUE}\r\n".encode()) == 1
