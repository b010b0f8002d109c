"""Traces with each request's stages are sent to a collector; an unreachable collector delays no request."""

import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import requests
from grpc_support import V2, calling, infer_request, unary
from image_support import png
from support import QuietHandler, Server, http_server, reserved_port, run_server, wait_until

from ocrsvc.errors import SettingsError
from ocrsvc.settings.settings import Settings
from ocrsvc.telemetry import tracing
from ocrsvc.telemetry.ledger import STAGES, Segment
from ocrsvc.telemetry.trace_context import TraceContext, new_span_id, new_trace_id
from ocrsvc.telemetry.tracing import BatchLimits, RequestSpan, batch_limits, check_tracing, is_tracing

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
OTLP = {"OCRSVC_TRACES": "otlp", "OTEL_BSP_SCHEDULE_DELAY": "50", "OCRSVC_WORKERS": "1"}
PAGE = png()
MISSING = "the extra otel is not installed: opentelemetry-exporter-otlp-proto-http"


class Receiver:
    """A collector at `url` that keeps all spans in order and the latest resource attributes."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Any] = []
        self.resources: dict[str, str] = {}

    def take(self, body: bytes) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources = attributes_of(of_resource.resource)
            for scope in of_resource.scope_spans:
                self.spans.extend(scope.spans)

    @property
    def roots(self) -> list[Any]:
        """Request spans, whose kind is SPAN_KIND_SERVER (2)."""
        return [span for span in list(self.spans) if span.kind == 2]

    def children_of(self, root: Any) -> list[Any]:
        children = (span for span in list(self.spans) if span.parent_span_id == root.span_id)
        return sorted(children, key=lambda span: span.start_time_unix_nano)


def attributes_of(message: Any) -> dict[str, str]:
    return {pair.key: pair.value.string_value or str(pair.value.int_value) for pair in message.attributes}


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Run a collector on a free port; skips the test if the extra otel is not installed."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason=MISSING)
    receiver = Receiver()

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/v1/traces":
                receiver.take(body)
            self.answer(200 if self.path == "/v1/traces" else 404)

    with http_server(Handler) as receiver.url:
        yield receiver


def tracing_to(url: str, env: Mapping[str, str] | None = None) -> dict[str, str]:
    return {**OTLP, "OTEL_EXPORTER_OTLP_ENDPOINT": url, **(env or {})}


@dataclass(frozen=True, slots=True)
class Traced:
    """A service that sends traces to a collector, and its gRPC port."""

    server: Server
    receiver: Receiver
    grpc_port: int


@contextmanager
def run_traced(isolation: str) -> Iterator[Traced]:
    with receiving() as receiver, reserved_port() as port:
        env = {"OCRSVC_ISOLATION": isolation, "OCRSVC_FAKE_LATENCY_S": "0.05", "OTEL_RESOURCE_ATTRIBUTES": "zone=here"}
        with run_server(tracing_to(receiver.url, env | {"OCRSVC_GRPC_BIND": f"127.0.0.1:{port}"})) as server:
            yield Traced(server, receiver, port)


@pytest.fixture(scope="module", params=["thread", "process"])
def traced(request: pytest.FixtureRequest) -> Iterator[Traced]:
    with run_traced(request.param) as service:
        yield service


def roots_of(traced: Traced, *ids: str) -> list[Any]:
    def found() -> dict[str, Any]:
        return {attributes_of(root)["ocrsvc.request_id"]: root for root in traced.receiver.roots}

    wait_until(lambda: set(ids) <= set(found()), traced.server.log)
    return [found()[request_id] for request_id in ids]


def test_request_span_has_its_stages_as_children(traced: Traced) -> None:
    url = traced.server.url
    sent = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "rojo=1", "X-Request-Id": "mine"}
    answer = requests.post(f"{url}/v1/ocr", data=PAGE, headers=sent, timeout=30)
    refused = requests.post(f"{url}/v1/ocr", data=b"none", headers={"X-Request-Id": "bad"}, timeout=30)
    requests.get(f"{url}/healthz", timeout=30)
    root, other = roots_of(traced, "mine", "bad")
    _, trace_id, span_id, flags = answer.headers["traceparent"].split("-")
    assert (trace_id, flags, answer.headers["tracestate"]) == (TRACE, "01", "rojo=1")
    assert (root.trace_id.hex(), root.span_id.hex(), root.parent_span_id.hex()) == (TRACE, span_id, SPAN)
    assert (root.name, root.trace_state, attributes_of(root)["http.response.status_code"]) == (
        *("POST /v1/ocr", "rojo=1", "200"),
    )
    assert (traced.receiver.resources["service.name"], traced.receiver.resources["zone"]) == ("ocrsvc", "here")
    children = traced.receiver.children_of(root)
    assert {"receive", "decode", "detect", "answer"} <= {span.name for span in children} <= set(STAGES)
    # The stages follow one another without gaps from the start of the request to its end.
    ends = [root.start_time_unix_nano, *(span.end_time_unix_nano for span in children)]
    assert [span.start_time_unix_nano for span in children] == ends[:-1]
    assert ends[-1] == root.end_time_unix_nano
    assert other.trace_id.hex() == refused.headers["traceparent"].split("-")[1] != TRACE
    assert (other.parent_span_id, attributes_of(other)["error.type"]) == (b"", "unsupported_image")


def test_grpc_call_is_a_span(traced: Traced) -> None:
    with calling(traced.grpc_port) as channel:
        infer = unary(channel, f"{V2}ModelInfer", "inference.ModelInferResponse")
        metadata = [("traceparent", f"00-{TRACE}-{SPAN}-01")]
        _, call = infer.with_call(infer_request(PAGE), metadata=metadata, wait_for_ready=True)
    answered = dict(call.initial_metadata())
    [root] = roots_of(traced, answered["x-request-id"])
    assert answered["traceparent"] == f"00-{TRACE}-{root.span_id.hex()}-01"
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, SPAN)
    assert root.name == "inference.GRPCInferenceService/ModelInfer"
    assert {"decode", "detect", "answer"} <= {span.name for span in traced.receiver.children_of(root)}
    wait_until(lambda: traced.server.metric("ocrsvc_trace_spans_total") == len(traced.receiver.spans))


def test_replaced_worker_sends_its_last_spans() -> None:
    # With this delay of 10 min, spans are only sent when the worker stops.
    env = {"OTEL_BSP_SCHEDULE_DELAY": "600000"}
    with receiving() as receiver, run_server(tracing_to(receiver.url, env)) as server:
        [worker] = server.workers()
        for _ in range(5):
            requests.post(f"{server.url}/v1/ocr", data=PAGE, timeout=30)
        assert receiver.spans == []
        os.kill(worker, signal.SIGUSR2)
        server.wait_for(f"RECYCLED worker {worker}: operator")
        assert len(receiver.roots) == 5


def test_unreachable_collector_delays_no_request_and_spans_count_as_dropped() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason=MISSING)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        # This port accepts connections and never answers.
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        env = {"OTEL_EXPORTER_OTLP_TIMEOUT": "60", "OTEL_BSP_MAX_QUEUE_SIZE": "20"}
        with run_server(tracing_to(url, env)) as server:
            began_s = time.monotonic()
            for _ in range(30):
                assert requests.post(f"{server.url}/v1/ocr", data=PAGE, timeout=30).status_code == 200
            assert time.monotonic() - began_s < 40
            assert server.metric("ocrsvc_trace_spans_dropped_total") > 50
            began_s = time.monotonic()
            assert server.stop() == 0
            # The stop must not wait for the export timeout of 60 s.
            assert time.monotonic() - began_s < 30


class Exporter:
    """An exporter that can be made to fail."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails

    def export(self, _spans: Sequence[Any]) -> Any:
        from opentelemetry.sdk.trace.export import SpanExportResult

        return SpanExportResult.FAILURE if self.fails else SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        pass


