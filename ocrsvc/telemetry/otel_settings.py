"""What is asked of traces before anything is imported for them: the extra, and OpenTelemetry's own variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

from ocrsvc.errors import SettingsError
from ocrsvc.settings.settings import Settings

_PROTOCOL: Final = "http/protobuf"
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_MODULES: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
_MOST: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How spans are collected before they are sent; the defaults are those of OpenTelemetry's SDK.

    Attributes:
        queue_spans: Spans that may wait; those of further requests are dropped. OTEL_BSP_MAX_QUEUE_SIZE.
        batch_spans: Spans that are sent together. OTEL_BSP_MAX_EXPORT_BATCH_SIZE.
        delay_s: How long spans wait for more at most. OTEL_BSP_SCHEDULE_DELAY, there in milliseconds.
    """

    queue_spans: int = 2048
    batch_spans: int = 512
    delay_s: float = 5.0


def is_tracing(settings: Settings, environ: Mapping[str, str]) -> bool:
    """Whether traces are exported: OTEL_SDK_DISABLED switches them off, too."""
    return settings.traces == "otlp" and environ.get("OTEL_SDK_DISABLED", "").strip().lower() != "true"


def check_tracing(settings: Settings, environ: Mapping[str, str]) -> None:
    """Raises SettingsError where traces are asked for that cannot be exported."""
    if not is_tracing(settings, environ):
        return
    if missing := [name for name in _MODULES if not _is_installed(name)]:
        raise SettingsError(
            f"OCRSVC_TRACES is 'otlp', and {' and '.join(missing)} cannot be imported.",
            "Install the extra ocrsvc[otel], or set OCRSVC_TRACES=off.",
        )
    for variable in _PROTOCOLS:
        if environ.get(variable, _PROTOCOL) != _PROTOCOL:
            raise SettingsError(f"{variable} is {environ[variable]!r}: accepted is {_PROTOCOL}.")
    batch_limits(environ)


def batch_limits(environ: Mapping[str, str]) -> BatchLimits:
    """The limits that OpenTelemetry's variables set. Raises SettingsError."""
    queue_spans = _whole_number(environ, "OTEL_BSP_MAX_QUEUE_SIZE", BatchLimits().queue_spans)
    batch_spans = _whole_number(environ, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", BatchLimits().batch_spans)
    delay_ms = _whole_number(environ, "OTEL_BSP_SCHEDULE_DELAY", int(BatchLimits().delay_s * 1000))
    return BatchLimits(queue_spans, min(batch_spans, queue_spans), delay_ms / 1000)


def _whole_number(environ: Mapping[str, str], variable: str, default: int) -> int:
    sent = environ.get(variable, "").strip() or str(default)
    if not (sent.isascii() and sent.isdecimal() and len(sent) < 10 and 1 <= int(sent) <= _MOST):
        raise SettingsError(f"{variable} is {sent[:40]!r}: accepted is a whole number from 1 to {_MOST}.")
    return int(sent)


def _is_installed(name: str) -> bool:
    """Whether a module can be found; its parents are imported for that, which are empty."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False
