"""Opens pages and decodes them in the threads of their requests, a few at a time.

A decoded page is about ten times as large as its file. A few pages are decoded in advance, so that an engine need not
wait for its next page. All others wait undecoded, so that memory does not grow with the number of clients.
"""

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
from ocrsvc.serving.work_queue import CLIENT_CHECK_S

# Pages are decoded in advance while the queued jobs hold at most this much memory (several ordinary pages).
AHEAD_BYTES: Final = 16 * 2**20


class PageDecoder:
    """Opens and decodes pages within the pixel limits; thread-safe."""

    def __init__(self, limits: PixelLimits, engine_threads: int) -> None:
        self._limits, self._engine_threads = limits, engine_threads
        # Decoding keeps a core busy, so permit only one decoder more than there are engine threads.
        self._permits = threading.Semaphore(engine_threads + 1)
        # Large pages occupy at most half of the cores, so that small pages need not wait for them.
        self._large_permits = threading.Semaphore(max(1, engine_threads // 2))

    def open(self, page: DocumentPage, job: DecodeJob, waiting_bytes: Callable[[], int]) -> None:
        """Open the page for its job, and decode it unless the queued jobs then hold more than AHEAD_BYTES.

        A PDF needs no permit, because a child process draws it. A page larger than AHEAD_BYTES is always decoded here,
        with a permit for large pages: an engine thread that decoded it would delay small pages by a second. Raises the
        errors of `Document.open`, of `DecodeJob.prepare` and of the request's check.
        """
        with ExitStack() as permit:
            # PDF pages need no decoding permit: child processes draw them, and their number is limited separately.
            if page.document.kind != "PDF":
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
        """Decode a page to an image, in the engine's process if the engine decodes files. Raises as `Reader.read`."""
        self.open(page, job, lambda: 0)
        if job.is_ahead:
            return job.prepare().image
        executor.submit(job)
        with job.context.ledger.during("wait"):
            decoded = executor.wait(job)
        image = decoded.image if isinstance(decoded, DecodedPage) else None
        assert image is not None, "a decoding engine returns the image or an error"
        job.held.take(max(0, image.pixels.nbytes - job.held.held_bytes))
        return image

    def _source_of(self, page: DocumentPage, job: DecodeJob) -> PageSource:
        if job.traits.decodes:
            file = page.document.file(page.number, job.held.take)
            if file is not None:
                open_without_pillow(file, self._limits)
                # Reserve memory for the copy of the file that is sent to the engine's process.
                job.held.take(len(file))
                return file
        return page.document.open(
            page.number, gray=job.gray, check=job.request.check, take=job.held.take, to_read=not job.image_only
        )

    def _take_large_permit(self, job: DecodeJob) -> None:
        """Wait for a permit for large pages; the job releases it."""
        _take(self._large_permits, job.request, job.permit)
        # The largest pages keep their permit until they are read, because a second one would find too little memory.
        job.keeps_permit = (self._engine_threads + 1) * job.max_bytes > job.request.context.share.budget_bytes


def _take(permits: threading.Semaphore, request: ReadRequest, until: ExitStack) -> None:
    """Wait for a permit, which is released when `until` closes. Raises DeadlineExceeded or ClientGone."""
    if not permits.acquire(blocking=False):
        with request.context.ledger.during("wait"):
            while not permits.acquire(timeout=max(0.0, min(CLIENT_CHECK_S, request.deadline - time.monotonic()))):
                request.check()
    until.callback(permits.release)
