"""A job that is deleted, or a client that goes, costs no page that an engine has not taken yet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from documents import GRAY, pdf
from support import wait_until
from web_support import picture

from ocrsvc.engines.fake import FakeEngine, FakeHandle
from ocrsvc.errors import ClientGone, OcrsvcError
from ocrsvc.jobs.job import Record
from ocrsvc.jobs.job_runner import JobRunner
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.pipeline.read import Reader
from ocrsvc.records import Page, ReadOptions, ReadTask
from ocrsvc.serving.work_queue import RequestContext
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan

PAGES = 6
WAIT_S = 30.0
DOCUMENT = pdf(*[GRAY] * PAGES)
OTHER = picture()
OTHER_WIDTH = 64


class WatchedHandle(FakeHandle):
    """The fake engine's, which calls something before each page, with its width."""

    def __init__(self, engine: WatchedEngine) -> None:
        super().__init__(engine.settings, threading.Event(), [])
        self._engine = engine

    def read(self, tasks: Sequence[ReadTask]) -> list[Page | OcrsvcError]:
        for task in tasks:
            self._engine.taken.append(task.image.width)
            self._engine.on_page(task.image.width)
        return super().read(tasks)


class WatchedEngine(FakeEngine):
    """The fake engine, which keeps the widths of the pages that its handles took."""

    def __init__(self) -> None:
        self.settings = Settings()
        super().__init__(self.settings)
        self.taken: list[int] = []
        self.on_page: Callable[[int], object] = bool

    def open_handle(self) -> WatchedHandle:
        return WatchedHandle(self)


@contextmanager
def reading(engine: WatchedEngine, threads: int) -> Iterator[Reader]:
    reader = Reader(engine.settings, ThreadPlan(1, 4, threads), engine_opener=lambda: engine)
    reader.start()
    try:
        yield reader
    finally:
        reader.stop(WAIT_S)


@pytest.mark.parametrize("threads", [1, 2])
def test_of_a_job_that_is_deleted_no_page_reaches_the_engine_that_was_queued_ahead(
    threads: int, tmp_path: Path
) -> None:
    engine, jobs = WatchedEngine(), JobStore(tmp_path, 10**7, 3600.0)
    job = jobs.add(DOCUMENT, Record("", numbers=[*range(1, PAGES + 1)]))

    def delete() -> None:
        # One page for each engine thread is being read, and one more is ahead.
        wait_until(lambda: reader.waiting() == 1)
        jobs.clear(job)

    busy = threading.Barrier(threads, delete, WAIT_S)
    engine.on_page = lambda _width: job.is_there() and busy.wait()
    with reading(engine, threads) as reader:
        JobRunner(jobs, reader, WAIT_S, bool).read_all()
    assert len(engine.taken) == threads
    assert jobs.all() == []


def test_of_a_stream_whose_client_has_gone_no_page_reaches_the_engine_that_was_queued_ahead() -> None:
    engine, gone, other = WatchedEngine(), threading.Event(), threading.Event()

    def on_page(width: int) -> None:
        if width == OTHER_WIDTH:
            assert other.wait(WAIT_S)
            return
        if not gone.is_set():
            wait_until(lambda: reader.waiting() == 1)
            gone.set()

    engine.on_page = on_page
    with reading(engine, threads=2) as reader:
        neighbour = threading.Thread(target=reader.read, args=(OTHER, ReadOptions(), WAIT_S))
        neighbour.start()
        wait_until(lambda: engine.taken)
        pages = reader.read_by_page(DOCUMENT, ReadOptions(), WAIT_S, RequestContext(is_gone=gone.is_set))
        try:
            with pytest.raises(ClientGone):
                list(pages)
        finally:
            other.set()
            neighbour.join()
    assert len(engine.taken) == 2
