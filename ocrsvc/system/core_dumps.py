"""Keeps the memory of this process out of core dumps, and from other processes of the same user."""

from __future__ import annotations

import resource
from contextlib import suppress
from typing import Final

from ocrsvc.system.sandbox.libc import prctl

_SET_DUMPABLE: Final = 4


def forbid_core_dumps() -> None:
    """Write no core dump from here on, and let no process without CAP_SYS_PTRACE read this one's memory or files.

    A fork inherits both; a program that is executed has to ask for the first again. A handler of core dumps that the
    kernel pipes to runs whatever the limit is, so that both are needed.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Only Linux has it, and nothing else is served from.
    with suppress(OSError):
        prctl(_SET_DUMPABLE, 0)
