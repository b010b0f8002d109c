"""One page's result as a line of JSON: the same bytes, whoever read the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from ocrsvc.batch.tasks import PageGroup, PageResult
from ocrsvc.errors import OcrsvcError

_PAGE_KEYS: Final = ("width", "height", "angle", "text", "lines", "regions", "tables", "barcodes", "masked")
"""Of the native API's page. Who read it is the run's, not the page's; how long that took differs from time to time."""


def record_head(source: str, number: int) -> bytes:
    """How the record of a page begins, whatever became of it.

    Args:
        source: The file's name, as results call it.
        number: Of the page in it, from 1.
    """
    return orjson.dumps({"source": source, "page": number})[:-1] + b","


def result_of(group: PageGroup, number: int, page: Mapping[str, Any], seconds: float, worker: str) -> PageResult:
    """The result of a page that was read.

    Args:
        group: What it was read with.
        number: Of the page in its file, from 1.
        page: As the native API answers it, with its lines.
        seconds, worker: As of PageResult.
    """
    said = {"source": group.file.name, "page": number}
    said |= {key: page[key] for key in _PAGE_KEYS if key in page} | {"error": None}
    lines = page["lines"]
    confidence = sum(line["confidence"] for line in lines) / max(1, len(lines))
    return PageResult(_index_of(group, number), orjson.dumps(said), "", False, seconds, confidence, len(lines), worker)


def failure_of(group: PageGroup, number: int, error: OcrsvcError, seconds: float = 0.0, worker: str = "") -> PageResult:
    """The result of a page that could not be read. What is the caller's fault is the page's: no other try reads it."""
    what = {"code": error.code, "detail": error.detail, "remedy": error.remedy}
    said = {"source": group.file.name, "page": number, "text": "", "lines": [], "error": what}
    is_retryable = error.retryable or error.status >= 500
    return PageResult(_index_of(group, number), orjson.dumps(said), error.code, is_retryable, seconds, 0.0, 0, worker)


def _index_of(group: PageGroup, number: int) -> int:
    return group.indexes[group.pages.index(number)]
