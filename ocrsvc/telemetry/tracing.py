"""The interface of tracers, the span of a request, and checks of the tracing settings.

Imports nothing from OpenTelemetry, which is an optional extra.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from ocrsvc.errors import SettingsError
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import is_installed
from ocrsvc.telemetry.ledger import Ledger, Segment
from ocrsvc.telemetry.trace_context import TraceContext

_PROTOCOL: Final = "http/protobuf"
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PACKAGES: Final = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http")
_MAX_VALUE: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class RequestSpan:
    """A finished request with its stages. Times are from `time.monotonic`; adding `epoch_s` gives Unix time.

    `error` is the error code; empty for success and for errors of the caller.
    """

    context: TraceContext
    name: str
    attributes: Mapping[str, str | int]
    segments: Sequence[Segment]
    began_s: float
    ended_s: float
    epoch_s: float
    error: str = ""


class Tracer(Protocol):
    """Records requests as spans. Thread-safe; no method blocks."""

    def begin(self, caller: TraceContext | None, name: str, *, may_start_trace: bool) -> TraceContext | None:
        """Return a new request's trace; without `may_start_trace`, record it only if the caller began the trace."""
        ...

    def put(self, span: RequestSpan) -> None:
        """Record a finished request whose trace is sampled."""
        ...


class NoTracer:
    """A Tracer that records nothing, and passes on the caller's trace unchanged."""

    def begin(self, caller: TraceContext | None, name: str, *, may_start_trace: bool) -> TraceContext | None:  # noqa: ARG002  Tracer's signature
        """See Tracer."""
        return caller

    def put(self, span: RequestSpan) -> None:
        """See Tracer."""


def put_request(
    tracer: Tracer,
    context: TraceContext | None,
    ledger: Ledger,
    began_s: float,
    name: str,
    attributes: Mapping[str, str | int],
    error: str,
) -> None:
    """End a request's record of stages (`ledger`); pass the request to the tracer if its trace is sampled."""
    ended_s = ledger.close()
    if context is not None and context.is_sampled:
        epoch_s = time.time() - time.monotonic()
        tracer.put(RequestSpan(context, name, attributes, tuple(ledger.segments), began_s, ended_s, epoch_s, error))


class BatchLimits(NamedTuple):
    """Limits on exporting spans: queued spans, spans per batch, and longest delay; the defaults are the SDK's."""

    queue_spans: int = 2048
    batch_spans: int = 512
    delay_s: float = 5.0


def is_tracing(settings: Settings, environ: Mapping[str, str]) -> bool:
    """Whether the settings turn on traces and OTEL_SDK_DISABLED is not true."""
    return settings.traces == "otlp" and environ.get("OTEL_SDK_DISABLED", "").strip().lower() != "true"


def check_tracing(settings: Settings, environ: Mapping[str, str]) -> None:
    """Raises SettingsError if traces are on but cannot be exported."""
    if not is_tracing(settings, environ):
        return
    if missing := [name for name in _PACKAGES if not is_installed(name)]:
        detail = f"OCRSVC_TRACES is 'otlp', and {' and '.join(missing)} cannot be imported."
        raise SettingsError(detail, "Install the extra: pip install '.[otel]', or set OCRSVC_TRACES=off.")
    for variable in _PROTOCOLS:
        if environ.get(variable, _PROTOCOL) != _PROTOCOL:
            raise SettingsError(f"{variable} is {environ[variable]!r}: accepted is {_PROTOCOL}.")
    batch_limits(environ)


def batch_limits(environ: Mapping[str, str]) -> BatchLimits:
    """Parse OpenTelemetry's OTEL_BSP_* variables. Raises SettingsError for values that the SDK silently ignores."""
    queue_spans = _whole_number(environ, "OTEL_BSP_MAX_QUEUE_SIZE", BatchLimits().queue_spans)
    batch_spans = _whole_number(environ, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", BatchLimits().batch_spans)
    delay_ms = _whole_number(environ, "OTEL_BSP_SCHEDULE_DELAY", int(BatchLimits().delay_s * 1000))
    return BatchLimits(queue_spans, min(batch_spans, queue_spans), delay_ms / 1000)


def _whole_number(environ: Mapping[str, str], variable: str, default: int) -> int:
    value = environ.get(variable, "").strip() or str(default)
    if not (value.isascii() and value.isdecimal() and len(value) < 10 and 1 <= int(value) <= _MAX_VALUE):
        raise SettingsError(f"{variable} is {value[:40]!r}: accepted is a whole number from 1 to {_MAX_VALUE}.")
    return int(value)
