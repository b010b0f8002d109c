"""Reads pages in engine threads of this process, without HTTP."""

import time
from collections.abc import Iterator, Mapping
from typing import Final

from ocrsvc.batch.pages import Load, PageGroup, PageResult, failure_of, result_of
from ocrsvc.batch.request import BatchRequest
from ocrsvc.errors import OcrsvcError
from ocrsvc.formats.json_values import page_to_dict
from ocrsvc.http.options import read_options
from ocrsvc.imaging.document import DocumentPage
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import ReadOptions
from ocrsvc.serving.work_queue import RequestContext
from ocrsvc.settings.load import read_settings
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import plan_for

RESULT_SETTINGS: Final = ("device", "precision", "provider", "imaging", "pdf_dpi", "fake_text", "fake_confidence")
"""Settings that affect results; they must stay the same when a run is continued."""
PAGE_LIMIT_S: Final = 120.0
"""Time limit of a page, unless OCRSVC_DEADLINE_S is set."""
OWN_SETTINGS: Final = {"OCRSVC_MAX_PAGES": "100000"}
"""A page limit that no document reaches: the files are the operator's own, so all their pages may be read."""
_CONTEXT: Final = RequestContext(priority="batch")


class LocalReader:
    """A PageReader with a local engine, which the settings choose."""

    is_elsewhere = False

    def __init__(
        self, settings: Settings, options: ReadOptions, load: Load, page_limit_s: float = PAGE_LIMIT_S
    ) -> None:
        self._plan = plan_for(settings, workers=1)
        self._reader = Reader(settings, self._plan)
        self._settings, self._options, self._load, self._page_limit_s = settings, options, load, page_limit_s

    def start(self) -> Mapping[str, str]:
        """Start the engine. Raises UnknownModel, so that a missing model fails the run now instead of every page."""
        self._reader.start()
        with self._reader.one_version(self._options, self._page_limit_s, _CONTEXT):
            pass
        engine = self._reader.describe()
        chosen = " ".join(f"{name}={getattr(self._settings, name)}" for name in RESULT_SETTINGS)
        return {"engine": engine.name, "model": engine.model, "version": engine.version, "settings": chosen}

    @property
    def at_once(self) -> int:
        """Groups to read at once: one more than engine threads, to decode the next page while the engine is busy."""
        return self._plan.engine_threads + 1

    def read(self, group: PageGroup, data: bytes | None = None) -> Iterator[PageResult]:
        """Read a group of pages; `data` is the content of their file, None to load it."""
        try:
            data = self._load(group.file) if data is None else data
            with self._reader.open_document(data, self._page_limit_s, _CONTEXT) as document:
                for number in group.pages:
                    began_s, page = time.monotonic(), DocumentPage(document, number)
                    try:
                        read = self._reader.read(page, self._options, self._page_limit_s, _CONTEXT).page
                    except OcrsvcError as error:
                        yield failure_of(group, number, error, time.monotonic() - began_s)
                        continue
                    record = page_to_dict(read, number, self._options)
                    yield result_of(group, number, record, time.monotonic() - began_s, "this process")
        except OcrsvcError as error:
            # The file could not be loaded or opened, so all its pages fail.
            yield from (failure_of(group, number, error) for number in group.pages)

    def close(self) -> None:
        self._reader.stop(5.0)


def open_local(request: BatchRequest, load: Load) -> LocalReader:
    """Make a local reader with engines in child processes: a file that crashes an engine fails alone."""
    environment = {"OCRSVC_ISOLATION": "process"} | dict(request.environment) | OWN_SETTINGS
    settings = read_settings(environment)
    limit_s = settings.deadline_s if "OCRSVC_DEADLINE_S" in environment else PAGE_LIMIT_S
    return LocalReader(settings, read_options(request.options.items()).read, load, limit_s)
