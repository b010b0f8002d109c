"""Counters, lines of the logs and traces are exact, while workers are replaced again and again under load."""

from __future__ import annotations

import json
import threading
from collections import Counter
from typing import Any

import requests
from image_support import png
from otlp_receiver import attributes_of, receiving
from prometheus_client.parser import text_string_to_metric_families
from support import Server, run_server

RECYCLES = 5
_ANSWER_S = 30.0
ENV = {
    "OCRSVC_WORKERS": "1",
    "OCRSVC_MAX_REQUESTS": "5",
    "OCRSVC_LOG_FORMAT": "json",
    "OCRSVC_ACCESS_LOG": "json",
    "OCRSVC_TRACES": "otlp",
    "OTEL_BSP_SCHEDULE_DELAY": "600000",
}


def ask_until_recycled(server: Server, url: str, number: int, answers: dict[str, Any]) -> None:
    """One request after the other, each with an id of its own, until there were enough recycles."""
    page, count = png(), 0
    with requests.Session() as session:
        while server.log.count('"event":"recycled"') < RECYCLES:
            request_id = f"{number}-{(count := count + 1)}"
            answer = session.post(f"{url}/v1/ocr", data=page, headers={"X-Request-Id": request_id}, timeout=_ANSWER_S)
            answers[request_id] = answer.status_code, answer.headers["X-Request-Id"]


def counted(url: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """The samples of /metrics."""
    text = requests.get(f"{url}/metrics", timeout=_ANSWER_S).text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_nothing_is_lost_or_counted_twice_over_five_recycles() -> None:
    answers: dict[str, Any] = {}
    with receiving() as receiver:
        with run_server(ENV | {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}) as server:
            url = json.loads(server.wait_for("Listening at").string)["message"].split()[2]
            clients = [
                threading.Thread(target=ask_until_recycled, args=(server, url, number, answers)) for number in range(3)
            ]
            for client in clients:
                client.start()
            for client in clients:
                client.join()
            found = counted(url)
        events = [json.loads(line) for line in server.lines]
    assert {status for status, _ in answers.values()} == {200}
    assert all(told == request_id for request_id, (_, told) in answers.items())
    api = (("adapter", "api"), ("code", "ok"), ("status", "200"))
    assert found["ocrsvc_requests_total", api] == len(answers)
    assert found["ocrsvc_request_seconds_count", (("adapter", "api"),)] == len(answers)
    assert found["ocrsvc_recycles_total", (("reason", "max_requests"),)] >= RECYCLES
    lines = Counter(event["id"] for event in events if event["event"] == "request" and event["adapter"] == "api")
    assert lines == Counter(dict.fromkeys(answers, 1))
    assert Counter(attributes_of(root)["ocrsvc.request_id"] for root in receiver.roots) == lines
    assert found["ocrsvc_access_events_dropped_total", ()] == found["ocrsvc_log_lines_dropped_total", ()] == 0
    assert [event for event in events if event["level"] in {"error", "critical"}] == []
    # The last words of a worker are there, too.
    assert Counter(event["event"] for event in events)["draining"] >= RECYCLES
