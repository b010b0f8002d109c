"""Reads how many CPUs this process may use."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from ocrsvc.system.cgroup import read_limits


def read_cpus(root: Path = Path("/")) -> float:
    """CPUs that this process may use: the smaller of its affinity and the CPU quotas of its cgroups, never the host's.

    Args:
        root: Folder that holds proc/self/cgroup and sys/fs/cgroup.
    """
    affinity = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min([float(affinity), *read_quotas(root)])


def read_quotas(root: Path) -> Iterator[float]:
    """The CPU quotas, in CPUs, of this process's cgroup and of those around it; none when unlimited."""
    for words in read_limits(root, "cpu", "cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"):
        match words:
            # 150000 100000 is 1.5 CPUs. No quota is "max", or -1, or no file.
            case [quota, period] if quota.isdigit() and int(period):
                yield int(quota) / int(period)
