"""Restricts a process: one that works on untrusted files to limits, one that holds a secret to no core dumps."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from ocrsvc.system.sandbox.landlock import confine_to
from ocrsvc.system.sandbox.libc import PARENT_DEATH_SIGNAL, prctl, read_dumpable, set_dumpable
from ocrsvc.system.sandbox.seccomp import refuse_calls

_NICE: Final = 5
_OOM_SCORE: Final = "500"


class Restrictions(NamedTuple):
    """What holds: the version of Landlock's interface, 0 where the kernel has none, and the filter of system calls."""

    landlock: int
    seccomp: bool


def restrict(readable: Iterable[str] = ()) -> Restrictions:
    """Give up the network, new processes, files, and every other process, for good. What is open stays open.

    For a process with one thread, after it has loaded what it needs: both bind the calling thread and those that it
    starts later. `readable` files and folders may still be opened for reading; without Landlock every file may be.
    """
    landlock, seccomp = 0, False
    with suppress(OSError):
        landlock = confine_to(readable)
    with suppress(OSError):
        refuse_calls()
        seccomp = True
    return Restrictions(landlock, seccomp)


def limit_resources(memory_bytes: int, file_bytes: int, open_files: int) -> None:
    """Hold this process to limits that it cannot raise; memory is its heap and the stacks of its threads."""
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def lower_priority(pid: int, by: int = _NICE) -> None:
    """Have a process use the processors that others leave, from its start: loading costs as much as most files."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, 0) + by)


def raise_oom_score() -> None:
    """Among the processes of a service, be what the kernel ends first when memory runs out; where it lets us ask."""
    with suppress(OSError):
        dumpable = read_dumpable()
        # The file belongs to root in a process that is not to be dumped (`forbid_core_dumps`).
        set_dumpable(1)
        try:
            Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE, "ascii")
        finally:
            set_dumpable(dumpable)


def forbid_core_dumps() -> None:
    """Write no core dump from here on, and let no process without CAP_SYS_PTRACE read this one's memory or files.

    A fork inherits both; a program that is executed, and a change of the user, lose the second. A handler of core dumps
    that the kernel pipes to runs whatever the limit is, so that both are needed.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    set_dumpable(0)


def ignore_signals() -> None:
    """Leave it to the parent to end this process: what a terminal or a service manager sends is meant for that one."""
    for known in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(known, signal.SIG_IGN)


def end_with_parent(parent: int) -> None:
    """End when the thread that started this process does, also if it has done so already; ignore what ends a group.

    The parent gives its process id itself: who asks later may get the id of another.
    """
    ignore_signals()
    prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
