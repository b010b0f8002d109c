"""The engine `remote` with a stand-in for OpenAI-compatible servers, whose answers are in chat_answers.yaml."""

import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_stand_in import chat_server
from image_support import png
from support import data_of, ocrsvc, reserved_port, run_program, run_server, wait_until

from ocrsvc.client import Client
from ocrsvc.engines.open_engine import open_engine
from ocrsvc.engines.remote.alignment import align
from ocrsvc.engines.remote.page_text import clean_markdown, page_of, plain_lines
from ocrsvc.engines.remote.prompts import PROMPTS
from ocrsvc.engines.remote.repetition import RepetitionDetector
from ocrsvc.errors import ClientGone, DeadlineExceeded, EngineUnavailable, OcrsvcError
from ocrsvc.results import Box, Fallback, Image, Line, ReadOptions, ReadTask, Word
from ocrsvc.settings.load import read_settings
from ocrsvc.system.thread_plan import ThreadPlan, plan_for

CASES: dict[str, Any] = data_of("remote")
KEY = "sk-very-secret"


def settings_of(url: str, **more: str) -> dict[str, str]:
    settings = {"URL": url, "MODEL": "ocr", "KEY": KEY, "LOCAL": "fake", "TIMEOUT_S": "0.5"} | more
    return {"OCRSVC_ENGINE": "remote"} | {f"OCRSVC_REMOTE_{name}": value for name, value in settings.items()}


@contextmanager
def reading(url: str, **more: str) -> Iterator[Callable[[ReadTask], Any]]:
    """Open the engine with these settings; yields a function that reads a task."""
    engine = open_engine(read_settings(settings_of(url, **more)), ThreadPlan(1, 1, 1))
    try:
        yield lambda task: engine.open_handle().read([task])[0]
    finally:
        engine.close()


def task_of(**options: Any) -> ReadTask:
    return ReadTask(Image(np.full((20, 40), 255, np.uint8), "png"), ReadOptions(**options))


@pytest.mark.parametrize("name", ["ok", "llama_cpp", "ollama"])
def test_the_text_of_each_kind_of_server_becomes_the_page(name: str) -> None:
    with chat_server(lambda _size: name) as server, reading(server.url) as read:
        page = read(task_of())
    assert page.text.splitlines()[0] == "Page 40x20"
    assert (page.markdown, page.fallback) != (None, None)
    wanted = {"path": "/v1/chat/completions", "key": f"Bearer {KEY}", "model": "ocr", "stream": True, "temperature": 0}
    assert server.requests[0].items() >= (wanted | {"max_tokens": 8192}).items()


@pytest.mark.parametrize(("name", "reason"), CASES["reasons"].items())
def test_after_each_fault_the_local_engine_reads_the_page_and_the_fault_is_named(name: str, reason: str) -> None:
    with chat_server(lambda _size: name) as server, reading(server.url) as read:
        page = read(task_of())
        wait_until(lambda: server.counts["in progress"] == 0)
    assert (page.fallback.engine, page.fallback.reason) == ("fake", reason)
    assert page.text.startswith("40x20\n")
    assert server.counts["closed by the client"] == (name == "stall")
    assert name != "repeat" or not server.counts["finished"]


def test_an_unreachable_server_costs_no_time() -> None:
    with reserved_port() as port, reading(f"http://127.0.0.1:{port}", TIMEOUT_S="60") as read:
        began_s = time.monotonic()
        assert [read(task_of()).fallback.reason for _ in range(5)] == ["unreachable"] * 5
        assert time.monotonic() - began_s < 5


def test_a_request_is_repeated_after_a_short_refusal() -> None:
    names = iter(["short_limit", "ok"])
    with chat_server(lambda _size: next(names)) as server, reading(server.url, TIMEOUT_S="20") as read:
        assert read(task_of()).fallback is None
    assert [server.counts["short_limit"], server.counts["ok"]] == [1, 1]


def test_pages_are_spread_over_servers_and_unreachable_ones_are_skipped() -> None:
    with (
        chat_server(lambda _size: "ok") as one,
        reserved_port() as dead,
        reading(f"{one.url},http://127.0.0.1:{dead}") as read,
    ):
        assert [read(task_of()).fallback for _ in range(6)] == [None] * 6


@pytest.mark.parametrize("error", [ClientGone, DeadlineExceeded])
def test_a_check_that_raises_closes_the_call_at_once(error: type[OcrsvcError]) -> None:
    def check() -> None:
        if server.counts["in progress"]:
            raise error("now")

    with chat_server(lambda _size: "stall") as server, reading(server.url, TIMEOUT_S="60") as read:
        assert isinstance(read(replace(task_of(), check=check)), error)
        wait_until(lambda: server.counts["closed by the client"] == 1)


def test_the_model_has_half_of_the_time_until_the_deadline() -> None:
    with chat_server(lambda _size: "stall") as server, reading(server.url, TIMEOUT_S="60") as read:
        assert read(replace(task_of(), deadline=time.monotonic() + 1.0)).fallback == Fallback("fake", "late")


@pytest.mark.parametrize("name", PROMPTS)
def test_each_prompt_is_sent_with_an_image_of_its_size(name: str) -> None:
    with chat_server(lambda _size: "ok") as server, reading(server.url, PROMPT=name) as read:
        read(ReadTask(Image(np.full((100, 5000, 3), 255, np.uint8), "png")))
    sent, wanted = server.requests[0], CASES["prompts"][name]
    content = sent["messages"][0]["content"]
    assert [part["type"] for part in content] == wanted["parts"]
    assert next(part["text"] for part in content if "text" in part).startswith(wanted["begins"])
    assert sent["size"] == wanted["size"]
    assert sent.get("vllm_xargs") == wanted.get("vllm_xargs")


