"""Keeps the memory of this process out of core dumps, and from other processes of the same user."""

from __future__ import annotations

import resource

from ocrsvc.system.sandbox.libc import set_dumpable


def forbid_core_dumps() -> None:
    """Write no core dump from here on, and let no process without CAP_SYS_PTRACE read this one's memory or files.

    A fork inherits both; a program that is executed, and a change of the user, lose the second. A handler of core dumps
    that the kernel pipes to runs whatever the limit is, so that both are needed.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    set_dumpable(0)
