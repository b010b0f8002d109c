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
    page = next((each for each in data["pages"] if each.get("page") == number), None)
    if page is None:
        return ServerError(f"The answer has no page {number}.", "Check that the service is of this version.")
    if "error" in page:
        return error_of(int(page["error"].get("status", 500)), page["error"], None)
    lines = page.get("lines")
    if not isinstance(lines, list) or not all(_is_line(line) for line in lines):
        return ServerError(
            f"The answer's page {number} has a line without a text or a number as its confidence.",
            "Look at what the engine of the services reads there; OCRSVC_ISOLATION=process finds such pages.",
        )
    found: Mapping[str, Any] = page
    return found


def _is_line(line: object) -> bool:
    """Whether this is a line of text; an engine that is not isolated may give what is no number, in JSON null."""
    return (
        isinstance(line, dict) and isinstance(line.get("text"), str) and isinstance(line.get("confidence"), float | int)
    )


def _object_of(body: bytes) -> dict[str, Any]:
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return data if isinstance(data, dict) else {}
