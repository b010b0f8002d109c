"""Measures what the job store takes of the disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from ocrsvc.jobs.store import JobStore
from ocrsvc.telemetry import metrics
from ocrsvc.telemetry.metric import Metric

USAGE_S: Final = 15.0
"""How often it is measured; jobs that have not changed meanwhile are not opened for it (see job_index.py)."""


def read_usage(jobs: JobStore) -> Iterator[tuple[Metric, float]]:
    """How many documents there are, and of the disk what they take, may take, and leave; raises OSError."""
    stored = [entry.stored for entry in jobs.entries()]
    disk = os.statvfs(jobs.folder)
    yield metrics.TASKS, len(stored)
    yield metrics.TASKS_WAITING, sum(not each.is_done for each in stored)
    yield metrics.TASKS_BYTES, sum(each.size for each in stored)
    yield metrics.TASKS_LIMIT, jobs.most_bytes
    yield metrics.TASKS_DISK_FREE, disk.f_bavail * disk.f_frsize
