"""The exchange inside a Triton tensor answers as PaddleX's over HTTP does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from web_support import KnownEngine, as_base64, picture

from ocrsvc.adapters.paddlex.envelope import infer
from ocrsvc.pipeline.read import Reader
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    reader = Reader(Settings(), ThreadPlan(1, 4, 2), engine_opener=KnownEngine)
    reader.start()
    yield reader
    reader.stop(5.0)


def ask(reader: Reader, members: object) -> tuple[int, Any]:
    status, answer = infer(json.dumps(members).encode(), reader, 10.0)
    return status, json.loads(answer)


def test_a_request_is_answered_in_its_envelope(reader: Reader) -> None:
    status, answer = ask(reader, {"file": as_base64(picture()), "visualize": False, "logId": "L"})
    assert (status, answer["logId"], answer["errorCode"], answer["errorMsg"]) == (200, "L", 0, "Success")
    assert len(answer["result"]["ocrResults"][0]["prunedResult"]["rec_texts"]) == 2


@pytest.mark.parametrize(
    ("members", "status"),
    [
        ({"file": "!!!!", "logId": "L"}, 422),
        ({"logId": "L"}, 422),
        ({"file": as_base64(picture(shade=0)), "logId": "L"}, 500),
        ({"file": as_base64(picture()), "fileType": 7, "logId": "L"}, 422),
    ],
)
def test_what_goes_wrong_is_reported_in_the_envelope_with_the_callers_id(
    reader: Reader, members: object, status: int
) -> None:
    found, answer = ask(reader, members)
    assert (found, answer["errorCode"], answer["logId"]) == (status, status, "L")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff"])
def test_what_is_no_json_object_is_reported_in_the_envelope(reader: Reader, body: bytes) -> None:
    status, answer = infer(body, reader, 10.0)
    assert (status, json.loads(answer)["errorCode"]) == (422, 422)
