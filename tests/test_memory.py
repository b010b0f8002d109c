"""Reading of the kernel's memory figures: made-up /proc and cgroup folders, and this process."""

from __future__ import annotations

import mmap
import resource
from pathlib import Path

import pytest

from ocrsvc.system.memory import MemoryUse, read_memory_bytes, read_memory_use, read_rss_bytes

GB = 10**9


def test_memory_that_is_touched_is_resident() -> None:
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


def test_without_proc_there_is_no_reading(tmp_path: Path) -> None:
    assert (read_rss_bytes(tmp_path / "none"), read_memory_bytes(tmp_path)) == (0, 0)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, 16_000_000 * 1024),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": f"{2 * GB}\n"}, 2 * GB),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, 16_000_000 * 1024),
        # In a container the mount's own root is the cgroup.
        ({"proc/self/cgroup": "0::/host/path\n", "sys/fs/cgroup/memory.max": f"{3 * GB}\n"}, 3 * GB),
        (
            {
                "proc/self/cgroup": "5:cpu:/x\n4:memory:/a\n",
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": f"{4 * GB}",
                "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1",
            },
            4 * GB,
        ),
    ],
)
def test_the_smaller_of_machine_and_cgroup_is_what_there_is(tmp_path: Path, files: dict[str, str], found: int) -> None:
    write(tmp_path, files)
    assert read_memory_bytes(tmp_path) == found


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, MemoryUse(15_000_000 * 1024, 16_000_000 * 1024)),
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
                "proc/self/cgroup": "4:memory:/a\n",
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
def test_what_the_kernel_takes_back_when_it_is_wanted_is_not_in_use(
    tmp_path: Path, files: dict[str, str], found: MemoryUse
) -> None:
    write(tmp_path, files)
    assert read_memory_use(tmp_path) == found


def write(root: Path, files: dict[str, str]) -> None:
    """The kernel's files, of a machine of 16 GB of which 1 GB is free or can be reclaimed."""
    meminfo = "MemTotal:       16000000 kB\nMemFree: 1 kB\nMemAvailable:    1000000 kB\n"
    for name, text in {"proc/meminfo": meminfo, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
