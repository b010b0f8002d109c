"""Memory use from made-up /proc and cgroup folders and this process, and glibc's arenas."""

from __future__ import annotations

import mmap
import platform
import resource
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from ocrsvc.system.allocator import register_holder, release_free_memory
from ocrsvc.system.memory import MemoryUse, read_memory_bytes, read_memory_use, read_rss_bytes

GB = 10**9


def test_touched_memory_is_resident() -> None:
    before = read_rss_bytes()
    held = mmap.mmap(-1, 64 * 2**20)
    for _ in range(64):
        held.write(bytes(2**20))
    grown = read_rss_bytes() - before
    held.close()
    # Other tests' garbage may go at the same time.
    assert 48 * 2**20 < grown < 80 * 2**20
    assert before <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_statm_counts_pages(tmp_path: Path) -> None:
    (tmp_path / "statm").write_text("1000 25 7 1 0 90 0\n")
    assert read_rss_bytes(tmp_path / "statm") == 25 * resource.getpagesize()


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, MemoryUse(15_000_000 * 1024, 16_000_000 * 1024)),
        (
            {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n"},
            MemoryUse(15_000_000 * 1024, 16_000_000 * 1024),
        ),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": f"{2 * GB}\n"}, MemoryUse(0, 2 * GB)),
        # In a container the mount's own root is the cgroup.
        ({"proc/self/cgroup": "0::/host/path\n", "sys/fs/cgroup/memory.max": f"{3 * GB}\n"}, MemoryUse(0, 3 * GB)),
        (
            {
                "proc/self/cgroup": "0::/a\n",
                "sys/fs/cgroup/a/memory.max": f"{2 * GB}\n",
                "sys/fs/cgroup/a/memory.current": f"{GB}\n",
                "sys/fs/cgroup/a/memory.stat": f"anon 5\ninactive_file {GB // 4}\nactive_file 7\n",
            },
            MemoryUse(GB - GB // 4, 2 * GB),
        ),
        (
            {
                "proc/self/cgroup": "5:cpu:/x\n4:memory:/a\n",
                "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1",
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": f"{4 * GB}",
                "sys/fs/cgroup/memory/a/memory.usage_in_bytes": f"{3 * GB}",
                "sys/fs/cgroup/memory/a/memory.stat": "inactive_file 1\ntotal_inactive_file 1000\n",
            },
            MemoryUse(3 * GB - 1000, 4 * GB),
        ),
        # The kernel took something back between the two files.
        (
            {
                "proc/self/cgroup": "0::/a\n",
                "sys/fs/cgroup/a/memory.max": f"{2 * GB}\n",
                "sys/fs/cgroup/a/memory.current": "1000\n",
                "sys/fs/cgroup/a/memory.stat": "inactive_file 1001\n",
            },
            MemoryUse(0, 2 * GB),
        ),
    ],
)
def test_smaller_limit_counts_and_reclaimable_memory_is_not_used(
    tmp_path: Path, files: dict[str, str], found: MemoryUse
) -> None:
    write(tmp_path, files)
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


class Keeper:
    """A holder that counts its releases."""

    def __init__(self) -> None:
        self.asked = 0

    def release_memory(self) -> None:
        self.asked += 1


def test_registered_holders_are_asked_until_they_are_gone() -> None:
    keeper = Keeper()
    register_holder(keeper)
    release_free_memory()
    assert keeper.asked == 1
    gone = weakref.ref(keeper)
    del keeper
    assert gone() is None
    release_free_memory()
