"""Finds what a request asks for besides text, whichever engine read the page, and beside it: pixels need not travel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ocrsvc.engines.contract import Engine, EngineTraits, Handle
from ocrsvc.engines.layout.layout_model import LayoutModel, layout_model
from ocrsvc.errors import OcrsvcError
from ocrsvc.imaging.barcodes import find_barcodes
from ocrsvc.imaging.regions import assign_lines
from ocrsvc.imaging.tables import find_tables
from ocrsvc.model_repository.version import ModelVersion
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
        with_text = [task for task in tasks if task.options.barcodes != "only"]
        pages = iter(self._handle.read(with_text) if with_text else [])
        return [
            self._analyse(task, _without_text(task) if task.options.barcodes == "only" else next(pages))
            for task in tasks
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


def _without_text(task: ReadTask) -> Page:
    """A page that no engine has read."""
    return Page(task.image.width, task.image.height, 0, ())


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
