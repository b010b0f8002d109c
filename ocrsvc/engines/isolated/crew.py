"""What do the handles of a worker share: how a child is opened, when it is worn, whose turn it is to be replaced?"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import Final

from ocrsvc.engines.isolated.child import Child, ChildLost
from ocrsvc.engines.isolated.nursery import Nursery
from ocrsvc.errors import EngineFailed, OcrsvcError

LOG: Final = logging.getLogger("ocrsvc.isolation")

# A child that was killed while it opened is no sign that the next one cannot; what an engine says is.
_FREE_TRIES: Final = 3
_LONGEST_BACKOFF_S: Final = 60.0
# A limit closer than this to what an engine needs when it has done nothing would replace children for ever.
_LEAST_ROOM: Final = 1.1


@dataclass(frozen=True, slots=True)
class Limits:
    """When children go.

    Attributes:
        max_images: Images after which a child is replaced; 0 is never.
        memory_bytes: Memory of its own at which it is replaced; 0 is never.
        deadline_s: Longest deadline of the service.
        grace_s: How long a read may go on past its deadline before the child is killed. An engine does not look at
            deadlines within an image, and killing it costs a load of the models; below the executor's STUCK_S.
        open_s: How long opening and warming may take.
    """

    max_images: int = 0
    memory_bytes: int = 0
    deadline_s: float = 60.0
    grace_s: float = 2.0
    open_s: float = 600.0


class Crew:
    """Any thread may call.

    Attributes:
        limits: When children go.
        turn: Held by the handle whose successor is under way: one at a time holds models twice.
    """

    def __init__(self, nursery: Nursery, limits: Limits) -> None:
        self._nursery = nursery
        self.limits = limits
        self.turn = threading.Lock()
        self._failures = 0
        self._reason = ""
        self._not_before_s = 0.0
        self._is_told = False

    def begin(self) -> Child:
        """A child that begins to open now. Raises EngineFailed while opening has failed too often lately."""
        if time.monotonic() < self._not_before_s:
            raise EngineFailed(
                f"The engine cannot be opened again: {self._reason}", "The log says why; it is tried again and again."
            )
        return Child(self._nursery)

    def note_opened(self) -> None:
        """A child is ready."""
        self._failures = 0

    def note_failure(self, failure: ChildLost | OcrsvcError) -> None:
        """A child did not open: from now on wait 1, 2, 4, … 60 s between tries, if this is not mere misfortune."""
        self._failures += 1
        if isinstance(failure, OcrsvcError):
            self._failures = max(self._failures, _FREE_TRIES)
        self._reason = failure.detail if isinstance(failure, OcrsvcError) else f"its process ended ({failure.cause})."
        if (late := self._failures - _FREE_TRIES) >= 0:
            self._not_before_s = time.monotonic() + min(2.0 ** min(late, 16), _LONGEST_BACKOFF_S)
        LOG.error("The engine does not open in a child: %s", self._reason)

    def worn_by(self, child: Child) -> str:
        """Why a child should be replaced; empty when it need not."""
        if self.limits.max_images and child.images >= self.limits.max_images:
            return "images"
        limit_bytes = self.limits.memory_bytes
        if limit_bytes and child.private_bytes >= limit_bytes and self._has_room(child, limit_bytes):
            return "memory"
        return ""

    def _has_room(self, child: Child, limit_bytes: int) -> bool:
        footprint_bytes = child.ready.private_bytes if child.ready is not None else 0
        if limit_bytes >= _LEAST_ROOM * footprint_bytes:
            return True
        if not self._is_told:
            self._is_told = True
            LOG.error(
                "OCRSVC_CHILD_MEMORY_BYTES is %s, and a child holds %s after its warm-up: replacing it would not help, "
                "so this limit is off.",
                *(limit_bytes, footprint_bytes),
            )
        return False