@pytest.mark.parametrize("case", CASES["markdown"], ids=lambda case: case["name"])
def test_markdown_of_models_is_cleaned(case: dict[str, Any]) -> None:
    markdown = clean_markdown(case["text"])
    assert markdown == case["markdown"]
    assert plain_lines(markdown) == case["lines"]


@pytest.mark.parametrize("text", CASES["hostile"])
def test_hostile_text_costs_linear_time(text: str) -> None:
    began_s = time.monotonic()
    page_of(clean_markdown(text * (200_000 // len(text))), 100, 50, whole=False)
    assert time.monotonic() - began_s < 5


@pytest.mark.parametrize(("piece", "times", "repeats"), CASES["repetition"])
def test_repeating_text_is_detected_but_a_blank_form_is_not(piece: str, times: int, *, repeats: bool) -> None:
    detector = RepetitionDetector()
    assert not any(detector.is_repeating(text) for text in "".join(map(str, range(3000))))
    assert any([detector.is_repeating(piece) for _ in range(times)]) == repeats  # noqa: C419  every piece must be added


def line_of(text: str, top: float) -> Line:
    """A line with its words; each character is 10 px wide."""

    def box(begin: int, end: int) -> Box:
        return (begin * 10.0, top), (end * 10.0, top), (end * 10.0, top + 10), (begin * 10.0, top + 10)

    words = (Word(word[0], 0.5, box(*word.span())) for word in re.finditer(r"\S+", text))
    return Line(text, 0.5, box(0, len(text)), tuple(words))


@pytest.mark.parametrize("case", CASES["alignment"], ids=lambda case: case["name"])
def test_remote_text_is_put_into_local_lines(case: dict[str, Any]) -> None:
    lines = [line_of(text, 20.0 * at) for at, text in enumerate(case["local"])]
    aligned = align(lines, case["remote"])
    assert [line.text for line in aligned] == case["aligned"]
    assert [(line.box, line.confidence) for line in aligned] == [(line.box, line.confidence) for line in lines]
    for line in aligned:
        assert "".join(word.text for word in line.words or ()) == "".join(line.text.split())


def test_words_have_the_boxes_of_their_characters() -> None:
    (line,) = align([line_of("Tota1 am0unt due", 0.0)], ["Total amount: due"])
    spans = [(word.text, word.box[0][0], word.box[1][0]) for word in line.words or ()]
    assert spans == [("Total", 0.0, 50.0), ("amount:", 60.0, 120.0), ("due", 130.0, 160.0)]


def test_lines_with_remote_text_come_from_the_local_engine() -> None:
    with chat_server(lambda _size: "ok") as server, reading(server.url, MODE="lines") as read:
        page = read(task_of(words=True))
        assert (page.markdown, page.fallback, page.text.split("\n")[0]) == (None, None, "Page 40x20")
        assert [line.confidence for line in page.lines] == [1.0, 0.5]


def test_the_engines_version_names_the_local_engine() -> None:
    engine = open_engine(read_settings(settings_of("http://127.0.0.1:1", MODE="lines")), ThreadPlan(1, 1, 1))
    assert "fake" in engine.describe().version
    engine.close()


@pytest.mark.parametrize("changed", CASES["wrong settings"], ids=str)
def test_wrong_settings_stop_the_start(changed: dict[str, str]) -> None:
    with pytest.raises(EngineUnavailable) as raised:
        open_engine(read_settings(settings_of("http://127.0.0.1:1") | changed), ThreadPlan(1, 1, 1))
    assert KEY not in str(raised.value)


def test_the_setting_and_not_the_number_of_cores_limits_concurrent_pages() -> None:
    assert plan_for(read_settings(settings_of("http://127.0.0.1:1", CONCURRENCY="40"))).engine_threads == 40


def test_the_key_is_shown_nowhere() -> None:
    shown = ocrsvc("settings", **settings_of("http://127.0.0.1:1"))
    assert "OCRSVC_REMOTE_KEY" in shown.stdout
    assert KEY not in shown.stdout + shown.stderr


def test_a_service_answers_with_markdown_or_names_the_engine_that_read_the_page() -> None:
    names = {"40x20": "ok", "50x20": "wrong_key", "60x20": "stall"}
    with chat_server(lambda size: names[size]) as chat, run_server(settings_of(chat.url, TIMEOUT_S="20")) as server:
        with Client(server.url) as client:
            (read,) = client.read(png(40, 20, 255)).pages
            assert (read.markdown, read.fallback) == ("# Page 40x20\n\nread remotely", None)
            assert client.read(png(40, 20, 255), mask="id").pages[0].markdown is None
            (local,) = client.read(png(50, 20, 255)).pages
            assert (local.markdown, local.fallback) == (None, Fallback("fake", "rejected"))
        assert server.metric('ocrsvc_remote_fallbacks_total{reason="rejected"}') == 1
        with socket.create_connection(server.address) as wire:
            body = png(60, 20, 255)
            wire.sendall(b"POST /v1/ocr HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            wait_until(lambda: chat.counts["in progress"] == 1)
        wait_until(lambda: chat.counts["closed by the client"] == 1)
    assert "fallback to fake: rejected" in server.log
    assert KEY not in server.log


def test_in_the_benchmark_each_page_is_answered_once(tmp_path: Path) -> None:
    done = run_program("benchmarks/remote.py", "--pages", "200", "--out", tmp_path / "remote.json")
    assert done.returncode == 0, done.stdout + done.stderr
