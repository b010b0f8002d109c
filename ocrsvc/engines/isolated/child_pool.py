"""What the handles of a worker share: starting children, back-off after failures, and when a child is replaced."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from typing import Final

from ocrsvc.engines.isolated.child import HANG, Child, ChildLost
from ocrsvc.engines.isolated.spawner import Spawner
from ocrsvc.errors import EngineFailed, OcrsvcError
from ocrsvc.readings import EngineInfo
from ocrsvc.settings.group import bytes_of
from ocrsvc.settings.settings import Settings
from ocrsvc.system.memory import read_memory_bytes

LOG: Final = logging.getLogger("ocrsvc.isolation")

# A child that was killed while it opened is no sign that the next one cannot; what an engine says is.
_TRIES_BEFORE_BACKOFF: Final = 3
_LONGEST_BACKOFF_S: Final = 60.0
# A limit closer than this to what an engine needs when it has done nothing would replace children for ever.
_MIN_LIMIT_RATIO: Final = 1.1
# All children at their limit, and one successor, fill this much of the memory, and of the GPU.
_MEMORY_SHARE: Final = 0.8
# What ends a child that takes too long to open: this worker, or the child's own timer.
_TOO_LATE: Final = (HANG, "SIGALRM")


class ChildPool:
    """Any thread may call.

    Args:
        spawner: Starts the children.
        settings: The limits at which children are replaced or ended.
        children: Of the whole service, which share its memory, and may share a GPU.

    Attributes:
        deadline_s: The longest deadline of the service.
        replacement_lock: Held by the handle whose successor is starting: one at a time holds models twice.
        info: What the engine says of itself in the child that was opened last; None before the first.
    """

    def __init__(self, spawner: Spawner, settings: Settings, children: int = 1) -> None:
        self._spawner = spawner
        self._settings = settings
        self._children = children
        self.deadline_s = settings.deadline_s
        self._memory_limit_bytes = self._share_of(read_memory_bytes(), settings.child_memory_bytes)
        self.replacement_lock = threading.Lock()
        self._failures = 0
        self._reason = ""
        self._failure: Exception | None = None
        self._retry_at_s = 0.0
        self._logged: set[str] = set()
        self.info: EngineInfo | None = None
        # Forgotten when their handles have let go of them.
        self._children_open: weakref.WeakSet[Child] = weakref.WeakSet()
        self._children_lock = threading.Lock()

    def start_child(self) -> Child:
        """A child that begins to open now. Raises EngineFailed while opening has failed too often lately."""
        if time.monotonic() < self._retry_at_s:
            raise EngineFailed(
                f"The engine cannot be opened again: {self._reason}", "The log says why; it is tried again and again."
            ) from self._failure
        return Child(self._spawner, self._settings.boot_limit_s)

    def note_opened(self, child: Child) -> None:
        """A child is ready."""
        self._failures = 0
        self.info = child.opened.info
        with self._children_lock:
            self._children_open.add(child)

    def pids(self) -> list[int]:
        """Of the children that are open; some may just have ended."""
        with self._children_lock:
            children = list(self._children_open)
        return [child.opened.pid for child in children]

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
            return f"it was not open after {self._settings.boot_limit_s:g} s (OCRSVC_BOOT_LIMIT_S)."
        return f"its process ended ({failure.cause})."

    def replacement_reason(self, child: Child) -> str:
        """Why a child should be replaced; empty when it need not."""
        most_images = self._settings.child_max_images
        if most_images and child.images >= most_images:
            return "images"
        ready, limit_bytes = child.opened, self._memory_limit_bytes
        given_bytes = bytes_of(self._settings.child_gpu_bytes, ready.gpu_total_bytes)
        gpu_limit_bytes = self._share_of(ready.gpu_total_bytes, given_bytes)
        if 0 < limit_bytes <= child.private_bytes and self._is_above_footprint(
            "OCRSVC_CHILD_MEMORY_BYTES", limit_bytes, ready.private_bytes
        ):
            return "memory"
        if 0 < gpu_limit_bytes <= child.gpu_bytes and self._is_above_footprint(
            "OCRSVC_CHILD_GPU_BYTES", gpu_limit_bytes, ready.gpu_bytes
        ):
            return "GPU memory"
        return ""

    def _share_of(self, total_bytes: int, given_bytes: int | None) -> int:
        """A limit: what the operator set, or what each child may hold of some memory; 0 is none."""
        return int(_MEMORY_SHARE * total_bytes) // (self._children + 1) if given_bytes is None else given_bytes

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
