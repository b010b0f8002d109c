"""What services, names and addresses of others say to a batch run: a page that fails, never a command or a secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from ocrsvc.batch.human_readable import visible
from ocrsvc.batch.readers.service_reader import page_of, parse_answer
from ocrsvc.cli.main import run
from ocrsvc.client.address import services_of
from ocrsvc.client.response import Response, retry_after_s
from ocrsvc.errors import BadOption, OcrsvcError, ServerError

BOX = [[0, 0], [9, 0], [9, 9], [0, 9]]
LINE = {"text": "a", "confidence": 0.5, "box": BOX}
PAGE = {"page": 1, "width": 9, "height": 9, "angle": 0, "text": "a", "lines": [LINE]}


def answered(page: Any) -> Any:
    body = orjson.dumps({"engine": {"name": "fake"}, "pages": [page]})
    return page_of(parse_answer(Response(200, None, body, "http://a:1")).data, 1)


def test_a_page_is_taken_as_it_is() -> None:
    assert answered(PAGE) == PAGE
    assert answered(PAGE | {"lines": []}) == PAGE | {"lines": []}


@pytest.mark.parametrize(
    "page",
    [
        1,
        "page",
        {"page": 1},
        PAGE | {"text": 1},
        PAGE | {"width": "9"},
        PAGE | {"height": 1 << 40},
        PAGE | {"angle": True},
        PAGE | {"lines": {}},
        PAGE | {"lines": [1]},
        PAGE | {"lines": [LINE | {"text": None}]},
        PAGE | {"lines": [LINE | {"confidence": "x"}]},
        PAGE | {"lines": [LINE | {"confidence": 1e308}]},
        PAGE | {"lines": [LINE | {"box": BOX[:3]}]},
        PAGE | {"lines": [LINE | {"box": [[0, "x"]] * 4}]},
        PAGE | {"lines": [LINE | {"words": 1}]},
        PAGE | {"barcodes": "x"},
    ],
)
def test_what_is_no_page_fails_as_one(page: Any) -> None:
    assert isinstance(answered(page), ServerError)


@pytest.mark.parametrize(
    "error", ["x", 1, [], {}, {"status": "abc"}, {"status": 400, "code": ["x"]}, {"status": 10**18, "detail": {"a": 1}}]
)
def test_an_error_of_any_form_is_the_error_of_its_page(error: Any) -> None:
    assert isinstance(answered({"page": 1, "error": error}), OcrsvcError)


def test_an_explanation_of_megabytes_is_cut() -> None:
    error = answered({"page": 1, "error": {"status": 400, "detail": "x" * 10_000_000, "remedy": "y" * 10_000_000}})
    assert len(error.detail) + len(error.remedy) < 10_000


@pytest.mark.parametrize(
    "value",
    [
        "9" * 5000,
        "Mon, 20 Nov 1995 19:12:08 -" + "9" * 20,
        "Mon, 20 Nov " + "9" * 14 + " 19:12:08 GMT",
        "\xb2",
        "-1",
        "",
    ],
)
def test_a_retry_after_of_any_form_is_a_number(value: str) -> None:
    assert 0 <= retry_after_s(value) < 10**9


@pytest.mark.parametrize(
    "url", ["http://me:dragon@host", "me:dragon@host", "http://me:dragon@[::1", "http://host?token=dragon"]
)
def test_an_address_with_a_secret_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(BadOption) as refused:
        services_of(url)
    assert "dragon" not in f"{refused.value}{refused.value.__cause__}"


def test_signs_of_control_are_written_out_and_others_stay() -> None:
    assert visible("a\x1b[31m\x07\x9b\u202e\r") == r"a\x1b[31m\x07\x9b\u202e\r"
    assert visible("中文 é\t\n") == "中文 é\t\n"


def test_names_do_not_command_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCRSVC_ENGINE", "fake")
    monkeypatch.setenv("OCRSVC_ISOLATION", "thread")
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    (folder / "a\x1b]0;title\x07.png").write_text("no image")
    (folder / "b.\x1b[2J").write_text("no image")
    command = ["batch", str(folder), "--out", str(out), "--format", "jsonl,pdf"]
    assert run(command) == 1
    (folder / "new\x1b[31m.png").write_text("no image")
    assert run(command) != 0
    said = capfd.readouterr()
    assert r"new\x1b[31m.png" in said.err
    assert "\x1b" not in said.out + said.err + (out / "report.html").read_text()
