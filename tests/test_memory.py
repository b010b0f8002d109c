"""Memory use from made-up /proc and cgroup folders and this process, and glibc's arenas."""

import platform
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import data_of

from ocrsvc.system.memory import MemoryUse, read_memory_bytes, read_memory_use, read_rss_bytes


def test_statm_counts_pages(tmp_path: Path) -> None:
    (tmp_path / "statm").write_text("1000 25 7 1 0 90 0\n")
    assert read_rss_bytes(tmp_path / "statm") == 25 * resource.getpagesize()


@pytest.mark.parametrize("case", data_of("memory_files"), ids=lambda case: case["name"])
def test_smaller_limit_counts_without_reclaimable_memory(tmp_path: Path, case: dict[str, Any]) -> None:
    write(tmp_path, case["files"])
    found = MemoryUse(case["used"], case["limit"])
    assert read_memory_use(tmp_path) == found
    assert read_memory_bytes(tmp_path) == found.limit_bytes


def write(root: Path, files: dict[str, str]) -> None:
    """The kernel's files, of a machine of 16 GB of which 1 GB is free or can be reclaimed."""
    meminfo = "MemTotal:       16000000 kB\nMemFree: 1 kB\nMemAvailable:    1000000 kB\n"
    for name, text in {"proc/meminfo": meminfo, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


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
def test_many_threads_share_two_arenas() -> None:
    assert arenas("limited") == 2
    assert arenas("unlimited") > 2


# What is freed between two things that stay cannot leave the heap by itself.
GIVING_BACK = """
import ctypes, resource
from pathlib import Path
from typing import Any
from ocrsvc.system.allocator import release_free_memory
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
assert release_free_memory()
print(held - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc, whose heap this is")
def test_free_memory_returns_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", GIVING_BACK], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) > 40_000_000
