"""The program that opens a model version and reads the reference pages, in its own process with one thread.

    python -m ocrsvc.models.proof.measure PARENT MEMORY RESULT

Its standard input is a socket with one message, the task. It writes the outcome to the open file descriptor RESULT. A
faulty model harms only this process.
"""

from __future__ import annotations

import faulthandler
import math
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import orjson

from ocrsvc.engines.model.encryption import ModelKey, parse_key
from ocrsvc.engines.model.files import digest_of
from ocrsvc.engines.model.version import ModelVersion, Named, find_version
from ocrsvc.errors import BadModel, OcrsvcError
from ocrsvc.models.proof.prover import Measurement, PageMeasurement
from ocrsvc.models.proof.reference_pages import ReferencePage, find_reference_pages
from ocrsvc.models.state import FailureKind, Judgement
from ocrsvc.settings.settings import Settings, settings_class
from ocrsvc.system.allocator import limit_arenas, release_free_memory
from ocrsvc.system.memory import forget_peak_rss, read_peak_rss_bytes, read_private_bytes, read_rss_bytes
from ocrsvc.system.sandbox import end_with_parent, forbid_core_dumps, raise_oom_score
from ocrsvc.system.thread_plan import ThreadPlan

if TYPE_CHECKING:
    # Functions import engines only after main() has set the memory limit: numpy allocates memory when it is imported.
    from ocrsvc.engines.contract import Handle
    from ocrsvc.results import Image, Page

_MESSAGE_BYTES: Final = 1 << 17
_CONNECTION: Final = 0
_MAX_TEXT: Final = 1 << 16
_MAX_REASON: Final = 400
_MAX_ROUNDS: Final = 5
_TIMING_S: Final = 2.0


class Refusal(Exception):
    """Ends a measurement because the version is faulty."""

    def __init__(self, kind: FailureKind, reason: str) -> None:
        super().__init__(reason)
        self.judgement = Judgement(kind, reason)


def measure(
    settings: Settings, plan: ThreadPlan, wanted: Named, pages_of: Named, key: ModelKey | None = None
) -> Measurement:
    """Open the version `wanted`, and read with it the reference pages of the version `pages_of`. Raises Refusal."""
    from ocrsvc.engines.open_engine import open_engine_in_process

    try:
        version, owner = (find_version(settings.models, *named, key) for named in (wanted, pages_of))
    except BadModel as error:
        raise Refusal("gone", str(error)) from error
    _verify(version)
    with _refusing("reference"):
        pages = [(page, _decode(settings, page)) for page in find_reference_pages(settings.models, owner)]
    with _refusing("open", "It does not open: "):
        engine = open_engine_in_process(settings, replace(plan, engine_threads=1), version)
        handle = engine.open_handle()
        handle.warm_up()
    with closing(engine), closing(handle):
        # Free memory that the engine needed only to open the model, so that it is not measured.
        release_free_memory()
        forget_peak_rss()
        read = tuple(_read(page, image, handle) for page, image in pages)
        return Measurement(str(version), engine.describe().device, _peak_private_bytes(), read)


def _verify(version: ModelVersion) -> None:
    """Compare all files with the manifest, reading them in chunks. Raises Refusal."""
    for file, digest in version.digests.items():
        try:
            actual = digest_of(version.folder / file)
        except OSError as error:
            raise Refusal("files", f"{file} cannot be read: {error.strerror}.") from error
        if actual != digest:
            raise Refusal("files", f"{file} does not match the manifest: it was copied in part, or changed.")


def _decode(settings: Settings, page: ReferencePage) -> Image:
    from ocrsvc.imaging.codecs.decode import PixelLimits, decode

    with _refusing("reference", f"The reference page {page.name} cannot be read: "):
        return decode(page.read(), PixelLimits(settings.max_pixels), gray=False)


def _read(page: ReferencePage, image: Image, handle: Handle) -> PageMeasurement:
    """Read a page several times, unless it takes long, and keep the shortest time. Raises Refusal."""
    text = _text_of(_read_once(page, image, handle), page)
    times_s = [(math.inf, math.inf)]
    end_s = time.monotonic() + _TIMING_S
    for _ in range(_MAX_ROUNDS):
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        _read_once(page, image, handle)
        times_s.append((time.process_time() - began_cpu_s, time.perf_counter() - began_s))
        if time.monotonic() >= end_s:
            break
    cpu_s, wall_s = (min(column) for column in zip(*times_s, strict=True))
    return PageMeasurement(page.name, page.expected, text, cpu_s, wall_s)


def _read_once(page: ReferencePage, image: Image, handle: Handle) -> Page:
    """Let the model read a reference page once. Raises Refusal if it fails."""
    from ocrsvc.results import ReadTask

    with _refusing("failed", f"It fails on the reference page {page.name}: "):
        [answer] = handle.read([ReadTask(image)])
        if isinstance(answer, OcrsvcError):
            raise answer
    return answer


def _text_of(answer: Page, page: ReferencePage) -> str:
    """The text of a page, lines joined by newlines. Raises Refusal for invalid confidences or coordinates."""
    for line in answer.lines:
        numbers = (line.confidence, *(number for corner in line.box for number in corner))
        if not all(map(math.isfinite, numbers)) or not 0 <= line.confidence <= 1:
            raise Refusal("nonsense", f"It returns invalid numbers for the reference page {page.name}.")
    return "\n".join(line.text for line in answer.lines)[:_MAX_TEXT]


@contextmanager
def _refusing(kind: FailureKind, beginning: str = "") -> Iterator[None]:
    """Convert any error of a model's code to Refusal."""
    try:
        yield
    except Refusal:
        raise
    except MemoryError as error:
        raise Refusal("memory", f"It exceeds its memory limit: {error}") from error
    except Exception as error:
        text = str(error) if isinstance(error, OcrsvcError) else f"{type(error).__name__}: {error}"
        raise Refusal(kind, beginning + (text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}…")) from error


def _peak_private_bytes() -> int:
    """Peak private memory of this process while it read: peak RSS without mapped files."""
    private_bytes = read_private_bytes()
    return max(private_bytes, read_peak_rss_bytes() - (read_rss_bytes() - private_bytes))


def _set_limits(memory_bytes: int) -> None:
    """Forbid core dumps, and limit this process's memory unless `memory_bytes` is 0."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def main() -> None:
    """Run the measurement that the message on standard input requests, and write the outcome to RESULT."""
    parent, memory_bytes, result = map(int, sys.argv[1:])
    end_with_parent(parent)
    raise_oom_score()
    faulthandler.enable()
    message = orjson.loads(os.read(_CONNECTION, _MESSAGE_BYTES) or b"null")
    if message is None:
        return
    _set_limits(memory_bytes)
    limit_arenas()
    key = None if message["model_key"] is None else parse_key(message.pop("model_key"))
    if key is not None:
        forbid_core_dumps()
    settings, plan = settings_class().model_validate(message["settings"]), ThreadPlan(**message["plan"])
    try:
        outcome: Measurement | Judgement = measure(settings, plan, message["version"], message["pages_of"], key)
    except Refusal as refusal:
        outcome = refusal.judgement
    os.pwrite(result, orjson.dumps(outcome), 0)


if __name__ == "__main__":
    main()
    # Skips destructors of native libraries; the engine has closed its resources.
    os._exit(0)
