"""The interface of the server that a connection uses. Everything is called on the loop's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ocrsvc.grpc_server.call_metrics import Account
from ocrsvc.grpc_server.message import Job
from ocrsvc.grpc_server.method import Methods
from ocrsvc.grpc_server.stream import Stream
from ocrsvc.serving.memory_budget import Budget, Callers

if TYPE_CHECKING:
    from ocrsvc.grpc_server.connection import Connection


class Host(Protocol):
    """What a connection needs of the server that it belongs to."""

    methods: Methods
    most_bytes: int
    limit_s: float
    turn_s: float
    """What one connection may take of the loop before the others have their turn."""

    memory: Budget
    arriving: Budget
    """Of the memory, what messages may hold that were not begun."""

    callers: Callers

    def begun(self) -> None:
        """A call has come."""
        ...

    def ended(self, account: Account) -> None:
        """It is over."""
        ...

    def run(self, connection: Connection, stream: Stream, job: Job) -> None:
        """Make an answer in a pool thread, of which one is free; `answered` follows, on the loop's thread."""
        ...

    def check_thread(self) -> None:
        """Raises QueueFull when no thread is free."""
        ...

    def line_up(self, connection: Connection, stream: Stream) -> None:
        """Call `resume` once a thread is free."""
        ...

    def give_up_place(self, stream: Stream) -> None:
        """The stream does not wait for a thread any more."""
        ...

    def note_refused(self, caller: str, detail: str) -> None:
        """A connection was ended for what its client sent."""
        ...
