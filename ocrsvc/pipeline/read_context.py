"""What all pages of one request share on their way through the pipeline."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Self

from ocrsvc.models.loaded_models import Lease
from ocrsvc.records import MASK_KINDS, Check, MaskKind, ReadOptions
from ocrsvc.serving.request_guard import GuardedRequest, current_request
from ocrsvc.serving.work_queue import DEFAULT_CONTEXT, RequestContext, make_check


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """How pages are to be read, for whom, and until when.

    Attributes:
        options: What the request asks of the engine; with places of characters where something is to be masked.
        mask: What is to be masked in its answers.
        asked: The options as they came.
        deadline: Monotonic seconds from which nobody waits for the answer.
        context: Its priority, its account of memory, and whether anybody still waits for it.
        check: Raises DeadlineExceeded or ClientGone once nobody does; for any thread.
        guarded: The same request, on record with the denylist's guard.
        lease: On the version of a model that reads its pages, until the end of a `with`; None where none are read.
    """

    options: ReadOptions
    mask: tuple[MaskKind, ...]
    asked: ReadOptions
    deadline: float
    context: RequestContext
    check: Check
    guarded: GuardedRequest | None
    lease: Lease | None = None

    @property
    def reading_lease(self) -> Lease:
        """The lease of a request whose pages are read."""
        assert self.lease is not None, "only asked where pages are read"
        return self.lease

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.lease is not None:
            self.lease.close()


def make_read_request(options: ReadOptions, limit_s: float, context: RequestContext = DEFAULT_CONTEXT) -> ReadRequest:
    """This thread's request, whose answer is worth having for so many seconds from now."""
    deadline = time.monotonic() + limit_s
    check = make_check(context, deadline, time.monotonic)
    mask, for_engine = (*options.mask, *context.mask), options
    if mask:
        mask = tuple(kind for kind in MASK_KINDS if kind in mask)
        for_engine = replace(options, mask=(), characters=True)
    return ReadRequest(for_engine, mask, options, deadline, context, check, current_request())
