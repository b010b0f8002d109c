"""System calls that Python has no function for, through the C library."""

from __future__ import annotations

import ctypes
import os
from typing import Final

NO_NEW_PRIVILEGES: Final = 38
"""prctl: no program started from here gains rights; the kernel asks for it before Landlock and seccomp."""
PARENT_DEATH_SIGNAL: Final = 1
"""prctl: the signal that this process gets when the thread that started it ends."""

_GET_DUMPABLE: Final = 3
_SET_DUMPABLE: Final = 4

_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int, more: int = 0) -> None:
    """Set an option of this process; addresses are passed as numbers. Raises OSError."""
    _check(_LIBC.prctl(option, *map(ctypes.c_ulong, (value, more, 0, 0))))


def read_dumpable() -> int:
    """1 where this process may be dumped, and its user reads its memory and writes its files below /proc; else 0 or 2.

    Raises OSError.
    """
    return _check(int(_LIBC.prctl(_GET_DUMPABLE, *[ctypes.c_ulong(0)] * 4)))


def set_dumpable(value: int) -> None:
    """See `read_dumpable`. Raises OSError."""
    prctl(_SET_DUMPABLE, value)


def system_call(number: int, *arguments: int) -> int:
    """What the kernel answers; addresses are passed as numbers. Raises OSError."""
    return _check(int(_LIBC.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))))


def _check(answer: int) -> int:
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return answer
