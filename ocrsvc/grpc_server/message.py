"""One message of a call: parsed, answered, and its response packed, each step counted in memory before it is made."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any, Final

from ocrsvc.grpc_server.access import CallAccess
from ocrsvc.grpc_server.message_limits import parse
from ocrsvc.grpc_server.method import Call, Method
from ocrsvc.grpc_server.status_codes import CallFailed, Code
from ocrsvc.grpc_server.wire import PREFIX_BYTES, ReceivedMessage, frame
from ocrsvc.serving.memory_budget import Budget, Share
from ocrsvc.serving.request_guard import take_body

# While an answer is packed there are the message, its bytes, and those with their length in front.
_COPIES: Final = 3


@dataclass(slots=True)
class Answer:
    """An answer as it is sent.

    Attributes:
        data: With its length in front; what is left of it.
        share: Holds the memory for it until the client has taken it.
    """

    data: memoryview
    share: Share


@dataclass(slots=True)
class Job:
    """Makes the answer to one message, in any thread, once.

    Attributes:
        method: Answers it.
        sent: The message as it came; None once it was opened.
        call: What is known of the call; its share holds the bytes of `sent`, and gives back all that is taken here.
        most_bytes: What a message may unpack to.
        memory: Of which the answer takes its share.
        access: Admits the message by the key of this name; None where no key is wanted.
        secret_id: Of the secret that was shown for it.
    """

    method: Method
    sent: ReceivedMessage | None
    call: Call
    most_bytes: int
    memory: Budget
    access: CallAccess | None = None
    key: str = ""
    secret_id: str = ""

    def outcome(self) -> Answer | BaseException:
        """The answer, or the error that the caller gets in place of it."""
        try:
            return self()
        except BaseException as error:  # noqa: BLE001  the edge: whatever goes wrong is this call's own
            _drop_locals(error)
            return error

    def __call__(self) -> Answer:
        """Make it. Raises OcrsvcError, CallFailed."""
        # Pixels that an engine still works on are in a part of their own, which is not released here.
        with self.call.share as share:
            if self.access is None:
                return self._answer(share, self.call)
            with self.access.admitted(self.key, self.secret_id, self.method, self.call) as call:
                return self._answer(share, call)

    def _answer(self, share: Share, call: Call) -> Answer:
        return pack(self.method.answer(self._open(share), call), Share(self.memory))

    def _open(self, share: Share) -> Any:
        """The message; what it was made of is dropped."""
        sent, self.sent = self.sent, None
        if self.call.gone.is_set() or sent is None:
            raise CallFailed(Code.CANCELLED, "The client has gone.")
        take_body(sent.data)
        plain = sent.plain(self.most_bytes, share)
        before_bytes = share.held_bytes
        message = parse(self.method.request, plain, share)
        share.give_back(before_bytes)
        return message


def pack(response: Any, share: Share) -> Answer:
    """An answer as it is sent; the share keeps its bytes. Raises QueueFull, BodyTooLarge."""
    share.take(_COPIES * (PREFIX_BYTES + response.ByteSize()))
    data = frame(response.SerializeToString())
    share.give_back((_COPIES - 1) * len(data))
    return Answer(memoryview(data), share)


def _drop_locals(error: BaseException) -> None:
    """Free what the functions held that this error has left: else images would wait for the garbage collector."""
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__
