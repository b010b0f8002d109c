"""Exports the traces of requests over OTLP/HTTP, with OpenTelemetry's SDK (extra `otel`), from a thread of its own.

On the way of a request stand the sampler's decision and one append to a bounded queue; spans are made of what was
appended by the thread, a batch at a time. Imported only where traces are on, and after the fork.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from ocrsvc import __version__
from ocrsvc.telemetry.otel_settings import BatchLimits
from ocrsvc.telemetry.trace_context import SAMPLED, TraceContext, new_span_id, new_trace_id
from ocrsvc.telemetry.tracing import RequestSpan

LOGGER: Final = logging.getLogger("ocrsvc.traces")

_SCOPE: Final = InstrumentationScope("ocrsvc", __version__)
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_NS: Final = 1_000_000_000
_ROOT: Final = Context()

Count = Callable[[int], object]
"""Called with a number of spans."""


class OtlpTracer:
    """See tracing.Tracer. Its thread starts with the first trace: that is after the fork, which no thread survives.

    Args:
        sampler: Decides which traces are recorded.
        exporter: Sends spans; used by the thread alone.
        resource: What the spans are of.
        limits: Of the queue and of a batch.
        on_drop: Of spans that found the queue full, or could not be sent.
        on_export: Of spans that were sent.
    """

    def __init__(
        self,
        sampler: Sampler,
        exporter: SpanExporter,
        resource: Resource,
        limits: BatchLimits,
        on_drop: Count,
        on_export: Count,
    ) -> None:
        self._sampler, self._exporter, self._limits = sampler, exporter, limits
        self._resource = _ServiceResource(resource.attributes, resource.schema_url)
        self._on_drop, self._on_export = on_drop, on_export
        self._queue: deque[RequestSpan] = deque()
        self._queued_spans = 0
        self._lock = threading.Lock()
        self._wanted, self._stopping = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._lost_spans = 0

    def begin(self, caller: TraceContext | None, name: str, *, is_traced_alone: bool) -> TraceContext | None:
        """See tracing.Tracer."""
        trace_id = caller.trace_id if caller is not None else new_trace_id()
        is_sampled = (caller is not None or is_traced_alone) and self._is_sampled(caller, trace_id, name)
        if caller is None:
            return TraceContext(trace_id, new_span_id(), flags=SAMPLED if is_sampled else 0)
        flags = caller.flags | SAMPLED if is_sampled else caller.flags & ~SAMPLED
        return TraceContext(trace_id, new_span_id(), caller.span_id, flags, caller.state)

    def put(self, span: RequestSpan) -> None:
        """See tracing.Tracer."""
        size = _size_of(span)
        with self._lock:
            is_taken = self._queued_spans + size <= self._limits.queue_spans and not self._stopping.is_set()
            if is_taken:
                self._queue.append(span)
                self._queued_spans += size
        if not (is_taken and self._start()):
            self._on_drop(size)
        elif self._queued_spans >= self._limits.batch_spans:
            self._wanted.set()

    def stop(self, timeout_s: float) -> None:
        """Send what is queued, but not for longer than this; the rest is dropped. Safe to call when there was none."""
        end_s = time.monotonic() + timeout_s
        self._stopping.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                # It ends the exporter's waits between two tries.
                self._exporter.shutdown()
                self._thread.join(max(0.0, end_s - time.monotonic()))
        with self._lock:
            left, self._queued_spans = self._queued_spans, 0
            self._queue.clear()
        if left:
            self._on_drop(left)

    def _is_sampled(self, caller: TraceContext | None, trace_id: str, name: str) -> bool:
        context = _ROOT if caller is None else set_span_in_context(NonRecordingSpan(_remote(caller)), _ROOT)
        decided = self._sampler.should_sample(context, int(trace_id, 16), name, SpanKind.SERVER).decision
        return decided is Decision.RECORD_AND_SAMPLE

    def _start(self) -> bool:
        """Whether the thread runs; where the system refuses one, the next trace tries again."""
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="traces", daemon=True)
                    try:
                        thread.start()
                    except RuntimeError:
                        self._queue.clear()
                        self._queued_spans = 0
                        return False
                    self._thread = thread
        return True

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wanted.wait(self._limits.delay_s)
            self._wanted.clear()
            while batch := self._take_batch():
                self._export(batch)
        while batch := self._take_batch():
            self._export(batch)

    def _take_batch(self) -> list[ReadableSpan]:
        """The spans of the oldest requests, as many as one batch holds, those of one request at least."""
        spans: list[ReadableSpan] = []
        while self._queue and len(spans) < self._limits.batch_spans:
            with self._lock:
                if not self._queue:
                    break
                span = self._queue.popleft()
                self._queued_spans -= _size_of(span)
            spans.extend(self._spans_of(span))
        return spans

    def _export(self, batch: list[ReadableSpan]) -> None:
        try:
            is_sent = self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception:  # noqa: BLE001  a batch that cannot be sent must not end the thread
            is_sent = False
        if is_sent:
            self._on_export(len(batch))
            if self._lost_spans:
                LOGGER.warning("Traces are exported again; %s spans were lost", self._lost_spans)
            self._lost_spans = 0
            return
        if not self._lost_spans:
            LOGGER.warning("Traces cannot be exported to the address in OTEL_EXPORTER_OTLP_ENDPOINT; they are dropped")
        self._lost_spans += len(batch)
        self._on_drop(len(batch))

    def _spans_of(self, span: RequestSpan) -> Iterator[ReadableSpan]:
        """The request's own span, and one for each segment of its ledger."""
        own, context = _local(span.context), span.context
        yield ReadableSpan(
            span.name,
            own,
            _remote(context, context.parent_id) if context.parent_id else None,
            self._resource,
            span.attributes,
            kind=SpanKind.SERVER,
            status=_FAILED if span.error else _UNSET,
            start_time=_unix_ns(span, span.began_s),
            end_time=_unix_ns(span, span.ended_s),
            instrumentation_scope=_SCOPE,
        )
        for segment in span.segments:
            yield ReadableSpan(
                segment.stage,
                SpanContext(own.trace_id, int(new_span_id(), 16), is_remote=False, trace_flags=_SAMPLED),
                own,
                self._resource,
                start_time=_unix_ns(span, segment.begin_s),
                end_time=_unix_ns(span, segment.end_s),
                instrumentation_scope=_SCOPE,
            )