def make(exporter: Any, ratio: float = 1.0, **limits: Any) -> tuple[Any, list[int]]:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason=MISSING)
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    from ocrsvc.telemetry.otlp import OtlpTracer

    dropped: list[int] = []
    provider = TracerProvider(ParentBased(TraceIdRatioBased(ratio)), shutdown_on_exit=False)
    chosen = BatchLimits(**{"delay_s": 600.0} | limits)
    return OtlpTracer(provider, exporter, chosen, dropped.append, bool), dropped


def span() -> RequestSpan:
    segments = (Segment("receive", 0.0, 1.0), Segment("answer", 1.0, 2.0))
    context = TraceContext(new_trace_id(), new_span_id(), flags=1)
    return RequestSpan(context, "POST /v1/ocr", {}, segments, 0.0, 2.0, 1_700_000_000.0)


def test_ratio_applies_only_to_own_traces() -> None:
    tracer, _ = make(Exporter(), ratio=0.25)
    begun = [tracer.begin(None, "x", may_start_trace=True) for _ in range(4000)]
    # Within four standard deviations of the binomial distribution.
    assert abs(sum(context.is_sampled for context in begun) - 1000) < 4 * (4000 * 0.25 * 0.75) ** 0.5
    assert len({context.trace_id for context in begun}) == len({context.span_id for context in begun}) == 4000
    for flags in (0, 1):
        caller = TraceContext("f" * 32, SPAN, flags=flags, state="a=1")
        own = tracer.begin(caller, "x", may_start_trace=False)
        assert (own.trace_id, own.parent_id, own.flags, own.state) == ("f" * 32, SPAN, flags, "a=1")
        assert own.span_id != SPAN
    assert not any(tracer.begin(None, "x", may_start_trace=False).is_sampled for _ in range(50))
    tracer.stop(1.0)


