"""Settings of the traces of requests."""

from __future__ import annotations

from typing import Literal

from ocrsvc.settings.group import SettingsGroup, setting


class TraceSettings(SettingsGroup):
    """Traces of requests, by OpenTelemetry."""

    title = "Traces"

    traces: Literal["off", "otlp"] = setting(
        "off",
        "Send the traces of requests to an OpenTelemetry collector over OTLP/HTTP, which needs the extra ocrsvc[otel]; "
        "OTEL_EXPORTER_OTLP_ENDPOINT and the other variables of OpenTelemetry's SDK say where to and how.",
    )
    trace_sample: float | None = setting(
        None,
        "Of the traces that begin here, the share that is recorded; of others their caller has decided. Left out, "
        "OTEL_TRACES_SAMPLER decides, and without that all are.",
        ge=0,
        le=1,
    )