_UNSET: Final = Status(StatusCode.UNSET)
_FAILED: Final = Status(StatusCode.ERROR)


class _ServiceResource(Resource):  # type: ignore[misc, unused-ignore]  # where the extra is not installed
    """The one resource here. The exporter groups spans by it, and the SDK's own hash writes it as JSON each time."""

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


def make_tracer(ratio: float | None, limits: BatchLimits, on_drop: Count, on_export: Count) -> OtlpTracer:
    """A tracer that reads what it needs from the environment variables of OpenTelemetry's SDK.

    Args:
        ratio: Of the traces that begin here, how many are recorded; None leaves it to OTEL_TRACES_SAMPLER.
        limits, on_drop, on_export: As for OtlpTracer.
    """
    # The exporter logs each try, and a collector that is away is away for long.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
    sampler = ParentBased(TraceIdRatioBased(ratio)) if ratio is not None else None
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    return OtlpTracer(provider.sampler, OTLPSpanExporter(), _resource(), limits, on_drop, on_export)


def _resource() -> Resource:
    """The service by OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, else by its own name; and this process."""
    given = Resource.create()
    own: dict[str, str | int] = {"service.version": __version__, "process.pid": os.getpid()}
    if str(given.attributes.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service"):
        own[SERVICE_NAME] = "ocrsvc"
    return given.merge(Resource({**own}))


def _local(context: TraceContext) -> SpanContext:
    return _span_context(context, context.span_id, is_remote=False)


def _remote(context: TraceContext, span_id: str = "") -> SpanContext:
    return _span_context(context, span_id or context.span_id, is_remote=True)


def _span_context(context: TraceContext, span_id: str, *, is_remote: bool) -> SpanContext:
    state = TraceState.from_header([context.state]) if context.state else None
    flags = TraceFlags(context.flags)
    return SpanContext(int(context.trace_id, 16), int(span_id, 16), is_remote, flags, state)


def _unix_ns(span: RequestSpan, at_s: float) -> int:
    return int((span.epoch_s + at_s) * _NS)


def _size_of(span: RequestSpan) -> int:
    return 1 + len(span.segments)
