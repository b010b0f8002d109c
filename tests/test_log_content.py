"""Logs contain no input and no recognized text, except masked text with OCRSVC_LOG_TEXT=masked."""

from __future__ import annotations

import io
import logging
import sys
import threading
import traceback
from pathlib import Path

import pytest
import requests
from documents import pdf
from image_support import png
from support import data_of, run_server, wait_until
from test_masking_pages import NumberEngine
from web_support import client_raising, running_reader

from ocrsvc.errors import BadOption, EngineFailed
from ocrsvc.grpc_server.method import failure_of
from ocrsvc.results import ReadOptions
from ocrsvc.settings.settings import Settings
from ocrsvc.telemetry.event_log import log_uncaught
from ocrsvc.telemetry.loggable import loggable_error, loggable_path

PERSON, PHONE = "11010519491231002X", "13800138000"
NAME = "zhangsan-11010519491231002X"
SECRET = "SECRETBYTES"
WAIT_S = 20.0


@pytest.mark.parametrize(("path", "logged"), data_of("logged_paths"))
def test_logged_path_has_no_file_names(path: str, logged: str) -> None:
    assert loggable_path(path) == logged


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ValueError(f"invalid literal: {PERSON!r}"), False),
        (KeyError(PERSON), False),
        (UnicodeDecodeError("utf-8", PERSON.encode() + b"\xff", 18, 19, "invalid start byte"), False),
        (BadOption(f"The option is {PERSON!r}"), False),
        (OSError(28, "No space left on device", f"/tmp/{PERSON}"), False),
        (RuntimeError("the pool is closed"), True),
        (EngineFailed("No run of the model ended."), True),
    ],
)
def test_logged_error_has_a_message_only_if_it_cannot_quote_input(error: Exception, shown: bool) -> None:
    logged = text_of(loggable_error(error))
    assert type(error).__name__ in logged
    assert PERSON not in logged
    assert (str(error) in logged) == shown


def test_logged_error_keeps_its_stack_and_causes() -> None:
    def fail() -> None:
        try:
            int(PERSON)
        except ValueError as error:
            raise EngineFailed("Nonsense.") from error

    with pytest.raises(EngineFailed) as caught:
        fail()
    logged = text_of(loggable_error(caught.value))
    assert all(text in logged for text in ("in fail", "Nonsense.", "ValueError"))
    assert PERSON not in logged


def text_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def test_unexpected_error_is_logged_without_its_message(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        assert client_raising(ValueError(PERSON)).post("/v1/ocr", data=png()).status_code == 500
        failure_of(LookupError(PERSON))
    assert "ValueError" in caplog.text
    assert "LookupError" in caplog.text
    assert PERSON not in caplog.text


@pytest.mark.parametrize("form", ["json", "text"])
def test_debug_log_contains_no_input_and_no_text(form: str, tmp_path: Path) -> None:
    env = {
        "OCRSVC_ENGINE": "fake",
        "OCRSVC_LOG_LEVEL": "debug",
        "OCRSVC_ACCESS_LOG": form,
        "OCRSVC_ADAPTERS": "trwebocr,umi_ocr,paddlex",
        "OCRSVC_JOBS_DIR": str(tmp_path),
    }
    with run_server(env) as server:
        texts = send_everything(server.url)
        log = server.log
        assert "/v1/ocr" in log, "requests are logged"
    for secret in (*texts, NAME, SECRET, PERSON, PHONE):
        assert secret not in server.log


def send_everything(url: str) -> list[str]:
    """Send valid and invalid pages in several formats; returns texts that must not be logged."""
    texts = []
    for shade in (10, 20):
        file = png(40 + shade, 33, shade)
        page = requests.post(f"{url}/v1/ocr", files={"file": (f"{NAME}.png", file)}, timeout=WAIT_S).json()["pages"][0]
        texts += page["text"].split("\n")
        requests.post(f"{url}/api/tr-run/", files={"file": (f"{NAME}.png", file)}, timeout=WAIT_S)
    bad = {
        "no image": {"files": {"file": (f"{NAME}.jpg", SECRET.encode() * 9)}},
        "cut off": {"files": {"file": (f"{NAME}.png", png()[:60] + SECRET.encode())}},
        "wrong option": {"params": {"mask": PERSON, PERSON: PHONE}, "data": png()},
        "wrong header": {"headers": {"X-Priority": PERSON, "X-Request-Timeout": PHONE}, "data": png()},
        "no JSON": {"data": f'{{"image": "{SECRET}"', "headers": {"Content-Type": "application/json"}},
        "wrong field": {"files": {NAME: (f"{NAME}.png", png())}},
        "no base64": {"json": {"image": f"{SECRET}*"}},
    }
    for asked in bad.values():
        response = requests.post(f"{url}/v1/ocr", timeout=WAIT_S, **asked)  # type: ignore[arg-type]
        assert response.status_code >= 400
    requests.post(f"{url}/ocr", json={"file": SECRET, "fileType": PERSON}, timeout=WAIT_S)
    requests.get(f"{url}/[{NAME}].png", timeout=WAIT_S)
    return texts + read_umi_document(url)


def read_umi_document(url: str) -> list[str]:
    """Read and download a read_umi_document over Umi-OCR's API; returns its text lines."""
    form = {"file": (f"{NAME}.pdf", io.BytesIO(pdf(b"0.5 g 0 0 100 100 re f")))}
    task = requests.post(f"{url}/api/doc/upload", files=form, timeout=WAIT_S).json()["data"]
    asked = {"id": task, "is_data": True, "is_unread": False, "format": "text"}

    def answer() -> dict[str, object]:
        found: dict[str, object] = requests.post(f"{url}/api/doc/result", json=asked, timeout=WAIT_S).json()
        return found

    wait_until(lambda: answer()["is_done"])
    made = requests.post(f"{url}/api/doc/download", json={"id": task, "file_types": ["txt"]}, timeout=WAIT_S).json()
    assert NAME in made["name"]
    assert requests.get(made["data"], timeout=WAIT_S).ok
    return str(answer()["data"]).split("\n")


def test_uncaught_errors_hide_their_message(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    log_uncaught()
    reader = threading.Thread(target=int, args=(PERSON,), name="reader-of-numbers")
    reader.start()
    reader.join()
    assert "The thread reader-of-numbers ended" in caplog.text
    assert "ValueError" in caplog.text
    assert PERSON not in caplog.text


@pytest.mark.parametrize(("log_text", "count"), [("off", 0), ("masked", 1)])
def test_masked_text_is_logged_if_asked_for(log_text: str, count: int, caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(log_text=log_text)  # type: ignore[arg-type]
    with running_reader(settings, NumberEngine) as reader, caplog.at_level(logging.DEBUG):
        assert PERSON in reader.read(png(), ReadOptions(), 30.0).page.text
    assert caplog.text.count(f"{'*' * 18} {'*' * 11}") == count
    assert PERSON not in caplog.text
    assert PHONE not in caplog.text
