"""Finds what a request asks for besides text, whichever engine read the page, and beside it: pixels need not travel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ocrsvc.engines.contract import Engine, EngineTraits, Handle
from ocrsvc.engines.layout.layout_model import LayoutModel, layout_model
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.errors import OcrsvcError
from ocrsvc.imaging.barcodes import find_barcodes
from ocrsvc.imaging.pdf.merging import merge_text, own_page, without_text
from ocrsvc.imaging.regions import assign_lines
from ocrsvc.imaging.tables.find_tables import find_tables
from ocrsvc.readings import EngineInfo
from ocrsvc.records import Page, ReadTask


class AnalysingHandle:
    """An engine's handle whose pages have tables, regions and bar codes, if asked for; see engines.contract.Handle."""

    def __init__(self, handle: Handle, layout_model: LayoutModel) -> None:
        self._handle = handle
        self._layout_model = layout_model
        self.warm_up, self.close = handle.warm_up, handle.close

    def read(self, tasks: Sequence[ReadTask]) -> list[Page | OcrsvcError]:
        """See engines.contract.Handle."""
        known = [_known_page(task) for task in tasks]
        asked = [_for_engine(task) for task, page in zip(tasks, known, strict=True) if page is None]
        pages = iter(self._handle.read(asked) if asked else [])
        return [
            self._analyse(task, _with_own(task, next(pages)) if page is None else page)
            for task, page in zip(tasks, known, strict=True)
        ]

    def _analyse(self, task: ReadTask, page: Page | OcrsvcError) -> Page | OcrsvcError:
        if isinstance(page, OcrsvcError):
            return page
        try:
            if task.options.layout:
                found = self._layout_model.find(task.image.pixels, page.angle, task.check)
                page = replace(page, regions=assign_lines(page, found))
            if task.options.tables:
                page = replace(page, tables=find_tables(task.image.pixels, page, task.check))
            if task.options.barcodes:
                page = replace(page, barcodes=find_barcodes(task.image.pixels, task.check))
        except OcrsvcError as error:
            return error
        return page


def _known_page(task: ReadTask) -> Page | None:
    """The page where no engine is to read: no text is wanted, or all there is stands in the document."""
    if task.options.barcodes == "only":
        return Page(task.image.width, task.image.height, 0, ())
    return own_page(task.image, task.own) if task.own is not None and task.own.is_all else None


def _for_engine(task: ReadTask) -> ReadTask:
    """The task without what the document says itself."""
    if task.own is None:
        return task
    return replace(task, image=without_text(task.image, task.own) if task.own.lines else task.image, own=None)


def _with_own(task: ReadTask, page: Page | OcrsvcError) -> Page | OcrsvcError:
    return page if task.own is None or isinstance(page, OcrsvcError) else merge_text(page, task.own)


class AnalysingEngine:
    """An engine of this process whose handles are AnalysingHandles; see engines.contract.Engine.

    Args:
        engine: It.
        model: What it was opened with, which it then names itself after; None for the model that it comes with.
    """

    def __init__(self, engine: Engine, model: ModelVersion | None = None) -> None:
        self._engine = engine
        self._layout_model = layout_model()
        self.describe = engine.describe if model is None else partial(_describe_model, engine, model)
        self.close = engine.close

    @property
    def traits(self) -> EngineTraits:
        """See engines.contract.Engine."""
        return self._engine.traits

    def open_handle(self) -> AnalysingHandle:
        """See engines.contract.Engine."""
        return AnalysingHandle(self._engine.open_handle(), self._layout_model)


def _describe_model(engine: Engine, model: ModelVersion) -> EngineInfo:
    return replace(engine.describe(), model=model.name, version=str(model.number))
