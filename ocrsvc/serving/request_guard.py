"""The worker's side of the denylist: every body is looked up, and on record while code runs that depends on it.

A request that keeps the interpreter to itself (a regular expression that never ends, a C function that holds the lock)
stops every thread of its worker, and the arbiter kills the worker for it. The arbiter finds the request on record (see
`worker.hung_requests`) and puts the hash of its body into the denylist that all workers share.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from hashlib import blake2b
from typing import Final

import numpy as np

from ocrsvc.errors import RequestStopsWorker
from ocrsvc.serving.crash_denylist import CRASHES, CrashDenylist
from ocrsvc.serving.requests_in_flight import PackedRequest, Recorder, Row, Stage, pack_request

_DIGEST_BYTES: Final = 16
_END_BYTES: Final = 1024
_SAMPLES: Final = 128
_WHOLE_BYTES: Final = 4096
_WORD_BYTES: Final = 8


def digest_of(body: bytes | memoryview) -> bytes:
    """16 bytes for the denylist: 9 us for 130 kB, where a hash of all of it takes 140 us.

    Hashed are its length, its ends, 128 words between them, and the sum of all its words, so that two bodies of the
    same length that differ in a single place have different digests.
    """
    size = len(body)
    found = blake2b(size.to_bytes(_WORD_BYTES, "big"), digest_size=_DIGEST_BYTES)
    if size <= _WHOLE_BYTES:
        found.update(body)
    else:
        words = np.frombuffer(body, np.uint64, size // _WORD_BYTES)
        found.update(words[:: max(1, len(words) // _SAMPLES)].tobytes())
        found.update(words.sum(dtype=np.uint64).tobytes())
        found.update(body[:_END_BYTES])
        found.update(body[-_END_BYTES:])
    return found.digest()


class RequestGuard:
    """What one worker's threads use: who writes its rows of the table, and the bodies that stopped any worker."""

    def __init__(self, recorder: Recorder, denylist: CrashDenylist) -> None:
        self.recorder = recorder
        self.denylist = denylist

    @contextmanager
    def request(self, route: str, name: str = "") -> Iterator[None]:
        """This thread serves one request within the block; see `take_body`."""
        work = GuardedRequest(self, route, name)
        token = _CURRENT.set(work)
        try:
            yield
        finally:
            _CURRENT.reset(token)
            work.close()


class GuardedRequest:
    """One request in the thread that serves it."""

    def __init__(self, guard: RequestGuard, route: str, name: str) -> None:
        self._guard, self._route, self._name = guard, route, name
        self._digest = b""
        self._packed: PackedRequest | None = None
        self._row: Row | None = None

    def begin(self, body: bytes | memoryview, name: str) -> None:
        """Look a body up, and be on record from here on. Raises RequestStopsWorker."""
        denylist = self._guard.denylist
        self._digest = digest_of(body) if body else b""
        if self._digest and denylist.crashes(self._digest) >= CRASHES:
            raise RequestStopsWorker(
                "A request with this body kept a worker from answering, and the worker was killed with all that it "
                "did; it is not tried again for a while.",
                "Send it in another form, and report it with the request if it is harmless.",
            )
        self._leave()
        self._packed = pack_request(name or self._name or "-", self._route, len(body), self._digest)
        self._row = self._guard.recorder.open(self._packed, Stage.WORKING)

    def enter(self, stage: Stage) -> None:
        """Another stage begins."""
        if self._row is not None:
            self._row.enter(stage)

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Another thread decodes an image of the request within the block, and is on record too."""
        recorder = self._guard.recorder
        row = recorder.open(self._packed, Stage.DECODING) if self._packed else None
        try:
            yield
        finally:
            if row is not None:
                recorder.close(row)

    def close(self) -> None:
        """The request is over: whatever a worker died of before, with this request under way, was something else."""
        if not self._leave():
            return
        denylist = self._guard.denylist
        if self._digest and 0 < denylist.crashes(self._digest) < CRASHES:
            denylist.clear(self._digest)

    def _leave(self) -> bool:
        """Be on record no longer; whether it was."""
        row, self._row = self._row, None
        if row is not None:
            self._guard.recorder.close(row)
        return row is not None


_CURRENT: Final[ContextVar[GuardedRequest | None]] = ContextVar("guarded request", default=None)


def take_body(body: bytes | memoryview, name: str = "") -> None:
    """The body of this thread's request is there, and is about to be parsed. Raises RequestStopsWorker.

    Does nothing where no RequestGuard guards this thread. The name is the request's id.
    """
    if work := _CURRENT.get():
        work.begin(body, name)


def current_request() -> GuardedRequest | None:
    """The request that this thread serves, for other threads that do a part of it."""
    return _CURRENT.get()


@contextmanager
def waiting() -> Iterator[None]:
    """This thread only waits within the block, for the engine or for a permit."""
    work = _CURRENT.get()
    if work is None:
        yield
        return
    work.enter(Stage.WAITING)
    try:
        yield
    finally:
        work.enter(Stage.WORKING)


def decoding_for(work: GuardedRequest | None) -> AbstractContextManager[None]:
    """This thread, which is not the request's own, decodes an image of it within the block."""
    return nullcontext() if work is None else work.decoding()
