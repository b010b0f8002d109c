"""What the handles of a worker share: starting children, back-off after failures, and when a child is replaced."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import Final

from ocrsvc.engines.isolated.child import HANG, Child, ChildLost
from ocrsvc.engines.isolated.spawner import Spawner
from ocrsvc.errors import EngineFailed, OcrsvcError
from ocrsvc.records import EngineInfo
from ocrsvc.settings.types import Share, bytes_of

LOG: Final = logging.getLogger("ocrsvc.isolation")

# A child that was killed while it opened is no sign that the next one cannot; what an engine says is.
_TRIES_BEFORE_BACKOFF: Final = 3
_LONGEST_BACKOFF_S: Final = 60.0
# A limit closer than this to what an engine needs when it has done nothing would replace children for ever.
_MIN_LIMIT_RATIO: Final = 1.1
# All children at their limit, and one successor, fill this much of the memory, and of the GPU.
MEMORY_SHARE: Final = 0.8
# What ends a child that takes too long to open: this worker, or the child's own timer.
_TOO_LATE: Final = (HANG, "SIGALRM")


@dataclass(frozen=True, slots=True)
class Limits:
    """When children are replaced or ended.

    Attributes:
        max_images: Images after which a child is replaced; 0 is never.
        memory_bytes: Memory of its own at which it is replaced; 0 is never.
        deadline_s: Longest deadline of the service.
        grace_s: How long a read may go on past its deadline before the child is killed. An engine checks deadlines
            between lines only, and killing it costs a load of the models; below the executor's STUCK_S.
        open_s: How long opening and warming may take.
        gpu_bytes: Memory of the GPU at which it is replaced, or a share of the GPU; 0 is never, None is such that
            all children and one successor fit.
        children: Of the whole service, which may share a GPU.
    """

    max_images: int = 0
    memory_bytes: int = 0
    deadline_s: float = 60.0
    grace_s: float = 3.0
    open_s: float = 600.0
    gpu_bytes: int | Share | None = None
    children: int = 1


class ChildPool:
    """Any thread may call.

    Attributes:
        limits: When children are replaced or ended.
        replacement_lock: Held by the handle whose successor is starting: one at a time holds models twice.
        info: What the engine says of itself in the child that was opened last; None before the first.
    """

    def __init__(self, spawner: Spawner, limits: Limits) -> None:
        self._spawner = spawner
        self.limits = limits
        self.replacement_lock = threading.Lock()
        self._failures = 0
        self._reason = ""
        self._failure: Exception | None = None
        self._retry_at_s = 0.0
        self._logged: set[str] = set()
        self.info: EngineInfo | None = None

    def start_child(self) -> Child:
        """A child that begins to open now. Raises EngineFailed while opening has failed too often lately."""
        if time.monotonic() < self._retry_at_s:
            raise EngineFailed(
                f"The engine cannot be opened again: {self._reason}", "The log says why; it is tried again and again."
            ) from self._failure
        return Child(self._spawner, self.limits.open_s)

    def note_opened(self, child: Child) -> None:
        """A child is ready."""
        self._failures = 0
        self.info = child.opened.info

    def note_failure(self, failure: ChildLost | OcrsvcError) -> None:
        """A child did not open: from now on wait 1, 2, 4, … 60 s between tries, unless the failure may be chance."""
        self._failures += 1
        is_late = isinstance(failure, ChildLost) and failure.cause in _TOO_LATE
        if is_late or isinstance(failure, OcrsvcError):
            self._failures = max(self._failures, _TRIES_BEFORE_BACKOFF)
        self._reason, self._failure = self._reason_of(failure), failure.with_traceback(None)
        if (late := self._failures - _TRIES_BEFORE_BACKOFF) >= 0:
            self._retry_at_s = time.monotonic() + min(2.0 ** min(late, 16), _LONGEST_BACKOFF_S)
        LOG.error("The engine does not open in a child: %s", self._reason)

    def _reason_of(self, failure: ChildLost | OcrsvcError) -> str:
        if isinstance(failure, OcrsvcError):
            return failure.detail
        if failure.cause in _TOO_LATE:
            return f"it was not open after {self.limits.open_s:g} s (OCRSVC_BOOT_LIMIT_S)."
        return f"its process ended ({failure.cause})."

    def replacement_reason(self, child: Child) -> str:
        """Why a child should be replaced; empty when it need not."""
        if self.limits.max_images and child.images >= self.limits.max_images:
            return "images"
        ready, limit_bytes, gpu_limit_bytes = child.opened, self.limits.memory_bytes, self._gpu_limit_bytes(child)
        if 0 < limit_bytes <= child.private_bytes and self._is_above_footprint(
            "OCRSVC_CHILD_MEMORY_BYTES", limit_bytes, ready.private_bytes
        ):
            return "memory"
        if 0 < gpu_limit_bytes <= child.gpu_bytes and self._is_above_footprint(
            "OCRSVC_CHILD_GPU_BYTES", gpu_limit_bytes, ready.card_bytes
        ):
            return "memory of the card"
        return ""

    def _gpu_limit_bytes(self, child: Child) -> int:
        total_bytes = child.opened.card_total_bytes
        given = bytes_of(self.limits.gpu_bytes, total_bytes)
        return int(MEMORY_SHARE * total_bytes) // (self.limits.children + 1) if given is None else given

    def _is_above_footprint(self, variable: str, limit_bytes: int, footprint_bytes: int) -> bool:
        if limit_bytes >= _MIN_LIMIT_RATIO * footprint_bytes:
            return True
        if variable not in self._logged:
            self._logged.add(variable)
            LOG.error(
                "%s is %s, and a child holds %s after its warm-up: replacing it would not help, so this limit is off.",
                *(variable, limit_bytes, footprint_bytes),
            )
        return False
