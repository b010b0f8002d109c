"""Exports the traces of requests over OTLP/HTTP with OpenTelemetry's SDK (extra `otel`).

Imported only if traces are on. Create a tracer after the fork, because the SDK's span processor starts a thread.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from random import getrandbits
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, TraceState, set_span_in_context
from opentelemetry.trace.status import Status, StatusCode

from ocrsvc import __version__
from ocrsvc.telemetry.trace_context import SAMPLED, TraceContext, new_span_id, new_trace_id
from ocrsvc.telemetry.tracing import BatchLimits, RequestSpan

LOGGER: Final = logging.getLogger("ocrsvc.traces")
_NS: Final = 1_000_000_000
_ROOT: Final = Context()
_SCOPE: Final = InstrumentationScope("ocrsvc", __version__)

# A callback, called with the number of spans that were dropped or exported.
Count = Callable[[int], object]


class CountingExporter(SpanExporter):  # type: ignore[misc, unused-ignore]  # where the extra is not installed
    """Limits and counts the spans that wait for export, because the SDK's queue drops the oldest ones silently."""

    def __init__(self, exporter: SpanExporter, max_waiting: int, on_drop: Count, on_export: Count) -> None:
        self._exporter, self.max_waiting = exporter, max_waiting
        self._on_drop, self._on_export = on_drop, on_export
        self._lock = threading.Lock()
        self._waiting = 0
        self._lost = 0

    def admit(self, spans: int) -> bool:
        """Reserve room for spans and return True; without room, count them as dropped and return False."""
        with self._lock:
            has_room = self._waiting + spans <= self.max_waiting
            self._waiting += spans if has_room else 0
        if not has_room:
            self._on_drop(spans)
        return has_room

    def drop_waiting(self) -> None:
        """Count all waiting spans as dropped, including those being sent."""
        if dropped := self._take(self._waiting):
            self._on_drop(dropped)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export spans and count them; called by one thread."""
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            self._count(self._take(len(spans)), is_sent=result is SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        """Shut down the exporter, also while it waits between two retries; any thread may call this."""
        self._exporter.shutdown()

    def _take(self, spans: int) -> int:
        with self._lock:
            taken = min(spans, self._waiting)
            self._waiting -= taken
        return taken

    def _count(self, spans: int, *, is_sent: bool) -> None:
        if is_sent:
            self._on_export(spans)
            if self._lost:
                LOGGER.warning("Traces are exported again; %s spans were lost", self._lost)
            self._lost = 0
            return
        if not self._lost:
            LOGGER.warning("Traces cannot be exported and are dropped: check OTEL_EXPORTER_OTLP_ENDPOINT")
        self._lost += spans
        self._on_drop(spans)


class OtlpTracer:
    """A tracing.Tracer that exports spans, and reports how many it dropped (`on_drop`) and sent (`on_export`)."""

    def __init__(
        self, provider: TracerProvider, exporter: SpanExporter, limits: BatchLimits, on_drop: Count, on_export: Count
    ) -> None:
        self._sampler: Sampler = provider.sampler
        self._resource: Resource = provider.resource
        self._exporter = CountingExporter(exporter, limits.queue_spans, on_drop, on_export)
        self._processor = BatchSpanProcessor(
            self._exporter, limits.queue_spans, 1000 * limits.delay_s, limits.batch_spans
        )

    def begin(self, caller: TraceContext | None, name: str, *, may_start_trace: bool) -> TraceContext | None:
        """Continue the caller's trace or begin one, and decide whether to sample it; see tracing.Tracer."""
        trace_id = caller.trace_id if caller is not None else new_trace_id()
        is_sampled = (caller is not None or may_start_trace) and self._is_sampled(caller, trace_id, name)
        if caller is None:
            return TraceContext(trace_id, new_span_id(), flags=SAMPLED if is_sampled else 0)
        flags = caller.flags | SAMPLED if is_sampled else caller.flags & ~SAMPLED
        return TraceContext(trace_id, new_span_id(), caller.span_id, flags, caller.state)

    def put(self, span: RequestSpan) -> None:
        """Queue the spans of a finished request; see tracing.Tracer."""
        if self._exporter.admit(1 + len(span.segments)):
            for each in self._spans(span):
                self._processor.on_end(each)

    def stop(self, timeout_s: float) -> None:
        """Send waiting spans for at most `timeout_s`; count the rest as dropped."""
        self._exporter.max_waiting = 0
        # Run the SDK's shutdown in a thread, because it has no timeout.
        ending = threading.Thread(target=self._processor.shutdown, name="traces-end", daemon=True)
        ending.start()
        ending.join(timeout_s)
        if ending.is_alive():
            self._exporter.shutdown()
        self._exporter.drop_waiting()

    def _is_sampled(self, caller: TraceContext | None, trace_id: str, name: str) -> bool:
        context = _ROOT
        if caller is not None:
            remote = _span_context(caller, int(caller.span_id, 16), is_remote=True)
            context = set_span_in_context(NonRecordingSpan(remote), _ROOT)
        decided = self._sampler.should_sample(context, int(trace_id, 16), name, SpanKind.SERVER).decision
        return decided is Decision.RECORD_AND_SAMPLE

    def _spans(self, span: RequestSpan) -> Iterator[ReadableSpan]:
        """The request's span, and a child span for each of its stages."""
        context, parent_id = span.context, span.context.parent_id
        own = _span_context(context, int(context.span_id, 16))
        yield ReadableSpan(
            span.name,
            own,
            _span_context(context, int(parent_id, 16), is_remote=True) if parent_id else None,
            self._resource,
            span.attributes,
            kind=SpanKind.SERVER,
            status=Status(StatusCode.ERROR if span.error else StatusCode.UNSET),
            start_time=int((span.epoch_s + span.began_s) * _NS),
            end_time=int((span.epoch_s + span.ended_s) * _NS),
            instrumentation_scope=_SCOPE,
        )
        for stage, begin_s, end_s in span.segments:
            yield ReadableSpan(
                stage,
                SpanContext(own.trace_id, getrandbits(64), False, own.trace_flags, own.trace_state),
                own,
                self._resource,
                start_time=int((span.epoch_s + begin_s) * _NS),
                end_time=int((span.epoch_s + end_s) * _NS),
                instrumentation_scope=_SCOPE,
            )


def make_tracer(ratio: float | None, limits: BatchLimits, on_drop: Count, on_export: Count) -> OtlpTracer:
    """Make a tracer, configured by OpenTelemetry's environment variables; `ratio` overrides their sampler."""
    # Silenced because the exporter logs each retry, which floods the log while the collector is unreachable.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
    sampler = ParentBased(TraceIdRatioBased(ratio)) if ratio is not None else None
    provider = TracerProvider(sampler=sampler, resource=_resource(), shutdown_on_exit=False)
    return OtlpTracer(provider, OTLPSpanExporter(), limits, on_drop, on_export)


def _resource() -> Resource:
    """OpenTelemetry's resource: this process, and the service's name from OTEL_* variables or "ocrsvc"."""
    given = Resource.create()
    own: dict[str, str | int] = {"service.version": __version__, "process.pid": os.getpid()}
    if str(given.attributes.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service"):
        own[SERVICE_NAME] = "ocrsvc"
    return given.merge(Resource({**own}))


def _span_context(context: TraceContext, span_id: int, *, is_remote: bool = False) -> SpanContext:
    """OpenTelemetry's SpanContext for a span in the request's trace."""
    state = TraceState.from_header([context.state]) if context.state else None
    return SpanContext(int(context.trace_id, 16), span_id, is_remote, TraceFlags(context.flags), state)
