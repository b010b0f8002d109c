"""One method of a gRPC service, and the call that it answers: its deadline, its cancellation and its memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ocrsvc.access.records import Scope
from ocrsvc.records import MaskKind
from ocrsvc.serving.memory_budget import Share, unlimited
from ocrsvc.serving.page_account import UNCOUNTED, PageAccount
from ocrsvc.serving.work_queue import Priority, RequestContext
from ocrsvc.telemetry.ledger import NO_LEDGER, Ledger


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call under way.

    Attributes:
        deadline: Monotonic seconds at which the answer must be there.
        gone: Set once nobody waits for the answer any more: the client cancelled, or has gone.
        share: The account of memory of the request.
        pages: Where its pages are counted.
        priority: The highest that it may have.
        mask: What its metadata asks to be masked in the answer.
        ledger: Of the call's stages.
        client_name: The name of the key that the client's verified TLS certificate stands for; None for none.
        address: Of the peer; empty on a Unix socket.
        is_forwarded: Whether a proxy says that the peer is not the caller.
        key: The name of its API key; empty where none is wanted.
    """

    deadline: float
    gone: threading.Event = field(default_factory=threading.Event)
    share: Share = field(default_factory=unlimited)
    pages: PageAccount = UNCOUNTED
    priority: Priority = "interactive"
    mask: tuple[MaskKind, ...] = ()
    ledger: Ledger = NO_LEDGER
    client_name: str | None = None
    address: str = ""
    is_forwarded: bool = False
    key: str = ""

    @property
    def context(self) -> RequestContext:
        """How the reader is to treat it: until the client cancels, or goes."""
        return RequestContext(self.priority, self.gone.is_set, self.share, self.pages, self.mask, self.ledger)

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; 0 if it has passed."""
        return max(0.0, self.deadline - time.monotonic())


def no_fields(_error: BaseException) -> Mapping[str, str]:
    """For methods whose status says everything."""
    return {}


@dataclass(frozen=True, slots=True)
class Method:
    """One method.

    Attributes:
        request: Class of its request.
        answer: Makes the response message to a request message; each message of a stream has its own. Raises
            OcrsvcError or CallFailed. Runs in a pool thread, or in the loop if `quick`.
        quick: Whether the answer needs neither the engine nor time.
        streaming: Whether requests come, and responses go, as many as the client likes, in the same order.
        adapter: The name of the API adapter, under which its calls are counted.
        scope: What an API key must allow for it.
        error_fields: What the trailers of a call say besides the status when it fails with this error.
    """

    request: Any
    answer: Callable[[Any, Call], Any]
    quick: bool = False
    streaming: bool = False
    adapter: str = "grpc"
    scope: Scope = "read"
    error_fields: Callable[[BaseException], Mapping[str, str]] = no_fields


Methods = Mapping[str, Method]
"""By path, such as "/inference.GRPCInferenceService/ModelInfer"."""
