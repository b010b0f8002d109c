"""Exports the traces of requests over OTLP/HTTP, with OpenTelemetry's SDK (extra `otel`), from a thread of its own.

On the way of a request stand the sampler's decision and one append to a bounded queue; messages are made of what was
appended by the thread, a batch at a time. Imported only where traces are on, and after the fork.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, TraceState, set_span_in_context

from ocrsvc import __version__
from ocrsvc.telemetry.otel_settings import BatchLimits
from ocrsvc.telemetry.otlp_encoding import Encoder
from ocrsvc.telemetry.trace_context import SAMPLED, TraceContext, new_span_id, new_trace_id
from ocrsvc.telemetry.tracing import RequestSpan

LOGGER: Final = logging.getLogger("ocrsvc.traces")

_ROOT: Final = Context()

Count = Callable[[int], object]
"""Called with a number of spans."""


class Exporter(Protocol):
    """Sends messages; used by one thread, but for `shutdown`."""

    def send(self, message: bytes) -> bool:
        """Whether the collector has taken it."""
        ...

    def shutdown(self) -> None:
        """End its waits between two tries; any thread may call it."""


class OtlpExporter(OTLPSpanExporter):  # type: ignore[misc, unused-ignore]  # where the extra is not installed
    """OpenTelemetry's exporter, with its addresses, headers, certificates and tries, for messages encoded here.

    Its client is not public: pyproject.toml holds the version that has it.
    """

    def send(self, message: bytes) -> bool:
        """See Exporter."""
        return bool(self._client.export(message).success)


class OtlpTracer:
    """See tracing.Tracer. Its thread starts with the first trace: that is after the fork, which no thread survives.

    Args:
        sampler: Decides which traces are recorded.
        exporter: Sends messages.
        resource: What the spans are of.
        limits: Of the queue and of a batch.
        on_drop: Of spans that found the queue full, or could not be sent.
        on_export: Of spans that were sent.
    """

    def __init__(
        self,
        sampler: Sampler,
        exporter: Exporter,
        resource: Resource,
        limits: BatchLimits,
        on_drop: Count,
        on_export: Count,
    ) -> None:
        self._sampler, self._exporter, self._limits = sampler, exporter, limits
        self._encoder = Encoder(resource)
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
            is_full = self._wanted.wait(self._limits.delay_s)
            self._wanted.clear()
            self._export_waiting(all_of_it=not is_full)
        self._export_waiting(all_of_it=True)

    def _export_waiting(self, *, all_of_it: bool) -> None:
        """Whole batches, and what is left only if it is to go: else each request that comes would be a message."""
        while self._queued_spans >= self._limits.batch_spans:
            self._export(self._take_batch())
        if all_of_it and (batch := self._take_batch()):
            self._export(batch)

    def _take_batch(self) -> list[RequestSpan]:
        """The oldest requests: as many as a batch may have spans, one at least."""
        batch: list[RequestSpan] = []
        spans = 0
        with self._lock:
            while self._queue and (not batch or spans + _size_of(self._queue[0]) <= self._limits.batch_spans):
                batch.append(self._queue.popleft())
                spans += _size_of(batch[-1])
            self._queued_spans -= spans
        return batch

    def _export(self, batch: list[RequestSpan]) -> None:
        spans = sum(map(_size_of, batch))
        try:
            is_sent = self._exporter.send(self._encoder.encode(batch))
        except Exception:  # noqa: BLE001  a batch that cannot be sent must not end the thread
            is_sent = False
        if is_sent:
            self._on_export(spans)
            if self._lost_spans:
                LOGGER.warning("Traces are exported again; %s spans were lost", self._lost_spans)
            self._lost_spans = 0
            return
        if not self._lost_spans:
            LOGGER.warning("Traces cannot be exported to the address in OTEL_EXPORTER_OTLP_ENDPOINT; they are dropped")
        self._lost_spans += spans
        self._on_drop(spans)


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
    return OtlpTracer(provider.sampler, OtlpExporter(), _resource(), limits, on_drop, on_export)


def _resource() -> Resource:
    """The service by OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, else by its own name; and this process."""
    given = Resource.create()
    own: dict[str, str | int] = {"service.version": __version__, "process.pid": os.getpid()}
    if str(given.attributes.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service"):
        own[SERVICE_NAME] = "ocrsvc"
    return given.merge(Resource({**own}))


def _remote(context: TraceContext) -> SpanContext:
    """The caller's span, for the sampler."""
    state = TraceState.from_header([context.state]) if context.state else None
    flags = TraceFlags(context.flags)
    return SpanContext(
        int(context.trace_id, 16), int(context.span_id, 16), is_remote=True, trace_flags=flags, trace_state=state
    )


def _size_of(span: RequestSpan) -> int:
    """Spans that it becomes."""
    return 1 + len(span.segments)
