"""Judges a version that has just taken traffic by that traffic, against the version before it, in this worker.

The rule: the first `pages` pages that a worker reads with a version are its trial. They are held against the last
`pages` pages of the version that read before it. After every ten pages, from 30 pages of each on, the trial ends badly
when

- the share of pages on which the engine fails is higher by more than the band for errors and three standard errors of
  the difference of two shares; or
- the mean confidence of the pages that have text is lower by more than the band for confidence and three standard
  errors of the difference of two means.

The three standard errors keep chance out, and the band says which difference matters. After its trial a version is what
the next one is held against.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from ocrsvc.errors import EngineFailed, ImageCrashesEngine, OcrsvcError
from ocrsvc.model_repository.version import ModelVersion
from ocrsvc.records import Page
from ocrsvc.settings.groups.model_swap import FEWEST_LIVE_PAGES
from ocrsvc.settings.settings import Settings

STANDARD_ERRORS: Final = 3.0
_EVERY_PAGES: Final = 10
_MOST_MODELS: Final = 64


@dataclass(frozen=True, slots=True)
class Band:
    """How far a version may be from the one before it.

    Attributes:
        pages: Of a trial; 0 is no trial.
        errors: Of the share of pages that fail.
        confidence: Of the mean confidence.
    """

    pages: int
    errors: float
    confidence: float


@dataclass(slots=True)
class LivePages:
    """The last pages of one version.

    Attributes:
        version: Which.
        count: Pages that it has read here altogether.
        failed: Whether each of the last pages failed.
        confidences: The mean confidence of each of the last pages that have text.
    """

    version: ModelVersion
    most: int
    count: int = 0
    failed: deque[bool] = field(init=False)
    confidences: deque[float] = field(init=False)

    def __post_init__(self) -> None:
        self.failed, self.confidences = deque(maxlen=self.most), deque(maxlen=self.most)

    def add(self, confidence: float | None, *, is_failed: bool) -> None:
        """One more page; `confidence` is None for one without text, or one that failed."""
        self.count += 1
        self.failed.append(is_failed)
        if confidence is not None:
            self.confidences.append(confidence)


class LiveChecks:
    """The trials of one worker. Any thread may call; a call takes microseconds.

    Args:
        band: How far a version may be from the one before.
    """

    def __init__(self, band: Band) -> None:
        self._band = band
        self._lock = threading.Lock()
        self._current: dict[str, LivePages] = {}
        self._before: dict[str, LivePages] = {}
        self._failures: list[tuple[ModelVersion, str]] = []

    def begin_trial(self, version: ModelVersion, before: ModelVersion) -> None:
        """A version takes the traffic of another; one that goes back to an older one is not tried."""
        with self._lock:
            pages = self._current.pop(version.name, None)
            self._before.pop(version.name, None)
            if pages is not None and pages.version == before and version.number >= before.number:
                self._before[version.name] = pages
            if len(self._current) < _MOST_MODELS:
                self._current[version.name] = LivePages(version, self._band.pages)

    def add_page(self, version: ModelVersion, confidence: float | None, *, is_failed: bool) -> None:
        """A page was read by a version, or its engine failed on it."""
        if not self._band.pages:
            return
        with self._lock:
            pages = self._current.get(version.name)
            if pages is None and len(self._current) < _MOST_MODELS:
                pages = self._current[version.name] = LivePages(version, self._band.pages)
            if pages is None or pages.version != version:
                return
            pages.add(confidence, is_failed=is_failed)
            self._judge(pages)

    def note_page(self, version: ModelVersion, page: Page) -> None:
        """A page was read by a version."""
        confidences = [line.confidence for line in page.lines]
        mean = math.fsum(confidences) / len(confidences) if confidences else None
        is_number = mean is None or math.isfinite(mean)
        self.add_page(version, mean if is_number else None, is_failed=not is_number)

    def note_failure(self, version: ModelVersion, error: OcrsvcError) -> None:
        """A page was not read; only what the engine did wrong counts."""
        if isinstance(error, EngineFailed | ImageCrashesEngine):
            self.add_page(version, None, is_failed=True)

    def take_failures(self) -> list[tuple[ModelVersion, str]]:
        """The versions whose trial has ended badly since the last call, with the reason."""
        with self._lock:
            found, self._failures = self._failures, []
            return found

    def _judge(self, pages: LivePages) -> None:
        before = self._before.get(pages.version.name)
        if before is None:
            return
        is_over = pages.count >= self._band.pages
        reason = fault(pages, before, self._band) if is_over or pages.count % _EVERY_PAGES == 0 else ""
        if reason:
            self._failures.append((pages.version, reason))
        if reason or is_over:
            # The trial is over.
            del self._before[pages.version.name]


def make_live_checks(settings: Settings) -> LiveChecks:
    """The trials of a worker, with the bands of the settings."""
    band = Band(settings.models_live_pages, settings.models_live_errors, settings.models_live_confidence)
    return LiveChecks(band)


def fault(pages: LivePages, before: LivePages, band: Band) -> str:
    """Why a version is out of the band of the one before it; "" where it is not, or too few pages say anything."""
    if min(len(pages.failed), len(before.failed)) >= FEWEST_LIVE_PAGES:
        new, old = _share(pages.failed), _share(before.failed)
        if new - old > band.errors + STANDARD_ERRORS * _error_of_shares(pages.failed, before.failed):
            return f"It fails on {new:.1%} of {len(pages.failed)} pages, and {before.version} on {old:.1%}."
    if min(len(pages.confidences), len(before.confidences)) >= FEWEST_LIVE_PAGES:
        new, old = _mean(pages.confidences), _mean(before.confidences)
        if old - new > band.confidence + STANDARD_ERRORS * _error_of_means(pages.confidences, before.confidences):
            return f"Its mean confidence is {new:.3f} on {len(pages.confidences)} pages, {before.version}'s {old:.3f}."
    return ""


def _share(flags: deque[bool]) -> float:
    return sum(flags) / len(flags)


def _mean(values: deque[float]) -> float:
    return math.fsum(values) / len(values)


def _error_of_shares(one: deque[bool], other: deque[bool]) -> float:
    """The standard error of the difference of two shares, from the share in both together."""
    pooled = (sum(one) + sum(other)) / (len(one) + len(other))
    return math.sqrt(pooled * (1 - pooled) * (1 / len(one) + 1 / len(other)))


def _error_of_means(one: deque[float], other: deque[float]) -> float:
    """The standard error of the difference of two means."""
    return math.sqrt(_variance(one) / len(one) + _variance(other) / len(other))


def _variance(values: deque[float]) -> float:
    mean = _mean(values)
    return math.fsum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)