def test_failed_exports_are_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    exporter = Exporter(fails=True)
    tracer, dropped = make(exporter, batch_spans=1)
    for _ in range(20):
        tracer.put(span())
    wait_until(lambda: sum(dropped) == 60)
    exporter.fails = False
    tracer.put(span())
    tracer.stop(10.0)
    first, last = (record.message for record in caplog.records)
    assert first.startswith("Traces cannot be exported")
    assert last.startswith("Traces are exported again; 60 spans were lost")


def test_missing_extra_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(traces="otlp")
    monkeypatch.setattr(tracing, "is_installed", lambda name: "exporter" not in name)
    with pytest.raises(SettingsError, match=r"OCRSVC_TRACES is 'otlp'.*otlp.proto.http cannot be imported") as raised:
        check_tracing(settings, {})
    assert ".[otel]" in str(raised.value)
    check_tracing(Settings(), {})
    check_tracing(settings, {"OTEL_SDK_DISABLED": "true"})


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_BSP_SCHEDULE_DELAY", "soon"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "-1"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "9" * 30),
    ],
)
def test_unknown_opentelemetry_variable_is_refused(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "is_installed", lambda _: True)
    with pytest.raises(SettingsError, match=variable):
        check_tracing(Settings(traces="otlp"), {variable: value})


def test_opentelemetry_variables_apply() -> None:
    assert batch_limits({}) == BatchLimits(2048, 512, 5.0)
    env = {"OTEL_BSP_MAX_QUEUE_SIZE": "100", "OTEL_BSP_SCHEDULE_DELAY": "250"}
    assert batch_limits(env) == BatchLimits(100, 100, 0.25)
    assert not is_tracing(Settings(traces="otlp"), {"OTEL_SDK_DISABLED": "True"})


RECYCLES = 5
ENV = {
    **OTLP,
    "OCRSVC_MAX_REQUESTS": "5",
    "OCRSVC_LOG_FORMAT": "json",
    "OCRSVC_ACCESS_LOG": "json",
    "OTEL_BSP_SCHEDULE_DELAY": "600000",
}


def ask_until_recycled(server: Server, number: int, answers: dict[str, Any]) -> None:
    url, count = f"{server.url}/v1/ocr", 0
    with requests.Session() as session:
        while server.log.count('"event":"recycled"') < RECYCLES:
            request_id = f"{number}-{(count := count + 1)}"
            answer = session.post(url, data=PAGE, headers={"X-Request-Id": request_id}, timeout=30)
            answers[request_id] = answer.status_code, answer.headers["X-Request-Id"]


def test_five_recycles_lose_and_duplicate_nothing() -> None:
    answers: dict[str, Any] = {}
    with receiving() as receiver:
        with run_server(ENV | {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}) as server:
            clients = [
                threading.Thread(target=ask_until_recycled, args=(server, number, answers)) for number in range(3)
            ]
            for client in clients:
                client.start()
            for client in clients:
                client.join()
            names = (
                *('requests_total{adapter="api",code="ok",status="200"}', 'request_seconds_count{adapter="api"}'),
                *('recycles_total{reason="max_requests"}', "access_events_dropped_total", "log_lines_dropped_total"),
            )
            counts = [server.metric(f"ocrsvc_{name}") for name in names]
        events = [json.loads(line) for line in server.lines]
    assert {status for status, _ in answers.values()} == {200}
    assert all(returned_id == request_id for request_id, (_, returned_id) in answers.items())
    recycles = counts.pop(2)
    assert (counts, recycles >= RECYCLES) == ([len(answers), len(answers), 0, 0], True)
    lines = Counter(event["id"] for event in events if event["event"] == "request" and event["adapter"] == "api")
    assert lines == Counter(dict.fromkeys(answers, 1))
    assert Counter(attributes_of(root)["ocrsvc.request_id"] for root in receiver.roots) == lines
    assert [event for event in events if event["level"] in {"error", "critical"}] == []
    # A worker's last log lines must also arrive.
    assert Counter(event["event"] for event in events)["draining"] >= RECYCLES
