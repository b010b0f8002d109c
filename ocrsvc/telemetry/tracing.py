"""What a tracer does: it decides which requests are traced, and takes what is known of one when it is over."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ocrsvc.telemetry.ledger import Ledger, Segment
from ocrsvc.telemetry.trace_context import TraceContext


@dataclass(frozen=True, slots=True)
class RequestSpan:
    """One request that is over, with its stages.

    Attributes:
        context: Its trace and its own span.
        name: By OpenTelemetry's conventions: method and route, or service and method.
        attributes: By the same.
        segments: Its stages, on `time.monotonic`.
        began_s, ended_s: On the same.
        epoch_s: What added to them gives Unix time.
        error: The code of its failure; empty for a success, and for what is the caller's fault.
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
    """Any thread may call these; none of them waits."""

    def begin(self, caller: TraceContext | None, name: str, *, is_traced_alone: bool) -> TraceContext | None:
        """The trace of a request that begins.

        Args:
            caller: Its caller's; None for none.
            name: Of its span.
            is_traced_alone: Whether a trace may begin with it; of others only those of their callers are recorded.
        """
        ...

    def put(self, span: RequestSpan) -> None:
        """Record a request that is over, whose trace is sampled."""
        ...


class NoTracer:
    """Records nothing: the trace of the caller is passed on as it came."""

    def begin(self, caller: TraceContext | None, name: str, *, is_traced_alone: bool) -> TraceContext | None:  # noqa: ARG002  the contract's
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
    """Close the ledger of a request, and record the request if its trace is sampled."""
    ended_s = ledger.close()
    if context is not None and context.is_sampled:
        epoch_s = time.time() - time.monotonic()
        tracer.put(RequestSpan(context, name, attributes, tuple(ledger.segments), began_s, ended_s, epoch_s, error))
