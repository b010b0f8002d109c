"""Opens pages and decodes them in the threads of their requests, a few at a time.

Decoded pages are ten times their files. A few are decoded ahead, so that an engine never waits for its next page; the
rest wait as files, so that what a worker holds does not grow with the number of its clients.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from ocrsvc.imaging.codecs.decode import PixelLimits, open_without_pillow
from ocrsvc.imaging.codecs.encoded_image import EncodedImage
from ocrsvc.imaging.document import DocumentPage
from ocrsvc.pipeline.decode_job import DecodeJob, PageSource, ReadRequest
from ocrsvc.results import DecodedPage, Image
from ocrsvc.serving.executor import Executor
from ocrsvc.serving.work_queue import GONE_S

AHEAD_BYTES: Final = 16 * 2**20
"""Bytes of waiting work up to which images are decoded ahead: some pages of an ordinary size."""


class PageDecoder:
    """Opens and decodes pages whose headers declare no more than the limits allow; for any thread."""

    def __init__(self, limits: PixelLimits, engine_threads: int) -> None:
        self._limits, self._engine_threads = limits, engine_threads
        # More decoders than cores gain nothing.
        self._permits = threading.Semaphore(engine_threads + 1)
        # Half of the cores at most decode large pages; the others are for what is soon done.
        self._large_permits = threading.Semaphore(max(1, engine_threads // 2))

    def open(self, page: DocumentPage, job: DecodeJob, waiting_bytes: Callable[[], int]) -> None:
        """Open the page for its job, and decode it unless so many bytes wait for the engine that its thread should.

        A page that another process draws needs no permit here. One that is too large to wait decoded beside others is
        decoded here too, but few at once: an engine thread would keep the small ones waiting for a second. Raises as
        `Document.open`, `DecodeJob.prepare` and the request's check.
        """
        with ExitStack() as permit:
            if not page.is_drawn_in_child:
                _take(self._permits, job.request, permit)
            began_s = time.perf_counter()
            job.open(self._source_of(page, job))
            job.decode_s = time.perf_counter() - began_s
            is_drawn, is_encoded = isinstance(job.source, Image), isinstance(job.source, EncodedImage)
            if is_drawn or (is_encoded and waiting_bytes() + job.pixel_bytes <= AHEAD_BYTES):
                job.prepare()
        if is_encoded and job.pixel_bytes > AHEAD_BYTES:
            self._take_large_permit(job)
            job.prepare()
        job.is_ahead = job.source is None
        job.size_bytes = job.held.held_bytes or page.document.file_bytes

    def decode(self, page: DocumentPage, job: DecodeJob, executor: Executor[DecodeJob]) -> Image:
        """The image of a page; decoded by the engine, where that is what decodes files. Raises as reading it does."""
        self.open(page, job, lambda: 0)
        if job.is_ahead:
            return job.prepare().image
        executor.submit(job)
        with job.context.ledger.during("wait"):
            decoded = executor.wait(job)
        image = decoded.image if isinstance(decoded, DecodedPage) else None
        assert image is not None, "an engine that decodes gives what is asked for, or an error"
        job.held.take(max(0, image.pixels.nbytes - job.held.held_bytes))
        return image

    def _source_of(self, page: DocumentPage, job: DecodeJob) -> PageSource:
        if job.traits.decodes:
            file = page.document.file(page.number, job.held.take)
            if file is not None:
                open_without_pillow(file, self._limits)
                # It is copied to where the engine is.
                job.held.take(len(file))
                return file
        return page.document.open(
            page.number, gray=job.gray, check=job.request.check, take=job.held.take, to_read=not job.image_only
        )

    def _take_large_permit(self, job: DecodeJob) -> None:
        """Take the permit for a large page; the job gives it back."""
        _take(self._large_permits, job.request, job.permit)
        # Of the largest no other one may be decoded meanwhile: it would find no memory, and be refused.
        job.keeps_permit = (self._engine_threads + 1) * job.most_bytes > job.request.context.share.budget_bytes


def _take(permits: threading.Semaphore, request: ReadRequest, until: ExitStack) -> None:
    """Wait for a permit, given back with `until`. Raises DeadlineExceeded or ClientGone."""
    if not permits.acquire(blocking=False):
        with request.context.ledger.during("wait"):
            while not permits.acquire(timeout=max(0.0, min(GONE_S, request.deadline - time.monotonic()))):
                request.check()
    until.callback(permits.release)
