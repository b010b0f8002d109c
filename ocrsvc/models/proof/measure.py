"""The program that opens one version of a model and reads the reference pages: a process of its own, one thread.

    python -m ocrsvc.models.proof.measure PARENT MEMORY RESULT

Its standard input is a socket, on which one message says what is to be measured. RESULT is the number of an open file
that takes the outcome. Whatever the model does to this process, it does to no other.
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
from ocrsvc.engines.model.version import ModelVersion, VersionName
from ocrsvc.errors import BadModel, OcrsvcError
from ocrsvc.models.proof.prover import FailureKind, Judgement, Measurement, PageMeasurement, pack
from ocrsvc.models.proof.reference_pages import ReferencePage, find_reference_pages
from ocrsvc.settings.settings import Settings, settings_class
from ocrsvc.system.allocator import limit_arenas, release_free_memory
from ocrsvc.system.memory import forget_peak_rss, read_peak_rss_bytes, read_private_bytes, read_rss_bytes
from ocrsvc.system.sandbox import end_with_parent, forbid_core_dumps, raise_oom_score
from ocrsvc.system.thread_plan import ThreadPlan

if TYPE_CHECKING:
    # They need numpy, whose memory is not to be taken before the limit holds.
    from ocrsvc.engines.contract import Handle
    from ocrsvc.results import Image, Page

_MESSAGE_BYTES: Final = 1 << 17
_CONNECTION: Final = 0
_MOST_TEXT: Final = 1 << 16
_MOST_REASON: Final = 400
_MOST_ROUNDS: Final = 5
_TIMING_S: Final = 2.0


class Refusal(Exception):
    """Ends a measurement, by what is wrong with the version."""

    def __init__(self, kind: FailureKind, reason: str) -> None:
        super().__init__(reason)
        self.found = Judgement(kind, reason)


def measure(
    settings: Settings, plan: ThreadPlan, wanted: VersionName, pages_of: VersionName, key: ModelKey | None = None
) -> Measurement:
    """Verify a version, open it, and read the pages that are meant for another, or for itself. Raises Refusal."""
    from ocrsvc.engines.open_engine import open_engine_in_process

    try:
        version, owner = wanted.find(settings.models, key), pages_of.find(settings.models, key)
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
        # What an engine tries and makes when it first opens a model, it does not do again.
        release_free_memory()
        forget_peak_rss()
        read = tuple(_read(page, image, handle) for page, image in pages)
        return Measurement(str(version), engine.describe().device, _peak_private_bytes(), read)


def _verify(version: ModelVersion) -> None:
    """Compare every file with the manifest, the large ones without holding them. Raises Refusal."""
    for file, digest in version.digests.items():
        try:
            found = digest_of(version.folder / file)
        except OSError as error:
            raise Refusal("files", f"{file} cannot be read: {error.strerror}.") from error
        if found != digest:
            raise Refusal("files", f"{file} is not the file of its manifest: copied in part, or changed since.")


def _decode(settings: Settings, page: ReferencePage) -> Image:
    from ocrsvc.imaging.codecs.decode import PixelLimits, decode

    with _refusing("reference", f"The reference page {page.name} cannot be read: "):
        return decode(page.read(), PixelLimits(settings.max_pixels), gray=False)


def _read(page: ReferencePage, image: Image, handle: Handle) -> PageMeasurement:
    """One page, several times unless it takes long: the quickest says most about the version. Raises Refusal."""
    text = _text_of(_read_once(page, image, handle), page)
    times_s = [(math.inf, math.inf)]
    end_s = time.monotonic() + _TIMING_S
    for _ in range(_MOST_ROUNDS):
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        _read_once(page, image, handle)
        times_s.append((time.process_time() - began_cpu_s, time.perf_counter() - began_s))
        if time.monotonic() >= end_s:
            break
    cpu_s, wall_s = (min(column) for column in zip(*times_s, strict=True))
    return PageMeasurement(page.name, page.wanted, text, cpu_s, wall_s)


def _read_once(page: ReferencePage, image: Image, handle: Handle) -> Page:
    """Raises Refusal."""
    from ocrsvc.results import ReadTask

    with _refusing("failed", f"It fails on the reference page {page.name}: "):
        [answer] = handle.read([ReadTask(image)])
        if isinstance(answer, OcrsvcError):
            raise answer
    return answer


def _text_of(answer: Page, page: ReferencePage) -> str:
    """Raises Refusal for an answer that no page can have."""
    for line in answer.lines:
        numbers = (line.confidence, *(number for corner in line.box for number in corner))
        if not all(map(math.isfinite, numbers)) or not 0 <= line.confidence <= 1:
            raise Refusal("nonsense", f"It answers the reference page {page.name} with numbers that are none.")
    return "\n".join(line.text for line in answer.lines)[:_MOST_TEXT]


@contextmanager
def _refusing(kind: FailureKind, beginning: str = "") -> Iterator[None]:
    """Make a Refusal of whatever a model's code raises."""
    try:
        yield
    except Refusal:
        raise
    except MemoryError as error:
        raise Refusal("memory", f"It takes more memory than it was given: {error}") from error
    except Exception as error:
        text = str(error) if isinstance(error, OcrsvcError) else f"{type(error).__name__}: {error}"
        raise Refusal(kind, beginning + (text if len(text) <= _MOST_REASON else f"{text[:_MOST_REASON]}…")) from error


def _peak_private_bytes() -> int:
    """The most memory of its own that this process had while it read: its peak, without files that are mapped."""
    private_bytes = read_private_bytes()
    return max(private_bytes, read_peak_rss_bytes() - (read_rss_bytes() - private_bytes))


def _take_limits(memory_bytes: int) -> None:
    """Limit this process's memory, unless that is 0, and keep what it holds out of core dumps."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def main() -> None:
    """Measure what the message says, write the outcome, and end."""
    parent, memory_bytes, result = map(int, sys.argv[1:])
    end_with_parent(parent)
    raise_oom_score()
    faulthandler.enable()
    message = orjson.loads(os.read(_CONNECTION, _MESSAGE_BYTES) or b"null")
    if message is None:
        return
    _take_limits(memory_bytes)
    limit_arenas()
    key = None if message["model_key"] is None else parse_key(message.pop("model_key"))
    if key is not None:
        forbid_core_dumps()
    settings, plan = settings_class().model_validate(message["settings"]), ThreadPlan(**message["plan"])
    names = VersionName(**message["version"]), VersionName(**message["pages_of"])
    try:
        outcome: Measurement | Judgement = measure(settings, plan, *names, key)
    except Refusal as refusal:
        outcome = refusal.found
    os.pwrite(result, pack(outcome), 0)


if __name__ == "__main__":
    main()
    # No destructors of native libraries: what is closed was closed by the engine.
    os._exit(0)
