"""The handle of an engine thread: it reads with several versions of models, and each job has a lease on one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ocrsvc.engines.contract import Handle
from ocrsvc.errors import OcrsvcError
from ocrsvc.pipeline.decode_job import DecodeJob, DecodingHandle
from ocrsvc.records import Page

MOST_BATCH: Final = 64
"""Jobs in one `read` at most, whatever an engine gains from."""


class LeasedHandles:
    """See serving.executor.ThreadHandle.

    Args:
        close: Closes the handles of this thread, when it ends.
    """

    def __init__(self, close: Callable[[], object]) -> None:
        self._close = close

    def warm_up(self) -> None:
        """Handles are warm before their version counts as loaded."""

    def read(self, jobs: Sequence[DecodeJob]) -> list[Page | OcrsvcError]:
        """One page or error for each job, all of which are for one version."""
        return DecodingHandle(handle_of(jobs[0])).read(jobs)

    def close(self) -> None:
        """In the thread that ends."""
        self._close()


def handle_of(job: DecodeJob) -> Handle:
    """This thread's handle of the version that the job is for."""
    return job.lease.handle()


def may_join(first: DecodeJob, taken: int, other: DecodeJob) -> bool:
    """Whether a job may be read with a number of others, the first of which is given."""
    return taken < first.traits.best_batch and first.lease.version == other.lease.version
