"""The main function of a child process: opens the engine and one handle, and serves one thread of a worker.

Image files are decoded here, beside the engine, so that a decoder's crash costs that image only. Runs in the child, in
its only thread.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import orjson

from ocrsvc.engines.contract import Handle
from ocrsvc.engines.isolated.messages import (
    MESSAGE_BYTES,
    Ready,
    SharedArea,
    pack_answers,
    pack_failure,
    unpack_tasks,
)
from ocrsvc.engines.model.encryption import ModelKey
from ocrsvc.engines.model.version import VersionName
from ocrsvc.engines.open_engine import open_engine_in_process
from ocrsvc.errors import EngineFailed, OcrsvcError
from ocrsvc.imaging.codecs.decode import PixelLimits, decode_pixels, open_encoded_image
from ocrsvc.imaging.engine_input import EngineInput
from ocrsvc.records import DecodedPage, FileTask, Image, Page, ReadOptions, ReadTask, Task
from ocrsvc.settings.settings import Settings
from ocrsvc.system.allocator import give_back
from ocrsvc.system.gpu import Siblings, open_gpu_memory_reader
from ocrsvc.system.memory import read_private_bytes
from ocrsvc.system.sandbox import raise_oom_score
from ocrsvc.system.thread_plan import ThreadPlan

_EVERY_S: Final = 1.0


class GpuMemory:
    """How much GPU memory this child holds, where NVML reports it. Make it before the engine is loaded."""

    def __init__(self, settings: Settings) -> None:
        on_cpu = "cpu" in (settings.device, settings.provider)
        log = logging.getLogger("ocrsvc.isolation.gpu")
        # The worker, which reads the same GPU, logs it when the GPU cannot be read.
        log.disabled = True
        self._reader = None if on_cpu else open_gpu_memory_reader(log, Siblings())
        self._again_s = 0.0
        self._last_reading = (0, 0)

    def read(self) -> tuple[int, int]:
        """Bytes that this process holds, and the GPU's; zeros where NVML does not report them. A second old at most."""
        if self._reader is None or time.monotonic() < self._again_s:
            return self._last_reading
        self._again_s = time.monotonic() + _EVERY_S
        reading = self._reader.read(Siblings())
        is_listed = reading is not None and self._reader.is_listed
        self._last_reading = (reading.own_bytes, reading.total_bytes) if reading and is_listed else (0, 0)
        return self._last_reading


@dataclass(frozen=True, slots=True)
class FileReader:
    """An engine's handle that takes files as well."""

    handle: Handle
    limits: PixelLimits
    gray: bool

    def read(self, tasks: Sequence[Task]) -> list[Page | OcrsvcError]:
        """One answer for each task; a file at a time, so that no more than one image is in memory."""
        return [answer for task in tasks for answer in self._read_one(task)]

    def _read_one(self, task: Task) -> list[Page | OcrsvcError]:
        if not isinstance(task, FileTask):
            return self.handle.read([task])
        began = time.perf_counter()
        try:
            task.check()
            image = decode_pixels(
                open_encoded_image(task.data, self.limits), gray=self.gray and task.options is not None
            )
            task.check()
        except OcrsvcError as error:
            return [error]
        decode_s = time.perf_counter() - began
        if task.options is None:
            return [DecodedPage.of(Page(image.width, image.height, 0, ()), decode_s, image)]
        return [self._read_image(image, task, task.options, decode_s)]

    def _read_image(self, image: Image, task: FileTask, options: ReadOptions, decode_s: float) -> Page | OcrsvcError:
        view = EngineInput(options)
        try:
            seen = view.apply(image)
        except OcrsvcError as error:
            return error
        [page] = self.handle.read([ReadTask(seen, view.left, task.deadline, task.check)])
        return page if isinstance(page, OcrsvcError) else DecodedPage.of(view.restore(page), decode_s)


_IDLE_S: Final = 1.0


def serve_worker(
    wire: socket.socket,
    area: SharedArea,
    settings: Settings,
    plan: ThreadPlan,
    model: VersionName | None = None,
    key: ModelKey | None = None,
) -> None:
    """Open the engine, with that model, say so, and read what comes; returns when the worker has let go."""
    faulthandler.enable()
    raise_oom_score()
    # Ends an opening that takes too long also in native code, and while no thread of the worker waits for it.
    signal.setitimer(signal.ITIMER_REAL, settings.boot_limit_s)
    gpu_memory = GpuMemory(settings)
    try:
        # One page at a time is read here, and whether other children are idle is not known: nothing is borrowed.
        opened = None if model is None else model.find(settings.models, key)
        engine = open_engine_in_process(settings, replace(plan, engine_threads=1), opened)
        handle = engine.open_handle()
        handle.warm_up()
    except Exception as failure:  # noqa: BLE001  the worker raises it in the thread that waits
        # What the engine itself says it lacks stays lacking; what went wrong otherwise may go well the next time.
        if not isinstance(failure, OcrsvcError):
            failure = EngineFailed(f"The engine cannot be opened: {type(failure).__name__}: {failure}.")
        _send(wire, {"failed": pack_failure(failure)})
        return
    signal.setitimer(signal.ITIMER_REAL, 0)
    ready = Ready(os.getpid(), engine.describe(), engine.traits, read_private_bytes(), *gpu_memory.read())
    _send(wire, {"ready": ready})
    limits = PixelLimits(settings.max_pixels, settings.format_max_pixels)
    reader = FileReader(handle, limits, engine.traits.wants_gray)
    while message := _receive(wire):
        _send(wire, _answer(reader, gpu_memory, message, area))
    # Nobody waits for it; the fork server ends what takes too long.
    handle.close()
    engine.close()


def _answer(reader: FileReader, gpu_memory: GpuMemory, message: bytes, area: SharedArea) -> dict[str, object]:
    area.has_begun = True
    try:
        place = pack_answers(reader.read(unpack_tasks(message, area)), area)
    except Exception as failure:  # noqa: BLE001  the batch loop: whatever an engine throws, it goes on
        return {"failed": pack_failure(failure)}
    return {"answer": place, "private_bytes": read_private_bytes(), "gpu_bytes": gpu_memory.read()[0]}


def _receive(wire: socket.socket) -> bytes:
    """The next request; nothing when the worker has closed its end. Idle memory goes back meanwhile."""
    for limit_s in (_IDLE_S, None):
        wire.settimeout(limit_s)
        try:
            return wire.recv(MESSAGE_BYTES)
        except TimeoutError:
            give_back()
        except OSError:
            break
    return b""


def _send(wire: socket.socket, message: dict[str, object]) -> None:
    with contextlib.suppress(OSError):
        wire.send(orjson.dumps(message))
