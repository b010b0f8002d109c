"""A pool of sessions of one model on a GPU or under OpenVINO: at most one run a session; further runs wait.

Each session has memory of its own, on a GPU a stream and an arena. So the memory in use follows the number of sessions,
not that of the engine threads.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from numpy.typing import NDArray

from ocrsvc.engines.ppocr.runtime.openvino_session import OpenVinoSession
from ocrsvc.engines.ppocr.runtime.session import Session
from ocrsvc.errors import EngineFailed

AnySession = Session | OpenVinoSession

_TIMEOUT_S: Final = 60.0


class SessionPool:
    """Sessions of one model, used as one; see Session for the attributes. All calls may come from any thread.

    Args:
        sessions: One for each run that may be under way.
        timeout_s: For a free one; afterwards the run fails: a device that hangs must not hold threads for ever.
    """

    def __init__(self, sessions: Sequence[AnySession], timeout_s: float = _TIMEOUT_S) -> None:
        first = sessions[0]
        self.sessions: tuple[AnySession, ...] = tuple(sessions)
        self.provider, self.device, self.precision = first.provider, first.device, first.precision
        self.batched, self.takes_pixels, self.metadata = first.batched, first.takes_pixels, first.metadata
        self.input_format = first.input_format
        self._timeout_s = timeout_s
        # The last one used is taken first: its memory is warm, and one that is not needed stays small.
        self._free: queue.LifoQueue[AnySession] = queue.LifoQueue()
        for session in reversed(self.sessions):
            self._free.put(session)

    @contextmanager
    def acquire(self) -> Iterator[AnySession]:
        """A session that nobody else uses meanwhile. Raises EngineFailed when none comes free."""
        try:
            session = self._free.get(timeout=self._timeout_s)
        except queue.Empty:
            raise EngineFailed(
                f"No run of the model ended within {self._timeout_s:g} s.", "Look at the worker's log."
            ) from None
        try:
            yield session
        finally:
            self._free.put(session)

    def run(self, array: Any, outputs: Sequence[str] | None = None) -> list[Any]:
        """See Session."""
        with self.acquire() as session:
            return session.run(array, outputs)

    def warm_up(self, tensor: NDArray[Any]) -> None:
        """See Session; of all sessions, one after the other. Nobody else may use them meanwhile."""
        for session in self.sessions:
            session.warm_up(tensor)


ModelRunner = Session | OpenVinoSession | SessionPool
"""A model, ready to run; safe to share between threads."""
