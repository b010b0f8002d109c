"""What a reading is: a page, which engine read it, and how long that took. All frozen; durations are seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ocrsvc.records import Page


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Which engine answered: its name, model, model version, device, precision and execution provider."""

    name: str
    model: str
    version: str
    device: str
    precision: str
    provider: str


@dataclass(frozen=True, slots=True)
class Timing:
    """Where one page's time went, in seconds: decoding, waiting in the queue, in the engine, and all together."""

    decode_s: float
    queue_s: float
    engine_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Reading:
    """The answer to one image: its page, who read it, how long that took, and whether it came from the cache."""

    page: Page
    engine: EngineInfo
    timing: Timing
    from_cache: bool = False


def total_of(readings: Sequence[Reading], total_s: float | None = None) -> Timing:
    """The times of several pages added up; `total_s` instead of the sum is how long they took side by side."""
    timings = [reading.timing for reading in readings]
    return Timing(
        decode_s=sum(timing.decode_s for timing in timings),
        queue_s=sum(timing.queue_s for timing in timings),
        engine_s=sum(timing.engine_s for timing in timings),
        total_s=sum(timing.total_s for timing in timings) if total_s is None else total_s,
    )
