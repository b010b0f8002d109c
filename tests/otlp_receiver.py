"""A collector of traces: a real HTTP server that decodes what OTLP's exporter sends it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support import QuietHandler, http_server

# What the extra otel brings.
MISSING = "the extra otel is not installed: opentelemetry-exporter-otlp-proto-http"


class Receiver:
    """Keeps every span that came, in order, and the last attributes of their resource; `url` is its endpoint."""

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
        """The spans of requests; SPAN_KIND_SERVER is 2."""
        return [span for span in list(self.spans) if span.kind == 2]

    def children_of(self, root: Any) -> list[Any]:
        children = (span for span in list(self.spans) if span.parent_span_id == root.span_id)
        return sorted(children, key=lambda span: span.start_time_unix_nano)


def attributes_of(message: Any) -> dict[str, str]:
    return {pair.key: pair.value.string_value or str(pair.value.int_value) for pair in message.attributes}


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A collector on a free port; skips the test without the extra."""
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
