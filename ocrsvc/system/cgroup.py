"""Reads the limits that Linux control groups (v1 and v2) set for this process, and the number of CPUs it may use."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def read_cpus(root: Path = Path("/")) -> float:
    """Number of CPUs that this process may use: the smallest of its CPU affinity and its cgroups' CPU quotas."""
    affinity = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min([float(affinity), *read_quotas(root)])


def read_quotas(root: Path) -> Iterator[float]:
    """The CPU quotas of this process's cgroup and its parents, as numbers of CPUs; cgroups without one are omitted."""
    for words in read_limits(root, "cpu", "cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"):
        match words:
            # "150000 100000" means 1.5 CPUs; without a quota the value is "max" or -1, or the file is missing.
            case [quota, period] if quota.isdigit() and int(period):
                yield int(quota) / int(period)


def read_limits(root: Path, controller: str, v2_file: str, *v1_files: str) -> Iterator[list[str]]:
    """The words in the file that sets a limit, for this process's cgroup and then for each of its parents.

    `root` contains proc/self/cgroup and sys/fs/cgroup; the controller is "cpu" or "memory".
    """
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / controllers
        # In a container, the path may name cgroups of the host that are not mounted: then only the last parent exists.
        inner = PurePosixPath(path.lstrip("/"))
        for part in (inner, *inner.parents):
            files = v1_files if controllers else (v2_file,)
            yield " ".join(read_text(mount / part / file) for file in files).split()


def read_text(file: Path) -> str:
    """The text of a file; empty if it cannot be read."""
    try:
        return file.read_text(encoding="ascii")
    except OSError:
        return ""
