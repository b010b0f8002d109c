"""Parses what a service answered to a group of pages: the pages as they came, and who read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from ocrsvc.client.response import Data, error_of
from ocrsvc.client.transport.connection import Response
from ocrsvc.errors import OcrsvcError, ServerError, Unreachable

# What stands before services answers so when it reaches none.
_OF_PROXIES: Final = (502, 503, 504)
# Of the output's 32 bits.
_MOST: Final = (1 << 31) - 1
_CORNERS, _AXES = 4, 2


@dataclass(frozen=True, slots=True)
class Answered:
    """What a service answered, and its address."""

    data: Data
    url: str


def parse_answer(response: Response) -> Answered:
    """The answer that a response holds.

    Raises:
        Unreachable: A proxy answered that it reaches no service.
        OcrsvcError: The error that the service reports, or ServerError where the answer is no service's.
    """
    data = _object_of(response.body)
    if response.status in _OF_PROXIES and "code" not in data:
        raise Unreachable(f"{response.url} answers with the status {response.status}.", "Check what is behind it.")
    if response.status != 200:
        raise error_of(response.status, data, response.retry_after)
    if not isinstance(data.get("pages"), list) or not isinstance(data.get("engine"), dict):
        raise ServerError(f"The answer of {response.url} is not one of this service.", "Check the address.")
    return Answered(data, response.url)


def identity_of(answered: Answered) -> Mapping[str, str]:
    """Engine, model and version that have read."""
    engine = answered.data["engine"]
    return {"engine": str(engine.get("name")), **{name: str(engine.get(name)) for name in ("model", "version")}}


def page_of(data: Data, number: int) -> Mapping[str, Any] | OcrsvcError:
    """A page as the service gives it, or its error."""
    page = next((each for each in data["pages"] if isinstance(each, dict) and each.get("page") == number), None)
    if page is None:
        return ServerError(f"The answer has no page {number}.", "Check that the service is of this version.")
    if "error" in page:
        return _error_of(page["error"])
    if not _is_page(page):
        return ServerError(f"What the answer says of page {number} is no page.", "Check the address of the service.")
    found: Mapping[str, Any] = page
    return found


def _error_of(said: object) -> OcrsvcError:
    data = said if isinstance(said, dict) else {}
    status = data.get("status", 500)
    return error_of(status if isinstance(status, int) else 500, data, None)


def _is_page(page: Data) -> bool:
    """Whether it has what every page has: what else came would end the run where its output is written."""
    lines = page.get("lines")
    return (
        isinstance(page.get("text"), str)
        and all(type(page.get(name)) is int and 0 <= page[name] <= _MOST for name in ("width", "height", "angle"))
        and isinstance(lines, list)
        and all(map(_is_line, lines))
        and all(isinstance(page.get(name, []), list) for name in ("regions", "tables", "barcodes", "masked"))
    )


def _is_line(line: object) -> bool:
    if not isinstance(line, dict):
        return False
    confidence, box = line.get("confidence"), line.get("box")
    return (
        isinstance(line.get("text"), str)
        and isinstance(confidence, float | int)
        and 0 <= confidence <= 1
        and isinstance(box, list)
        and len(box) == _CORNERS
        and all(isinstance(corner, list) and len(corner) == _AXES for corner in box)
        and all(isinstance(place, float | int) for corner in box for place in corner)
        and isinstance(line.get("words") or [], list)
        and isinstance(line.get("source", ""), str)
    )


def _object_of(body: bytes) -> dict[str, Any]:
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return data if isinstance(data, dict) else {}
