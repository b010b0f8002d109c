"""What is one call on its way, and what does it hold?"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ocrsvc.rpc.counting import Account
from ocrsvc.rpc.method import Call, Method
from ocrsvc.rpc.unread import Unread
from ocrsvc.rpc.wire import MessageReader, Sent
from ocrsvc.serving.limits import Share


@dataclass(frozen=True, slots=True)
class Pending:
    """A message that waits, and its share of the memory."""

    sent: Sent
    share: Share


@dataclass(eq=False, slots=True)
class Stream:
    """One call on its way.

    Attributes:
        pending: Messages that wait for the one before them.
        share: Holds the bytes of the message that is not complete.
        account: What is told of it once it is over.
        caller: Whose call it counts as; None for none.
        unacknowledged: Bytes of it that flow control has not given back to the client.
        active_s: When it was last heard of, or answered.
        busy: Whether a message is being answered.
        in_line: Whether it waits for a thread.
        ended: Whether the client has sent everything.
        out: Framed answers that flow control does not let through yet.
        unread: Whether the client takes them.
        trailers: The status, once it is known; sent after `out`.
    """

    number: int
    method: Method
    call: Call
    reader: MessageReader
    share: Share
    account: Account
    caller: str | None = None
    pending: deque[Pending] = field(default_factory=deque)
    unacknowledged: int = 0
    active_s: float = 0.0
    busy: bool = False
    in_line: bool = False
    ended: bool = False
    begun: bool = False
    out: deque[memoryview] = field(default_factory=deque)
    unread: Unread = field(default_factory=Unread)
    trailers: list[tuple[str, str]] | None = None

    def drop_pending(self) -> None:
        """Give back the memory of what has come and was not begun."""
        while self.pending:
            self.pending.popleft().share.release()
        self.share.release()
