"""The main function of a child process: opens the engine and one handle, and serves one thread of a worker.

Runs in the child, in its only thread.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
from dataclasses import replace
from typing import Final

import orjson

from ocrsvc.engines.contract import Engine
from ocrsvc.engines.isolated.decoding import FileReader
from ocrsvc.engines.isolated.gpu_memory import GpuMemory
from ocrsvc.engines.isolated.messages import (
    MESSAGE_BYTES,
    Ready,
    pack_answers,
    pack_failure,
    unpack_tasks,
)
from ocrsvc.engines.isolated.model_name import ModelName
from ocrsvc.engines.isolated.shared_area import SharedArea
from ocrsvc.engines.model.encryption import ModelKey
from ocrsvc.engines.opening import open_engine_in_process
from ocrsvc.errors import EngineFailed, OcrsvcError
from ocrsvc.imaging.codecs.decode import PixelLimits
from ocrsvc.settings.settings import Settings
from ocrsvc.system.allocator import give_back
from ocrsvc.system.memory import read_private_bytes
from ocrsvc.system.sandbox.restrict import raise_oom_score
from ocrsvc.system.thread_plan import ThreadPlan

_IDLE_S: Final = 1.0


def serve_worker(
    wire: socket.socket,
    area: SharedArea,
    settings: Settings,
    plan: ThreadPlan,
    model: ModelName | None = None,
    key: ModelKey | None = None,
) -> None:
    """Open the engine, with that model, say so, read what comes; returns when the worker has let go.

    An encrypted model is decrypted with `key`.
    """
    faulthandler.enable()
    raise_oom_score()
    # Ends an opening that takes too long also in native code, and while no thread of the worker waits for it.
    signal.setitimer(signal.ITIMER_REAL, settings.boot_limit_s)
    gpu_memory = GpuMemory(settings)
    try:
        # One page at a time is read here, and whether other children are idle is not known: nothing is borrowed.
        opened = None if model is None else model.open(settings.models, key)
        engine = open_engine_in_process(settings, replace(plan, engine_threads=1), opened)
        handle = engine.open_handle()
        handle.warm_up()
    except Exception as failure:  # noqa: BLE001  the worker raises it in the thread that waits
        _send(wire, {"failed": pack_failure(_open_error(failure))})
        return
    signal.setitimer(signal.ITIMER_REAL, 0)
    _send(wire, {"ready": _ready(engine, gpu_memory)})
    limits = PixelLimits(settings.max_pixels, settings.format_max_pixels)
    reader = FileReader(handle, limits, engine.traits.wants_gray)
    while message := _receive(wire):
        _send(wire, _answer(reader, gpu_memory, message, area))
    # Nobody waits for it; the fork server ends what takes too long.
    handle.close()
    engine.close()


def _ready(engine: Engine, gpu_memory: GpuMemory) -> Ready:
    return Ready(os.getpid(), engine.describe(), engine.traits, read_private_bytes(), *gpu_memory.read())


def _answer(reader: FileReader, gpu_memory: GpuMemory, message: bytes, area: SharedArea) -> dict[str, object]:
    area.has_begun = True
    try:
        place = pack_answers(reader.read(unpack_tasks(message, area)), area)
    except Exception as failure:  # noqa: BLE001  the batch loop: whatever an engine throws, it goes on
        return {"failed": pack_failure(failure)}
    return {"answer": place, "private_bytes": read_private_bytes(), "gpu_bytes": gpu_memory.read()[0]}


def _open_error(failure: Exception) -> OcrsvcError:
    """What the engine itself says it lacks stays lacking; what went wrong otherwise may go well the next time."""
    if isinstance(failure, OcrsvcError):
        return failure
    return EngineFailed(f"The engine cannot be opened: {type(failure).__name__}: {failure}.")


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
