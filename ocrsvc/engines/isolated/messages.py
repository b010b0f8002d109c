"""Messages between a worker and a child, and the shared memory in which files, pixels and answers are passed.

Messages are small JSON. The shared area is an anonymous file, sealed so that a faulty child cannot shrink it while the
worker is reading. The worker validates everything from a child, because a faulty process may send anything.
"""

from __future__ import annotations

import math
import mmap
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final

import numpy as np
import orjson

from ocrsvc.engines.contract import EngineTraits
from ocrsvc.errors import EngineFailed, OcrsvcError
from ocrsvc.formats.page_serialization import InvalidData, pack_page, unpack_page
from ocrsvc.results import (
    DecodedPage,
    EngineInfo,
    EngineTimes,
    FileTask,
    Image,
    OwnText,
    Page,
    Pixels,
    ReadOptions,
    ReadTask,
    Task,
)
from ocrsvc.serving.work_queue import client_gone, deadline_passed
from ocrsvc.system.shared_memory import KEEPS_LENGTH, open_memory

# Header before the data: byte 0 is set once the child has started, byte 1 once the worker no longer wants the answer.
_HEAD_BYTES: Final = 64
_ALIGN: Final = 64
_FIRST_BYTES: Final = 1 << 20
# Memory beyond this is freed after each request: a hole is punched into the file, which keeps its length.
_KEEP_BYTES: Final = 32 << 20
MESSAGE_BYTES: Final = 1 << 15  # longest message; pages are passed in the shared area
_TEXT_CHARACTERS: Final = 2000


