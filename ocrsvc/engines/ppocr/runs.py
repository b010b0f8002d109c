"""How do line crops become decisions: one run for each on a CPU, many lines of any pages in one run on a GPU?

On a CPU batching buys nothing and padding costs; a GPU is idle otherwise. Either way a line's decisions depend on that
line alone: in a batch it is padded to the bucket that its own width falls into, and only its own steps are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.ppocr.crew import Crew
from ocrsvc.engines.ppocr.ctc import BLANK
from ocrsvc.engines.ppocr.providers import Profile
from ocrsvc.engines.ppocr.session import Runner
from ocrsvc.engines.ppocr.tensors import to_tensor
from ocrsvc.records import Pixels
from ocrsvc.serving.batcher import Batcher, Limits

R = TypeVar("R")

BUCKETS_PX: Final = (96, 160, 240, 320, 480, 640, 960, 1440, 2160, 3200)
"""Widths to which lines are padded in batches; few, because a GPU searches for kernels at every new shape."""

PROFILES_PX: Final = ((96, 320), (480, 960), (1440, 3200))
"""The narrowest and the widest bucket of each TensorRT engine. Its memory is that of the most lines of the narrowest,
all as wide as the widest: twice a batch's pixels here, where one engine for all would take twenty times as many."""

# The names of the graph's outputs; surgery.py makes them, and is not imported because it needs the package onnx.
DECIDED: Final = ("best", "sure")
LOGITS: Final = "logits"


@dataclass(frozen=True, slots=True)
class Decided:
    """What the model decided on one line of T steps.

    Attributes:
        best: (T,) int64, the likeliest class of each step.
        sure: (N,) float32, the probability of each character at its first step.
        logits: (T, C) float32 where they were asked for.
    """

    best: NDArray[np.int64]
    sure: NDArray[np.float32]
    logits: NDArray[np.float32] | None


class Runs(Protocol):
    """Runs the recognition model over crops."""

    def map(self, understand: Callable[[Decided], R], crops: Sequence[Pixels], *, logits: bool = False) -> list[R]:
        """What `understand` makes of each (48, w[, 3]) uint8 crop's decisions, in the same order."""
        ...

    def close(self) -> None:
        """End threads of its own, if there are any."""


class RunsApart:
    """One run for each line, in the calling thread and in those that a crew lends."""

    def __init__(self, session: Runner, crew: Crew) -> None:
        self._session = session
        self._crew = crew

    def map(self, understand: Callable[[Decided], R], crops: Sequence[Pixels], *, logits: bool = False) -> list[R]:
        """See Runs."""
        return self._crew.map(lambda crop: understand(self._run(crop, logits=logits)), crops)

    def close(self) -> None:
        """Nothing is held."""

    def _run(self, crop: Pixels, *, logits: bool) -> Decided:
        found = self._session.run(to_tensor(crop), (*DECIDED, LOGITS) if logits else DECIDED)
        return Decided(found[0], found[1], found[2] if logits else None)


@dataclass(frozen=True, slots=True)
class _Line:
    crop: Pixels
    understand: Callable[[Decided], Any]


class RunsTogether:
    """Lines of one width bucket, of any pages, in one run.

    Args:
        session: Of the batched graph.
        limits: Of a batch; the cost of a line is its padded pixels.
        runners: Batches under way at once.
    """

    def __init__(self, session: Runner, limits: Limits, runners: int = 1) -> None:
        self._session = session
        self._limits = limits
        self._batcher: Batcher[tuple[int, bool], _Line, Any] = Batcher(self._run, limits, runners=runners)

    def map(self, understand: Callable[[Decided], R], crops: Sequence[Pixels], *, logits: bool = False) -> list[R]:
        """See Runs."""
        futures = []
        for crop in crops:
            width = bucket_of(crop.shape[1])
            futures.append(self._batcher.submit((width, logits), _Line(crop, understand), width * crop.shape[0]))
        return [future.result() for future in futures]

    def warm_up(self) -> None:
        """Every bucket, with one line and with as many as a batch takes: a GPU searches for kernels the first time.

        Raises EngineUnavailable, above all when the card has no room for the largest batch.
        """
        for width in BUCKETS_PX:
            for count in sorted({1, most_lines(width, self._limits)}):
                tensor = np.ones((count, 3, 48, width), np.float32)
                for session in self._session.sessions:
                    session.warm_up(tensor)

    def close(self) -> None:
        """Run what is there, and end."""
        self._batcher.close()

    def _run(self, bucket: tuple[int, bool], lines: Sequence[_Line]) -> list[Any]:
        width, logits = bucket
        tensor = np.zeros((len(lines), 3, lines[0].crop.shape[0], width), np.float32)
        for row, line in zip(tensor, lines, strict=True):
            row[:, :, : line.crop.shape[1]] = to_tensor(line.crop)[0]
        found = self._session.run(tensor, (*DECIDED, LOGITS) if logits else DECIDED)
        answers = []
        for number, line in enumerate(lines):
            steps = own_steps(line.crop.shape[1], width, found[0].shape[1])
            best, shares = found[0][number, :steps], found[1][number, :steps]
            rows = found[2][number, :steps] if logits else None
            answers.append(line.understand(Decided(best, shares[beginnings(best)], rows)))
        return answers


def most_lines(width: int, limits: Limits) -> int:
    """Lines of that padded width in one batch at most."""
    return max(1, min(limits.most_items, limits.most_cost // (48 * width)))


def profiles(limits: Limits) -> tuple[Profile, ...]:
    """The shapes of all batches within the limits, for TensorRT."""
    return tuple(
        Profile(
            (1, 3, 48, narrowest),
            (most_lines(widest, limits), 3, 48, widest),
            (most_lines(narrowest, limits), 3, 48, widest),
        )
        for narrowest, widest in PROFILES_PX
    )


def bucket_of(width: int) -> int:
    """The padded width of a line that is `width` pixels wide."""
    return next((bucket for bucket in BUCKETS_PX if bucket >= width), width)


def own_steps(width: int, padded: int, steps: int) -> int:
    """How many of a padded line's steps look at the line itself."""
    return max(1, min(steps, -(-steps * width // padded)))


def beginnings(best: NDArray[np.int64]) -> NDArray[np.intp]:
    """The first step of each run of one class that is not blank; (T,) to (N,)."""
    changed = np.concatenate(([True], best[1:] != best[:-1]))
    return np.flatnonzero(changed & (best != BLANK))
