"""Support for the tests of engine isolation: tasks, expected texts, engine handles and process IDs."""

import os
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from ocrsvc.engines.isolated.child import Spawner
from ocrsvc.engines.isolated.engine import ChildPool, IsolatedHandle
from ocrsvc.errors import OcrsvcError
from ocrsvc.results import Image, Page, Pixels, ReadOptions, ReadTask
from ocrsvc.serving.crash_denylist import CrashDenylist
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan

PLAN: Final = ThreadPlan(1, 8, 2)


def crc(pixels: Pixels) -> str:
    """Return the text that the fake engine reads on an image."""
    return format(zlib.crc32(pixels.tobytes()), "08x")


def a_task(pixels: Pixels, within_s: float = 30.0) -> ReadTask:
    return ReadTask(Image(pixels, "png"), ReadOptions(), time.monotonic() + within_s)


def summary(answers: Sequence[Page | OcrsvcError]) -> list[str | type]:
    return [answer.lines[1].text if isinstance(answer, Page) else type(answer) for answer in answers]


def spawner_for(**settings: Any) -> Spawner:
    return Spawner(Settings.model_validate({"engine": "fake", "isolation": "process", **settings}), PLAN)


def handle_of(
    spawner: Spawner, denylist: CrashDenylist | None = None, children: int = 1, grace_s: float = 3.0, **limits: Any
) -> IsolatedHandle:
    pool = ChildPool(spawner, Settings().model_copy(update=limits), children)
    return IsolatedHandle(pool, denylist or CrashDenylist(8, 60.0), grace_s)


@contextmanager
def opened_handle(
    limits: Mapping[str, Any] | None = None,
    denylist: CrashDenylist | None = None,
    spawner: Spawner | None = None,
    **settings: Any,
) -> Iterator[IsolatedHandle]:
    """Open an engine handle, with a new spawner unless one is passed, and check that it closes all its files."""
    before = open_files()
    own = spawner or spawner_for(**settings)
    try:
        handle = handle_of(own, denylist, **(limits or {}))
        try:
            yield handle
        finally:
            handle.close()
    finally:
        if spawner is None:
            own.close()
    assert open_files() == before


def started(**settings: Any) -> Iterator[Spawner]:
    """Yield a spawner with a running fork server, to share between tests."""
    spawner = spawner_for(**settings)
    handle_of(spawner).close()
    yield spawner
    spawner.close()


@contextmanager
def signalled(pid: int, number: int, after_s: float) -> Iterator[None]:
    """Send a signal to a process after a delay, within the block."""
    timer = threading.Timer(after_s, os.kill, (pid, number))
    timer.start()
    yield
    timer.join()


def pid_of(handle: IsolatedHandle) -> int:
    assert handle.child.ready is not None
    return handle.child.ready.pid


def denylist_of(handle: IsolatedHandle) -> CrashDenylist:
    return handle._crash_handling._denylist


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, file.read_text().split())
    return found


def fork_server_of(handle: IsolatedHandle) -> int:
    """Return the child's parent process ID, the fourth field of /proc/PID/stat."""
    return int(Path(f"/proc/{pid_of(handle)}/stat").read_text().rpartition(")")[2].split()[1])


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
