"""Finds tables, regions and barcodes for every engine; runs in the engine's process, because the pixels are there."""

from collections.abc import Sequence
from dataclasses import replace

from ocrsvc.engines.contract import Engine, Handle
from ocrsvc.engines.layout.regions import assign_lines, find_regions
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.errors import OcrsvcError
from ocrsvc.imaging.barcodes import find_barcodes
from ocrsvc.imaging.pdf.merge_text import merge_text, without_text
from ocrsvc.imaging.tables.find_tables import find_tables
from ocrsvc.results import EngineInfo, Page, ReadTask


class AnalysingHandle:
    """Adds the requested tables, regions and barcodes to the pages of an engine; see engines.contract.Handle."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self.warm_up, self.close = handle.warm_up, handle.close

    def read(self, tasks: Sequence[ReadTask]) -> list[Page | OcrsvcError]:
        """See engines.contract.Handle."""
        known = [_known_page(task) for task in tasks]
        unread = [_without_own(task) for task, page in zip(tasks, known, strict=True) if page is None]
        pages = iter(self._handle.read(unread) if unread else [])
        return [_analyse(task, page or next(pages)) for task, page in zip(tasks, known, strict=True)]


def _analyse(task: ReadTask, page: Page | OcrsvcError) -> Page | OcrsvcError:
    if isinstance(page, OcrsvcError):
        return page
    if task.own is not None and not task.own.is_all and task.options.barcodes != "only":
        page = merge_text(page, task.own)
    try:
        # Lines of a page in Markdown have no real positions, so tables and regions cannot be matched with them.
        has_places = page.markdown is None
        if task.options.layout:
            regions = find_regions(task.image.pixels, page.angle, task.check) if has_places else []
            page = replace(page, regions=assign_lines(page, regions))
        if task.options.tables and has_places:
            page = replace(page, tables=find_tables(task.image.pixels, page, task.check))
        if task.options.barcodes:
            page = replace(page, barcodes=find_barcodes(task.image.pixels, task.check))
    except OcrsvcError as error:
        return error
    return page


def _known_page(task: ReadTask) -> Page | None:
    """The page if it needs no engine: only barcodes are requested, or the document contains all of the page's text."""
    width, height, own = task.image.width, task.image.height, task.own
    if task.options.barcodes == "only":
        return Page(width, height, 0, ())
    return Page(width, height, own.angle, own.lines) if own is not None and own.is_all else None


def _without_own(task: ReadTask) -> ReadTask:
    if task.own is None:
        return task
    return replace(task, image=without_text(task.image, task.own) if task.own.lines else task.image, own=None)


class AnalysingEngine:
    """Wraps an engine of this process so that its handles are AnalysingHandles; see engines.contract.Engine."""

    def __init__(self, engine: Engine, model: ModelVersion | None = None) -> None:
        self._engine, self._model = engine, model
        self.traits, self.close = engine.traits, engine.close

    def describe(self) -> EngineInfo:
        """See engines.contract.Engine."""
        info, model = self._engine.describe(), self._model
        return info if model is None else replace(info, model=model.name, version=str(model.number))

    def open_handle(self) -> AnalysingHandle:
        """See engines.contract.Engine."""
        return AnalysingHandle(self._engine.open_handle())