class SharedArea:
    """One process's mapping of the shared area: a new file, or the `fd` of another process's area. Raises OSError."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = open_memory("ocrsvc-pixels", seals=KEEPS_LENGTH) if fd is None else fd
        try:
            if fd is None:
                os.ftruncate(self.fd, _FIRST_BYTES)
            self._map = mmap.mmap(self.fd, 0)
        except BaseException:
            os.close(self.fd)
            raise

    @property
    def has_begun(self) -> bool:
        """Whether the child has started to process the request."""
        return self._map[0] == 1

    @has_begun.setter
    def has_begun(self, begun: bool) -> None:
        self._map[0] = int(begun)

    @property
    def is_given_up(self) -> bool:
        """Whether the worker no longer wants the answer; the child checks it between lines."""
        return self._map[1] == 1

    @is_given_up.setter
    def is_given_up(self, given_up: bool) -> None:
        self._map[1] = int(given_up)

    def put(self, offset: int, data: Pixels | bytes) -> int:
        """Copy data to an offset, without the GIL; returns the next free offset. Raises OSError if memory runs out."""
        pixels = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
        self.get(offset, pixels.shape)[...] = pixels
        return offset + -(-pixels.nbytes // _ALIGN) * _ALIGN

    def get(self, offset: int, shape: tuple[int, ...]) -> Pixels:
        """A view of the bytes at an offset; the area grows if necessary. Raises OSError if memory runs out."""
        self._reserve(_HEAD_BYTES + offset + prod(shape))
        return np.ndarray(shape, np.uint8, self._map, _HEAD_BYTES + offset)

    def holds(self, offset: Any, shape: tuple[Any, ...]) -> bool:
        """Whether an offset and shape that the other process sent lie within the area."""
        numbers = (offset, *shape)
        is_place = all(type(number) is int and number >= 0 for number in numbers)
        return is_place and _HEAD_BYTES + offset + prod(shape) <= os.fstat(self.fd).st_size

    def give_back(self) -> None:
        """Free memory that only a very large image needed."""
        if len(self._map) > _KEEP_BYTES:
            self._map.madvise(mmap.MADV_REMOVE, _KEEP_BYTES, len(self._map) - _KEEP_BYTES)

    def close(self) -> None:
        """Close the mapping and the file; the memory is freed when both processes have closed it."""
        self._map.close()
        os.close(self.fd)

    def _reserve(self, size: int) -> None:
        """Map at least `size` bytes, and grow the file if necessary."""
        if size <= len(self._map):
            return
        if size > os.fstat(self.fd).st_size:
            os.ftruncate(self.fd, 1 << (size - 1).bit_length())
        # Not resize(): an engine may still hold a view of the old mapping, which is freed with its last view.
        self._map = mmap.mmap(self.fd, 0)


@dataclass(frozen=True, slots=True)
class Ready:
    """The message of a child whose engine is open and warm."""

    pid: int
    info: EngineInfo
    traits: EngineTraits
    private_bytes: int  # the child's memory, without pages shared with others
    gpu_bytes: int = 0  # the child's GPU memory; 0 if NVML does not report it
    gpu_total_bytes: int = 0  # all memory of the GPU; 0 if NVML does not report it


def pack_tasks(tasks: Sequence[Task], area: SharedArea) -> bytes:
    """Pack tasks into a message, their files and pixels into the area. Raises OSError if the area cannot grow."""
    rows, offset = [], 0
    for task in tasks:
        data = np.frombuffer(task.data, np.uint8) if isinstance(task, FileTask) else task.image.pixels
        kind = None if isinstance(task, FileTask) else task.image.format
        deadline = task.deadline if math.isfinite(task.deadline) else None
        row = [kind, offset, data.shape, task.options, deadline]
        offset = area.put(offset, data)
        if isinstance(task, ReadTask) and task.own is not None:
            # The size 1 x 1 only satisfies Page: the child uses angle and lines, in coordinates of the task's image.
            own = orjson.dumps([task.own.is_all, pack_page(Page(1, 1, task.own.angle, task.own.lines))])
            row += [offset, len(own)]
            offset = area.put(offset, own)
        rows.append(row)
    area.has_begun = area.is_given_up = False
    return orjson.dumps(rows)


def unpack_tasks(message: bytes, area: SharedArea) -> list[Task]:
    """Unpack tasks in the child; their pixels are views of the area."""
    return [_unpack_task(area, *row) for row in orjson.loads(message)]


def _unpack_task(
    area: SharedArea,
    kind: str | None,
    offset: int,
    shape: list[int],
    chosen: dict[str, Any] | None,
    deadline: float | None,
    own_offset: int = 0,
    own_bytes: int = 0,
) -> Task:
    options, until_s = None if chosen is None else ReadOptions(**chosen), math.inf if deadline is None else deadline

    def check() -> None:
        # All processes share the monotonic clock, so the worker's deadline is valid in the child.
        if time.monotonic() >= until_s:
            raise deadline_passed()
        if area.is_given_up:
            raise client_gone()

    data = area.get(offset, tuple(shape))
    if kind is None:
        return FileTask(data.tobytes(), options, until_s, check)
    assert options is not None, "a decoded image has options"
    own = None
    if own_bytes:
        is_all, row = orjson.loads(area.get(own_offset, (own_bytes,)).tobytes())
        page = unpack_page(row)
        own = OwnText(page.lines, page.angle, is_all)
    return ReadTask(Image(data, kind), options, until_s, check, own)


def pack_answers(answers: Sequence[Page | OcrsvcError], area: SharedArea) -> list[int]:
    """Write decoded images, then answers as JSON, to the area; returns the JSON's offset and size. NaN becomes null."""
    rows, offset = list[object](), 0
    for answer in answers:
        rows.append(_pack_answer(answer, offset))
        if isinstance(answer, DecodedPage) and answer.image is not None:
            offset = area.put(offset, answer.image.pixels)
    data = orjson.dumps(rows)
    area.put(offset, data)
    return [offset, len(data)]


def _pack_answer(answer: Page | OcrsvcError, offset: int) -> object:
    if isinstance(answer, OcrsvcError):
        return pack_failure(answer)
    # All processes share the monotonic clock, so these times are valid in the worker.
    times = answer.times and [answer.times.began_s, answer.times.found_s, answer.times.ended_s]
    row: dict[str, object] = {"page": pack_page(answer), "times": times}
    if not isinstance(answer, DecodedPage):
        return row
    image = None if answer.image is None else [answer.image.format, offset, *answer.image.pixels.shape]
    return row | {"decode_s": answer.decode_s, "image": image}


