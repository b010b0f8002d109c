"""How does the C library give out memory in a worker?"""

from __future__ import annotations

import ctypes
import platform
from typing import Final

ARENAS: Final = 2
_M_ARENA_MAX: Final = -8  # <malloc.h>


def limit_arenas(count: int = ARENAS) -> bool:
    """Keep glibc's malloc to a few arenas; returns whether there was a glibc to tell. Call it before threads allocate.

    By default each of the many HTTP threads soon has an arena of its own, and every decoded image is paged in afresh in
    another one: measured with 20 clients and 130 kB JPEGs, 890 page faults and 2.7 ms of system time a request, against
    150 and 0.9 ms with two arenas.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    return bool(ctypes.CDLL(None).mallopt(_M_ARENA_MAX, count))
