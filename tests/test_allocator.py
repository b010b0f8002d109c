"""The C library's memory arenas, counted in a process of their own."""

from __future__ import annotations

import platform
import subprocess
import sys
import weakref

import pytest

from ocrsvc.system.allocator import give_back, release_with_free_memory

# Each thread allocates while all are alive, so that an unlimited malloc gives each an arena of its own.
ARENAS = """
import ctypes, threading, xml.etree.ElementTree as tree, tempfile, sys
from ocrsvc.system.allocator import limit_arenas
if sys.argv[1] == "limited":
    assert limit_arenas()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
here = threading.Barrier(6)
def allocate():
    here.wait()
    libc.malloc(5000)
    here.wait()
threads = [threading.Thread(target=allocate) for _ in range(6)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
libc.fdopen.restype = ctypes.c_void_p
libc.fdopen.argtypes = (ctypes.c_int, ctypes.c_char_p)
libc.malloc_info.argtypes, libc.fclose.argtypes = (ctypes.c_int, ctypes.c_void_p), (ctypes.c_void_p,)
with tempfile.NamedTemporaryFile() as file:
    stream = libc.fdopen(ctypes.c_int(__import__("os").open(file.name, 1)), b"w")
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    print(len(tree.parse(file.name).findall("heap")))
"""


def arenas(mode: str) -> int:
    done = subprocess.run([sys.executable, "-c", ARENAS, mode], capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc, whose arenas these are")
def test_a_worker_keeps_to_two_arenas_however_many_threads_it_has() -> None:
    assert arenas("limited") == 2
    assert arenas("unlimited") > 2


# What is freed between two things that stay cannot leave the heap by itself.
GIVING_BACK = """
import ctypes, resource
from pathlib import Path
from ocrsvc.system.allocator import give_back
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
libc.free.argtypes = (ctypes.c_void_p,)
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
blocks = [libc.malloc(100_000) for _ in range(600)]
for block in blocks:
    ctypes.memset(block, 1, 100_000)
for block in blocks[:-1]:
    libc.free(block)
held = resident()
assert give_back()
print(held - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc, whose heap this is")
def test_what_is_free_goes_back_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", GIVING_BACK], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) > 40_000_000


class Keeper:
    """Holds memory, and counts how often it was asked for it."""

    def __init__(self) -> None:
        self.asked = 0

    def release_memory(self) -> None:
        self.asked += 1


def test_giving_back_asks_those_who_hold_memory_while_they_live() -> None:
    keeper = Keeper()
    release_with_free_memory(keeper)
    give_back()
    assert keeper.asked == 1
    gone = weakref.ref(keeper)
    del keeper
    assert gone() is None
    give_back()
