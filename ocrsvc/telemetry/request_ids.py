"""The ids of the request that a thread serves, for the lines that it logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple

from ocrsvc.telemetry.trace_context import TraceContext


class RequestIds(NamedTuple):
    """The request's own id, and that of its trace, empty for none."""

    id: str
    trace_id: str = ""


_CURRENT: Final[ContextVar[RequestIds | None]] = ContextVar("ids of the request", default=None)


def current_ids() -> RequestIds | None:
    """The ids of the request that this thread serves; None for none."""
    return _CURRENT.get()


def set_ids(request_id: str, trace: TraceContext | None) -> None:
    """This thread serves a request from here on."""
    _CURRENT.set(RequestIds(request_id, trace.trace_id if trace is not None else ""))


def clear_ids() -> None:
    """This thread serves no request any more."""
    _CURRENT.set(None)


@contextmanager
def with_ids(request_id: str, trace: TraceContext | None) -> Iterator[None]:
    """This thread serves a request within the block."""
    set_ids(request_id, trace)
    try:
        yield
    finally:
        clear_ids()
