"""Request id and trace id of the request that a thread serves, for the thread's log lines."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple

from ocrsvc.telemetry.trace_context import TraceContext


class RequestIds(NamedTuple):
    """A request's id, and the id of its trace; "" without a trace."""

    id: str
    trace_id: str = ""


_CURRENT: Final[ContextVar[RequestIds | None]] = ContextVar("ids of the request", default=None)


def current_ids() -> RequestIds | None:
    """The ids of the request that this thread serves, or None."""
    return _CURRENT.get()


def set_ids(request_id: str, trace: TraceContext | None) -> None:
    """Set the ids of the request that this thread starts to serve."""
    _CURRENT.set(RequestIds(request_id, trace.trace_id if trace is not None else ""))


def clear_ids() -> None:
    """Clear the ids at the end of a request."""
    _CURRENT.set(None)


@contextmanager
def with_ids(request_id: str, trace: TraceContext | None) -> Iterator[None]:
    """Set the ids for the duration of the block."""
    set_ids(request_id, trace)
    try:
        yield
    finally:
        clear_ids()
