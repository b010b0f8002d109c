"""How do requests and answers look between a worker and a child, and what of them is believed?

Small JSON messages; the pixels of a request and the pages of an answer lie in the shared area. What a child sends is
checked completely: a process that has gone wrong is more likely to send nonsense than to send nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any, Final

import orjson

from ocrsvc.engines.base import Driving
from ocrsvc.engines.isolated.area import Area, aligned
from ocrsvc.errors import EngineFailed, OcrsvcError
from ocrsvc.formats.packed import Nonsense, pack_page, unpack_page
from ocrsvc.records import EngineInfo, Image, Page, ReadOptions, ReadTask

MESSAGE_BYTES: Final = 1 << 15
"""Longest message; pages are not in messages."""

_TEXT_CHARACTERS: Final = 2000


@dataclass(frozen=True, slots=True)
class Ready:
    """What a child says once its engine is open and warm; private_bytes is its memory without what is shared."""

    pid: int
    info: EngineInfo
    driving: Driving
    private_bytes: int


def pack_tasks(tasks: Sequence[ReadTask], area: Area) -> bytes:
    """The message for some tasks, whose pixels are put into the area."""
    rows, offset = [], 0
    total = sum(aligned(task.image.pixels.nbytes) for task in tasks)
    area.reserve(total)
    for task in tasks:
        pixels = task.image.pixels
        area.put_pixels(offset, pixels)
        options = task.options
        chosen = list(astuple(options))
        deadline = task.deadline if math.isfinite(task.deadline) else None
        rows.append([pixels.shape, offset, task.image.format, chosen, deadline])
        offset += aligned(pixels.nbytes)
    area.has_begun = False
    return orjson.dumps([total, rows])


def unpack_tasks(message: bytes, area: Area) -> list[ReadTask]:
    """The tasks of a message, their pixels as they lie in the area. In the child."""
    total, rows = orjson.loads(message)
    area.reserve(total)
    return [
        ReadTask(
            Image(area.pixels(offset, tuple(shape)), kind),
            ReadOptions(*chosen),
            math.inf if deadline is None else deadline,
        )
        for shape, offset, kind, chosen, deadline in rows
    ]


def pack_answers(answers: Sequence[Page | OcrsvcError]) -> bytes:
    """Pages and errors as JSON; numbers that are not finite become null, which nobody believes."""
    return orjson.dumps([pack_page(answer) if isinstance(answer, Page) else _pack_error(answer) for answer in answers])


def unpack_answers(data: bytes, count: int) -> list[Page | OcrsvcError]:
    """So many pages and errors. Raises Nonsense."""
    try:
        rows = orjson.loads(data)
    except ValueError as error:
        raise Nonsense("an answer that is not JSON") from error
    if not isinstance(rows, list) or len(rows) != count:
        raise Nonsense(f"not the {count} answers that were asked for")
    return [_unpack_error(row) if isinstance(row, dict) else unpack_page(row) for row in rows]


def pack_ready(ready: Ready) -> dict[str, object]:
    """As JSON can hold it."""
    return asdict(ready)


def unpack_ready(row: Any) -> Ready:
    """Raises Nonsense."""
    try:
        return Ready(row["pid"], EngineInfo(**row["info"]), Driving(**row["driving"]), row["private_bytes"])
    except (TypeError, KeyError) as error:
        raise Nonsense("a first message that says nothing") from error


def pack_failure(failure: BaseException) -> dict[str, str]:
    """An error of an engine, of whatever kind, by its code and text."""
    if isinstance(failure, OcrsvcError):
        return _pack_error(failure)
    return _pack_error(
        EngineFailed(
            f"The engine failed on this image with {type(failure).__name__}: {failure}.",
            "If other images are read, this one triggers a fault in the engine: please report it with the image.",
        )
    )


def unpack_failure(row: Any) -> OcrsvcError:
    """Raises Nonsense."""
    return _unpack_error(row)


def _pack_error(error: OcrsvcError) -> dict[str, str]:
    texts = {"detail": error.detail[:_TEXT_CHARACTERS], "remedy": error.remedy[:_TEXT_CHARACTERS]}
    return {"code": error.code, **texts}


def _unpack_error(row: Any) -> OcrsvcError:
    match row:
        case {"code": str(code), "detail": str(detail), "remedy": str(remedy)}:
            return next((kind for kind in _kinds(OcrsvcError) if kind.code == code), EngineFailed)(detail, remedy)
    raise Nonsense("an error without a code")


def _kinds(base: type[OcrsvcError]) -> Iterator[type[OcrsvcError]]:
    for kind in base.__subclasses__():
        if "code" in vars(kind):
            yield kind
        yield from _kinds(kind)
