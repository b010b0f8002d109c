"""The interface of the server that a connection uses. Everything is called on the loop's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ocrsvc.grpc_server.call_metrics import CallRecord
from ocrsvc.grpc_server.message import Job
from ocrsvc.grpc_server.method import Methods
from ocrsvc.grpc_server.stream import Stream
from ocrsvc.serving.memory_budget import Budget, Callers

if TYPE_CHECKING:
    from ocrsvc.grpc_server.connection import Connection


class ServerInterface(Protocol):
    """The server that a connection belongs to, as far as the connection uses it."""

    methods: Methods
    most_bytes: int
    limit_s: float
    turn_s: float
    """The time that one connection may take of the loop before the others are served."""

    memory: Budget
    arriving: Budget
    """Of the memory, what messages may hold that were not begun."""

    callers: Callers

    def call_began(self) -> None:
        """A call has come."""
        ...

    def call_ended(self, record: CallRecord) -> None:
        """A call is over; `record` is what is counted and logged of it."""
        ...

    def run(self, connection: Connection, stream: Stream, job: Job) -> None:
        """Make an answer in a pool thread, of which one is free; `answered` follows, on the loop's thread."""
        ...

    def check_thread(self) -> None:
        """Raises QueueFull when no thread is free."""
        ...

    def enqueue(self, connection: Connection, stream: Stream) -> None:
        """Call `resume` once a thread is free."""
        ...

    def dequeue(self, stream: Stream) -> None:
        """Remove the stream from those that wait for a thread."""
        ...

    def note_refused(self, caller: str, detail: str) -> None:
        """A connection was ended for what its client sent."""
        ...
