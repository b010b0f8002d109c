"""A request's stages add up to its total time, in whichever thread or process they run, and its answer lists them."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import create_autospec

import pytest
import requests
from image_support import png
from support import Clock, run_server
from web_support import json_of, running_app

from ocrsvc.engines.contract import EngineTraits
from ocrsvc.models.loaded_models import Lease
from ocrsvc.pipeline.decode_job import DecodeJob, make_read_request
from ocrsvc.results import EngineTimes, Page, ReadOptions
from ocrsvc.telemetry.ledger import MAX_SEGMENTS, STAGES, Ledger, Segment


@pytest.fixture
def clock() -> Clock:
    return Clock(0.0)


def phases(
    times: EngineTimes | None, queued_at: float, wait_s: float, run_s: float, *, ahead: bool
) -> Sequence[Segment]:
    """Segments of a page with these queue and engine times."""
    request = replace(make_read_request(ReadOptions(), 1.0), lease=create_autospec(Lease, instance=True))
    job = DecodeJob(request, EngineTraits())
    job.queued_at, job.queue_s, job.run_s, job.is_ahead = queued_at, wait_s, run_s, ahead
    return job.phases(Page(1, 1, 0, (), times=times))


def test_waiting_for_a_page_counts_as_the_stages_of_that_page(clock: Clock) -> None:
    ledger = Ledger(0.0, clock)
    ledger.enter("wait")
    clock.now_s = 10.0
    # Queued before this thread waited; taken at 2, decoded at 3, lines found at 5, read at 9; this thread woke at 10.
    ledger.note_page(phases(EngineTimes(3.0, 5.0, 9.0), -2.0, 4.0, 7.0, ahead=False))
    ledger.enter("answer")
    clock.now_s = 11.0
    seconds = ledger.seconds()
    assert seconds == {"receive": 0, "decode": 1, "wait": 3, "detect": 2, "recognise": 4, "answer": 1}


def test_parallel_pages_count_each_second_once(clock: Clock) -> None:
    ledger = Ledger(0.0, clock)
    ledger.enter("wait")
    for end_s in (4.0, 5.0):
        clock.now_s = end_s
        ledger.note_page(phases(EngineTimes(0.5, 2.0, end_s), 0.0, 0.5, end_s - 0.5, ahead=True))
    assert sum(ledger.seconds().values()) == 5.0
    assert (ledger.seconds()["detect"], ledger.seconds()["recognise"], ledger.pages) == (1.5, 3.0, 2)


def test_an_engine_without_stages_counts_as_reading() -> None:
    found = phases(None, 10.0, 1.0, 2.0, ahead=True)
    lasting = [(phase.stage, phase.end_s - phase.begin_s) for phase in found if phase.begin_s < phase.end_s]
    assert lasting == [("wait", 1.0), ("recognise", 2.0)]


def test_a_long_document_keeps_few_segments_and_counts_every_second(clock: Clock) -> None:
    ledger = Ledger(0.0, clock)
    for number in range(10_000):
        clock.now_s = float(number)
        ledger.enter("decode" if number % 2 else "wait")
    assert (len(ledger.segments), sum(ledger.seconds().values())) == (MAX_SEGMENTS, 9999.0)


@pytest.mark.parametrize("form", ["json", "text"])
def test_an_answer_lists_its_stages_only_on_request(form: str) -> None:
    with running_app() as app:
        client = app.test_client()
        plain = client.post(f"/v1/ocr?format={form}", data=png())
        asked = client.post(f"/v1/ocr?format={form}&timing=stages", data=png())
    assert "Server-Timing" not in plain.headers
    reported = {name: float(ms) for name, ms in re.findall(r"(\w+);dur=([\d.]+)", asked.headers["Server-Timing"])}
    assert list(reported) == [*STAGES, "total"]
    assert sum(reported.values()) == pytest.approx(2 * reported["total"], abs=0.01)
    if form == "json":
        timing = json_of(asked)["timing"]
        assert sum(timing["stages"].values()) == pytest.approx(timing["request_s"], abs=1e-5)
        assert timing["total_s"] <= timing["request_s"]
        assert set(json_of(plain)["timing"]) == {"decode_s", "queue_s", "engine_s", "total_s"}


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_engine_stages_are_reported_from_a_thread_and_a_child_process(isolation: str) -> None:
    env = {"OCRSVC_ISOLATION": isolation, "OCRSVC_FAKE_LATENCY_S": "0.2", "OCRSVC_WORKERS": "1"}
    with run_server(env) as server:
        answer = requests.post(f"{server.url}/v1/ocr?timing=stages", data=png(), timeout=30)
    timing = json.loads(answer.text)["timing"]
    # The fake engine counts its latency as finding lines.
    assert 0.2 <= timing["stages"]["detect_s"] < 0.2 + timing["engine_s"]
    assert sum(timing["stages"].values()) == pytest.approx(timing["request_s"], abs=1e-5)
    assert timing["request_s"] >= timing["total_s"]