def unpack_answers(place: Any, tasks: Sequence[Task], area: SharedArea) -> list[Page | OcrsvcError]:
    """Unpack what `pack_answers` wrote, one answer per task. Raises InvalidData."""
    match place:
        case [offset, size]:
            rows = _unpack_json(_copied(area, offset, (size,)).tobytes())
            if isinstance(rows, list) and len(rows) == len(tasks):
                return [_unpack_answer(row, task, area) for row, task in zip(rows, tasks, strict=True)]
    raise InvalidData(f"not {len(tasks)} answers")


def _unpack_answer(row: Any, task: Task, area: SharedArea) -> Page | OcrsvcError:
    if isinstance(row, dict) and "code" in row:
        return unpack_failure(row)
    match row:
        case {"page": packed, "times": None}:
            page = unpack_page(packed)
        case {"page": packed, "times": [float(began_s), float(found_s), float(ended_s)]} if (
            0.0 <= began_s <= found_s <= ended_s < math.inf
        ):
            page = replace(unpack_page(packed), times=EngineTimes(began_s, found_s, ended_s))
        case _:
            raise InvalidData("not a page, or its times are out of order")
    if isinstance(task, ReadTask):
        return page
    match row:
        case {"decode_s": float(decode_s), "image": None} if task.options is not None:
            image = None
        # The shape has two numbers for gray images, three for colour.
        case {"decode_s": float(decode_s), "image": [str(kind), offset, *shape]} if (
            len(shape) in (2, 3) and shape[2:] in ([], [3]) and 0 not in shape
        ):
            image = Image(_copied(area, offset, tuple(shape)), kind)
        case _:
            raise InvalidData("not the page of a file")
    if not 0.0 <= decode_s < math.inf:
        raise InvalidData("an invalid decoding time")
    return DecodedPage.of(page, decode_s, image)


def _copied(area: SharedArea, offset: Any, shape: tuple[Any, ...]) -> Pixels:
    """Copy bytes from an offset that the child sent. Raises InvalidData if they are outside the area."""
    if not area.holds(offset, shape):
        raise InvalidData("an answer or image outside the shared area")
    return np.array(area.get(offset, shape))


def unpack_message(data: bytes) -> dict[str, Any]:
    """Unpack a message from a child or the fork server. Raises InvalidData."""
    message = _unpack_json(data)
    if not isinstance(message, dict):
        raise InvalidData("a message that is not an object")
    return message


def _unpack_json(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except ValueError as error:
        raise InvalidData("not JSON") from error


def unpack_ready(row: Any) -> Ready:
    """Unpack a Ready that was sent as JSON. Raises InvalidData."""
    try:
        return Ready(**{**row, "info": EngineInfo(**row["info"]), "traits": EngineTraits(**row["traits"])})
    except (TypeError, KeyError) as error:
        raise InvalidData("an invalid first message") from error


def pack_failure(error: Exception) -> dict[str, str]:
    """Pack an engine's error of any class as code and text."""
    if not isinstance(error, OcrsvcError):
        error = EngineFailed(
            f"The engine failed on this image with {type(error).__name__}: {error}.",
            "If other images succeed, this one triggers a bug in the engine: please report it with the image.",
        )
    return {"code": error.code, "detail": error.detail[:_TEXT_CHARACTERS], "remedy": error.remedy[:_TEXT_CHARACTERS]}


def unpack_failure(row: Any) -> OcrsvcError:
    """Unpack an error into the class with its code. Raises InvalidData."""
    match row:
        case {"code": str(code), "detail": str(detail), "remedy": str(remedy)}:
            return next((kind for kind in _kinds(OcrsvcError) if kind.code == code), EngineFailed)(detail, remedy)
    raise InvalidData("not an error")


def _kinds(base: type[OcrsvcError]) -> Iterator[type[OcrsvcError]]:
    for kind in base.__subclasses__():
        if "code" in vars(kind):
            yield kind
        yield from _kinds(kind)
