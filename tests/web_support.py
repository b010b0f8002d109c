"""Shared by the web tests: an engine with known results, and the application with it.

The engine finds two lines on every page, at positions worked out by hand below; the text of the second line names the
options that the engine received. It finds a table and a region on request, fails on an all-black page, and finds
nothing on an all-white one.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from flask import Flask
from flask.testing import FlaskClient

from ocrsvc.access.gate import AccessGate
from ocrsvc.app import create_app
from ocrsvc.engines.contract import Engine, EngineTraits
from ocrsvc.errors import EngineFailed, OcrsvcError
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import Cell, Character, EngineInfo, Line, Page, Reading, ReadOptions, ReadTask, Region, Table, Word
from ocrsvc.serving.work_queue import DEFAULT_CONTEXT, Priority, RequestContext
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan

TEXT = "正品|促销"
CONFIDENCE = 0.987654
INFO = EngineInfo("known", "none", "1", "cpu", "fp32", "python")


class KnownEngine:
    """A complete engine that finds two known lines."""

    traits = EngineTraits()

    def describe(self) -> EngineInfo:
        return INFO

    def open_handle(self) -> KnownEngine:
        return self

    def warm_up(self) -> None:
        pass

    def read(self, tasks: Sequence[ReadTask]) -> list[Page | OcrsvcError]:
        return [_read(task) for task in tasks]

    def close(self) -> None:
        pass


class HeldEngine(KnownEngine):
    """Waits for `go` before it reads; counts the tasks that it received."""

    def __init__(self) -> None:
        self.shown, self.go = threading.Semaphore(0), threading.Event()
        self.count = 0

    def read(self, tasks: Sequence[ReadTask]) -> list[Page | OcrsvcError]:
        self.count += len(tasks)
        self.shown.release()
        assert self.go.wait(60.0)
        return super().read(tasks)


def _read(task: ReadTask) -> Page | OcrsvcError:
    width, height = task.image.width, task.image.height
    if not task.image.pixels.any():
        return EngineFailed("A black page.")
    if task.image.pixels.min() == 255:
        return Page(width, height, 0, ())
    options = task.options
    seen = f"{width}x{height} {options.rotate} {options.detect} {options.upright_boxes} {options.min_confidence}"
    # A box from (1/4, 1/4) to (3/4, 1/2) of the page, and a square turned by 45 degrees.
    left, right, top, bottom = width / 4, width * 3 / 4, height / 4, height / 2
    x, y, r = width / 2, height / 2, height / 4
    box = ((left, top), (right, top), (right, bottom), (left, bottom))
    characters = (Character("x", CONFIDENCE, box),) if options.characters else ()
    words = (Word(str(options.words), CONFIDENCE, box, characters),) if options.wants_words else None
    lines = (Line(TEXT, CONFIDENCE, box, words), Line(seen, 0.5, ((x, y - r), (x + r, y), (x, y + r), (x - r, y))))
    # A table of two cells; the first cell contains the first line.
    cells = (Cell(0, 0, 1, 1, box, TEXT, (0,)), Cell(0, 1, 1, 1, box, "", ()))
    tables = (Table(box, 1, 2, cells),) if options.tables else ()
    regions = (Region("title", 0.75, box, (0, 1)),) if options.layout else ()
    return Page(width, height, 0, lines, tables=tables, regions=regions)


class FailingReader:
    """A reader whose methods raise `error`, for errors that no upload can provoke."""

    ready = False
    has_models = False

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.deadlines: list[float] = []

    def describe(self) -> EngineInfo:
        raise self.error

    def check_capacity(self, _priority: Priority) -> None:
        pass

    def read_many(self, *_asked: object) -> list[Any]:
        raise self.error

    def read_files(self, _files: object, _options: ReadOptions, deadline_s: float, *_more: object) -> list[Any]:
        self.deadlines.append(deadline_s)
        raise self.error

    def read(
        self, _data: bytes, _options: ReadOptions, deadline_s: float, _context: RequestContext = DEFAULT_CONTEXT
    ) -> Reading:
        self.deadlines.append(deadline_s)
        raise self.error


def client_over(reader: FailingReader) -> FlaskClient:
    return create_app(Settings(), cast(Reader, reader)).test_client()


def client_raising(error: Exception) -> FlaskClient:
    return client_over(FailingReader(error))


@contextmanager
def running_reader(
    settings: Settings | None = None, opener: Callable[[], Engine] | None = KnownEngine, threads: int = 2
) -> Iterator[Reader]:
    """A running reader. `opener` opens its engine; None opens the engine of the settings."""
    reader = Reader(settings or Settings(), ThreadPlan(1, 4, threads), engine_opener=opener)
    reader.start()
    try:
        yield reader
    finally:
        reader.stop(5.0)


@contextmanager
def running_app(
    settings: Settings | None = None, gate: AccessGate | None = None, jobs: JobStore | None = None
) -> Iterator[Flask]:
    settings = settings or Settings()
    with running_reader(settings) as reader:
        yield create_app(settings, reader, jobs=jobs, gate=gate)


def as_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def json_of(response: Any) -> Any:
    return json.loads(response.data)


def texts(answer: Any) -> list[str]:
    return [page["text"] for page in answer["pages"]]
