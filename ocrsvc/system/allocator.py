"""Tunes glibc's allocator: fewer arenas, and free memory is returned to the system. Does nothing without glibc."""

import ctypes
import functools
import platform
import threading
import weakref
from typing import Final, Protocol

_ARENAS: Final = 2
_MAPPED_BYTES: Final = 4 * 2**20
_TRIMMED_BYTES: Final = 32 * 2**20
_M_TRIM_THRESHOLD: Final = -1  # options of mallopt, from <malloc.h>
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


def limit_arenas() -> bool:
    """Limit malloc to two arenas, before threads allocate memory; returns whether it worked.

    By default each of the many HTTP threads gets an arena, and decoding touches new pages in each: with 20 clients and
    130 kB JPEGs, a request took 890 page faults and 2.7 ms of system time; with two arenas it took 150 and 0.9 ms.
    """
    return (glibc := _glibc()) is not None and bool(glibc.mallopt(_M_ARENA_MAX, _ARENAS))


def map_large_blocks() -> bool:
    """Give blocks of at least 4 MiB their own memory mappings, which return to the system when they are freed.

    By default glibc raises this threshold up to 32 MiB, and the buffers that a library allocates for every new shape
    stay in the heap: after 21 shapes OpenVINO's detector held 486 MB, with mappings from 256 KiB 312 MB. Smaller blocks
    stay in the heap, which keeps up to 32 MiB at its end, until `release_free_memory`, because a mapping's pages are
    cleared again at each use: with mappings from 256 KiB a page took 14,500 page faults, with this call 11,300.
    """
    glibc = _glibc()
    # Set both: setting either one stops glibc from adjusting the other.
    return glibc is not None and all(
        glibc.mallopt(option, size)
        for option, size in ((_M_MMAP_THRESHOLD, _MAPPED_BYTES), (_M_TRIM_THRESHOLD, _TRIMMED_BYTES))
    )


class Holder(Protocol):
    """An object that keeps buffers for its next run, and can free them."""

    def release_memory(self) -> None:
        """Free the buffers, now or when the current run ends; any thread may call it, so it must not block."""


# Weak references, so that registering a holder does not keep it alive.
_HOLDERS: Final[weakref.WeakSet[Holder]] = weakref.WeakSet()
_HOLDERS_LOCK: Final = threading.Lock()


def register_holder(holder: Holder) -> None:
    """Register an object whose buffers `release_free_memory` also frees."""
    with _HOLDERS_LOCK:
        _HOLDERS.add(holder)


def release_free_memory() -> bool:
    """Return free heap memory to the system, which takes some milliseconds; returns whether there was any.

    Running a model leaves up to 200 MB of free memory in the heap, which an idle worker does not need.
    """
    with _HOLDERS_LOCK:
        holders = list(_HOLDERS)
    for holder in holders:
        holder.release_memory()
    return (glibc := _glibc()) is not None and bool(glibc.malloc_trim(0))


@functools.cache
def _glibc() -> ctypes.CDLL | None:
    if platform.libc_ver()[0] != "glibc":
        return None
    library = ctypes.CDLL(None)
    library.malloc_trim.argtypes = (ctypes.c_size_t,)
    return library
