"""Makes selected system calls fail in every process of a service.

`Faults(folder)` compiles os_faults.c into the folder. Start the service with `environment`, then inject a fault:
`with faults.refused("fork", errno.EAGAIN): ...`. Needs `cc`.
"""

from __future__ import annotations

import mmap
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).with_name("os_faults.c")
CC = ("cc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread")
CALLS = ("fork", "open", "epoll_create1", "memfd_create", "accept4", "write", "pthread_create", "pipe2", "socket")
_LAYOUT = struct.Struct("16i3q256s")
_NONE = (0,) * (16 - len(CALLS))


class Faults:
    """Injects faults into every process that was started with `environment`."""

    def __init__(self, folder: Path) -> None:
        library, control = folder / "libosfaults.so", folder / "faults"
        subprocess.run([*CC, "-o", library, SOURCE, "-ldl"], check=True)
        control.write_bytes(bytes(_LAYOUT.size))
        self.environment: Mapping[str, str] = {"LD_PRELOAD": str(library), "FAULTS_CONTROL": str(control)}
        with control.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), _LAYOUT.size)

    @contextmanager
    def refused(self, call: str, error: int, *, process: int = 0, path: str = "") -> Iterator[None]:
        """Make one of CALLS fail during the block.

        Args:
            call: The system call; "write" fails for files only, not for sockets and pipes.
            error: The errno that the call returns.
            process: The process ID in which the call fails; -N means all but N, 0 means all.
            path: For "open", fail only for paths that contain this text.
        """
        with self._during((*(error * (call == name) for name in CALLS), *_NONE), process=process, path=path):
            yield

    @contextmanager
    def clock_moved(self, by_s: int) -> Iterator[None]:
        """Shift the wall clock by `by_s` seconds during the block."""
        with self._during(clock_s=by_s):
            yield

    @contextmanager
    def slow_disk(self, delay_s: float, path: str = "") -> Iterator[None]:
        """Delay each open, write and fsync of a file by `delay_s`; opens only of paths that contain `path`."""
        with self._during(delay_ms=round(1000 * delay_s), path=path):
            yield

    @contextmanager
    def _during(
        self,
        refused: Sequence[int] = (0,) * 16,
        *,
        process: int = 0,
        clock_s: int = 0,
        delay_ms: int = 0,
        path: str = "",
    ) -> Iterator[None]:
        self._control[:] = _LAYOUT.pack(*refused, process, clock_s, delay_ms, path.encode())
        try:
            yield
        finally:
            self._control[:] = bytes(_LAYOUT.size)
