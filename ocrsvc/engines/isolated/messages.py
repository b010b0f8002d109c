"""The messages between a worker and a child: packing requests and answers, and checking what a child sends.

Small JSON messages; the files and pixels of a request and the pages of an answer lie in the shared area. What a child
sends is checked completely: a process that has gone wrong is more likely to send nonsense than to send nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from math import prod
from typing import Any, Final

import numpy as np
import orjson

from ocrsvc.engines.contract import EngineTraits
from ocrsvc.engines.isolated.shared_memory import SharedMemory, aligned
from ocrsvc.errors import EngineFailed, OcrsvcError
from ocrsvc.formats.page_values import InvalidData, pack_page, unpack_page
from ocrsvc.records import (
    DecodedPage,
    EngineInfo,
    FileTask,
    Image,
    Page,
    Pixels,
    ReadOptions,
    ReadTask,
    Task,
)
from ocrsvc.serving.work_queue import client_gone, deadline_passed

MESSAGE_BYTES: Final = 1 << 15
"""Longest message; pages are not in messages."""

_TEXT_CHARACTERS: Final = 2000


@dataclass(frozen=True, slots=True)
class Ready:
    """What a child says once its engine is open and warm.

    Attributes:
        pid: Of its process.
        info, driving: Of its engine.
        private_bytes: Its memory without what is shared.
        card_bytes, card_total_bytes: Its memory of the GPU, and the GPU's; 0 where NVML does not report it.
    """

    pid: int
    info: EngineInfo
    driving: EngineTraits
    private_bytes: int
    card_bytes: int = 0
    card_total_bytes: int = 0


def pack_tasks(tasks: Sequence[Task], area: SharedMemory) -> bytes:
    """The message for some tasks, whose files and pixels are put into the area. Raises OSError when it cannot grow."""
    rows, offset = [], 0
    total = sum(aligned(_size_of(task)) for task in tasks)
    area.reserve(total)
    for task in tasks:
        rows.append([_put(task, offset, area), offset, task.options and list(astuple(task.options)), _finite(task)])
        offset += aligned(_size_of(task))
    area.has_begun = area.is_given_up = False
    return orjson.dumps([total, rows])


def _size_of(task: Task) -> int:
    return len(task.data) if isinstance(task, FileTask) else task.image.pixels.nbytes


def _put(task: Task, offset: int, area: SharedMemory) -> int | list[object]:
    """Put it there; what the message says of it: the size of a file, or the format and shape of an image."""
    if isinstance(task, FileTask):
        area.put_bytes(offset, task.data)
        return len(task.data)
    area.put_pixels(offset, task.image.pixels)
    return [task.image.format, *task.image.pixels.shape]


def _finite(task: Task) -> float | None:
    return task.deadline if math.isfinite(task.deadline) else None


def unpack_tasks(message: bytes, area: SharedMemory) -> list[Task]:
    """The tasks of a message, their pixels as they lie in the area. In the child."""
    total, rows = orjson.loads(message)
    area.reserve(total)
    return [_unpack_task(area, *row) for row in rows]


def _unpack_task(
    area: SharedMemory, what: int | list[Any], offset: int, chosen: list[Any] | None, deadline: float | None
) -> Task:
    options, until_s = None if chosen is None else ReadOptions(*chosen), math.inf if deadline is None else deadline

    def check() -> None:
        # The clock is the machine's, so the worker's deadline means the same here.
        if time.monotonic() >= until_s:
            raise deadline_passed()
        if area.is_given_up:
            raise client_gone()

    if isinstance(what, int):
        return FileTask(area.get_bytes(offset, what), options, until_s, check)
    kind, *shape = what
    assert options is not None, "an image that is decoded already is there to be read"
    return ReadTask(Image(area.pixels(offset, tuple(shape)), kind), options, until_s, check)


def pack_answers(answers: Sequence[Page | OcrsvcError], area: SharedMemory) -> list[int]:
    """Put pages and errors into the area, images first; returns where the rest lies: offset and size.

    Numbers that are not finite become null, which `unpack_answers` refuses.
    """
    rows, offset = list[object](), 0
    for answer in answers:
        image = answer.image.pixels if isinstance(answer, DecodedPage) and answer.image is not None else None
        rows.append(_pack_answer(answer, offset))
        if image is not None:
            area.reserve(offset + image.nbytes)
            area.put_pixels(offset, image)
            offset += aligned(image.nbytes)
    data = orjson.dumps(rows)
    area.put_bytes(offset, data)
    return [offset, len(data)]


def _pack_answer(answer: Page | OcrsvcError, offset: int) -> object:
    if isinstance(answer, OcrsvcError):
        return _pack_error(answer)
    if not isinstance(answer, DecodedPage):
        return pack_page(answer)
    image = None if answer.image is None else [answer.image.format, offset, *answer.image.pixels.shape]
    return {"page": pack_page(answer), "decode_s": answer.decode_s, "image": image}


def unpack_answers(place: Any, tasks: Sequence[Task], area: SharedMemory) -> list[Page | OcrsvcError]:
    """What `pack_answers` put there, one for each task. Raises InvalidData."""
    match place:
        case [int(offset), int(size)] if area.holds(offset, size):
            return _unpack_answers(area.get_bytes(offset, size), tasks, area)
    raise InvalidData("an answer that is nowhere")


def _unpack_answers(data: bytes, tasks: Sequence[Task], area: SharedMemory) -> list[Page | OcrsvcError]:
    try:
        rows = orjson.loads(data)
    except ValueError as error:
        raise InvalidData("an answer that is not JSON") from error
    if not isinstance(rows, list) or len(rows) != len(tasks):
        raise InvalidData(f"not the {len(tasks)} answers that were asked for")
    return [_unpack_answer(row, task, area) for row, task in zip(rows, tasks, strict=True)]


def _unpack_answer(row: Any, task: Task, area: SharedMemory) -> Page | OcrsvcError:
    if isinstance(row, dict) and "code" in row:
        return _unpack_error(row)
    if isinstance(task, ReadTask):
        return unpack_page(row)
    match row:
        case {"page": page, "decode_s": float(decode_s), "image": None} if task.options is not None:
            decoded, image = unpack_page(page), None
        case {"page": page, "decode_s": float(decode_s), "image": [str(kind), int(offset), *shape]}:
            decoded, image = unpack_page(page), Image(_copied(area, offset, tuple(shape)), kind)
        case _:
            raise InvalidData("no page of a file")
    if not 0.0 <= decode_s < math.inf:
        raise InvalidData("a file that took no time to decode")
    return DecodedPage(decoded.width, decoded.height, decoded.angle, decoded.lines, decode_s=decode_s, image=image)


def _copied(area: SharedMemory, offset: int, shape: tuple[Any, ...]) -> Pixels:
    """Pixels out of the area. Raises InvalidData."""
    sides, colours = shape[:2], shape[2:]
    if len(sides) != 2 or colours not in ((), (3,)) or not all(type(side) is int and side > 0 for side in sides):
        raise InvalidData("an image without a size")
    if not area.holds(offset, prod(shape)):
        raise InvalidData("an image that is nowhere")
    return np.array(area.pixels(offset, shape))


def pack_ready(ready: Ready) -> dict[str, object]:
    """As JSON can hold it."""
    return asdict(ready)


def unpack_ready(row: Any) -> Ready:
    """Raises InvalidData."""
    try:
        return Ready(**{**row, "info": EngineInfo(**row["info"]), "driving": EngineTraits(**row["driving"])})
    except (TypeError, KeyError) as error:
        raise InvalidData("a first message that says nothing") from error


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
    """Raises InvalidData."""
    return _unpack_error(row)


def _pack_error(error: OcrsvcError) -> dict[str, str]:
    texts = {"detail": error.detail[:_TEXT_CHARACTERS], "remedy": error.remedy[:_TEXT_CHARACTERS]}
    return {"code": error.code, **texts}


def _unpack_error(row: Any) -> OcrsvcError:
    match row:
        case {"code": str(code), "detail": str(detail), "remedy": str(remedy)}:
            return next((kind for kind in _kinds(OcrsvcError) if kind.code == code), EngineFailed)(detail, remedy)
    raise InvalidData("an error without a code")


def _kinds(base: type[OcrsvcError]) -> Iterator[type[OcrsvcError]]:
    for kind in base.__subclasses__():
        if "code" in vars(kind):
            yield kind
        yield from _kinds(kind)
