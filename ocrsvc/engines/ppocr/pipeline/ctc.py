"""CTC decoding: best path, prefix beam search over a batch of lines, and alignment of a text with the steps.

The model's graph chooses the class of each step (see graph/rewrite.py); the best path (A. Graves et al., "Connectionist
Temporal Classification", ICML 2006) collapses repeats and drops blanks. A text that many paths spell may be likelier:
the prefix search of Graves et al., limited to a beam as in A. Hannun et al., "First-Pass Large Vocabulary Continuous
Speech Recognition using Bi-Directional Recurrent DNNs" (2014), without a language model. Each step is pruned to its
likeliest characters and blank. All values are arrays over (line, beam, character); the only loop is over the steps. A
prefix is identified by a hash of its characters, so that two ways to the same prefix are merged.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.line_recognizer import Path
from ocrsvc.results import Check, no_check

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
N = TypeVar("N", bound=np.generic)
BLANK: Final = 0


def best_path(best: NDArray[np.int64], probabilities: NDArray[np.float32], classes: Sequence[str]) -> Path:
    """Collapse repeats in (T,) classes and drop blanks; `probabilities` (N,) are those of the kept characters."""
    begins = np.flatnonzero(np.concatenate(([True], best[1:] != best[:-1])))
    ends = np.append(begins[1:], len(best)) - 1
    not_blank = best[begins] != BLANK
    first, last = begins[not_blank], ends[not_blank]
    characters = [classes[index] for index in best[first].tolist()]
    confidence = float(probabilities.mean()) if characters else 0.0
    return Path(characters, first, last, len(best), confidence, probabilities)


def align(labels: Ints, scores: Floats, blank: Floats) -> Ints:
    """Align `labels` with the steps along the likeliest path: (T,) index of the label at each step, -1 for blank.

    `labels` (L > 0,) contains no blank. `scores` (T, L) are the log probabilities of each label at each step, -inf if
    they were pruned; `blank` (T,) are those of blank. Every label gets at least one step.
    """
    states = np.empty((len(blank), 2 * len(labels) + 1))
    states[:, 0::2], states[:, 1::2] = blank[:, None], scores
    may_skip = np.zeros(states.shape[1], bool)
    may_skip[3::2] = labels[1:] != labels[:-1]
    backpointers = np.zeros(states.shape, np.int8)
    best = np.full(states.shape[1], -np.inf)
    best[:2] = states[0, :2]
    for step in range(1, len(states)):
        ways = np.full((3, len(best)), -np.inf)
        ways[0], ways[1, 1:] = best, best[:-1]
        ways[2, 2:] = np.where(may_skip[2:], best[:-2], -np.inf)
        backpointers[step] = ways.argmax(axis=0)
        best = ways.max(axis=0) + states[step]
    at = len(best) - 1 - int(best[-2] > best[-1])
    path = np.empty(len(states), np.intp)
    for step in range(len(states) - 1, -1, -1):
        path[step] = at
        at -= int(backpointers[step, at])
    return cast(Ints, np.where(path % 2 == 1, path // 2, -1))


KEPT_CLASSES: Final = 10
_GROUP: Final = 16
_PRIME: Final = np.uint64(0x9E3779B97F4A7C15)
_ROOT: Final = np.uint64(1)


@dataclass(frozen=True, slots=True)
class Steps:
    """The pruned scores of N lines; lines of fewer than T steps are padded with steps that are certainly blank."""

    classes: Ints  # (N, T, K) the likeliest classes of each step, in any order
    scores: Floats  # (N, T, K) log probabilities of `classes`, plus one constant per step; -inf for blank and padding
    blank: Floats  # (N, T) log probabilities of blank, plus the same constant per step as in `scores`


def prune(logits: NDArray[np.float32], keep: int = KEPT_CLASSES) -> Steps:
    """Keep blank and the `keep` likeliest classes of each step of (N, T, C) logits or log probabilities."""
    lines, steps, classes = logits.shape
    rows = logits.reshape(-1, classes)
    top = _top_classes(rows, min(keep, classes))
    values = np.take_along_axis(rows, top, axis=1).astype(np.float64)
    greatest = values.max(axis=1, keepdims=True)
    scores = np.where(top == BLANK, -np.inf, values - greatest)
    blank = rows[:, BLANK] - greatest[:, 0]
    return Steps(top.reshape(lines, steps, -1), scores.reshape(lines, steps, -1), blank.reshape(lines, steps))


def pad(parts: Sequence[Steps]) -> Steps:
    """Pad lines to the same number of steps, and combine them into one batch."""
    longest = max(part.blank.shape[1] for part in parts)

    def together(arrays: Iterable[NDArray[N]], filler: float = 0) -> NDArray[N]:
        missing = ((array, (0, longest - array.shape[1])) for array in arrays)
        return np.concatenate(
            [np.pad(array, ((0, 0), by, (0, 0))[: array.ndim], constant_values=filler) for array, by in missing]
        )

    return Steps(
        together(part.classes for part in parts),
        together((part.scores for part in parts), -np.inf),
        together(part.blank for part in parts),
    )


def beam_search(steps: Steps, width: int, check: Check = no_check) -> list[Ints]:
    """The likeliest text of each line, as classes, keeping `width` prefixes; calls `check` before each step."""
    # The beam starts with only the empty prefix, whose probability is 1.
    known, parent = np.zeros((2, len(steps.blank), width), np.uint64)
    beam = _Beam(known, parent, np.full(known.shape, -1), *np.full((2, *known.shape), -np.inf))
    beam.known[:, 0], beam.ends_blank[:, 0] = _ROOT, 0.0
    every = zip(*(np.moveaxis(part, 1, 0) for part in (steps.classes, steps.scores, steps.blank)), strict=True)
    history = []
    for step in every:
        check()
        history.append(beam.advance(*step))
    return _spell(beam.total().argmax(axis=1), history)


def _top_classes(rows: NDArray[np.float32], keep: int) -> Ints:
    """(R, K) the `keep` likeliest classes per row. For speed, searches only the groups of classes with high maxima."""
    count, classes = rows.shape
    groups = classes // _GROUP
    if groups <= keep:
        return np.argpartition(rows, classes - keep, axis=1)[:, classes - keep :]
    whole = groups * _GROUP
    maxima = rows[:, :whole].reshape(count, _GROUP, groups).max(axis=1)
    best = np.argpartition(maxima, groups - keep, axis=1)[:, groups - keep :]
    inside = (best[:, :, None] + np.arange(0, whole, groups)).reshape(count, -1)
    rest = np.broadcast_to(np.arange(whole, classes), (count, classes - whole))
    candidates = np.concatenate([inside, rest], axis=1)
    values = np.take_along_axis(rows, candidates, axis=1)
    order = np.argpartition(values, values.shape[1] - keep, axis=1)[:, values.shape[1] - keep :]
    return np.take_along_axis(candidates, order, axis=1)


@dataclass(slots=True)
class _Beam:
    """The prefixes that are kept for each line; all arrays are (N, W)."""

    known: NDArray[np.uint64]  # hash of the prefix
    parent: NDArray[np.uint64]  # hash of the prefix without its last character
    last: Ints  # class of the last character
    ends_blank: Floats  # log probability of the prefix's paths that end in blank
    ends_not_blank: Floats  # log probability of the prefix's paths that end in its last character

    def total(self) -> Floats:
        """(N, W) log probability of each prefix."""
        return np.logaddexp(self.ends_blank, self.ends_not_blank)

    def advance(self, classes: Ints, scores: Floats, blank: Floats) -> tuple[Ints, Ints]:
        """Advance all lines by one step; returns (N, W) each prefix's former index, and its added class or -1."""
        total = self.total()
        not_blank, new = self._stay_and_grow(total, classes, scores)
        stay = total + blank[:, None]
        lines, width = total.shape
        everything = np.concatenate([np.logaddexp(stay, not_blank), new.reshape(lines, -1)], axis=1)
        order = np.argsort(-everything, axis=1, kind="stable")[:, :width]
        stays, grown = order < width, order - width
        source = np.where(stays, order, grown // classes.shape[1])
        added = np.where(stays, -1, np.take_along_axis(classes, np.where(stays, 0, grown % classes.shape[1]), axis=1))
        self._become(source, added, stay, not_blank, np.take_along_axis(everything, order, axis=1))
        return source, added

    def _stay_and_grow(self, total: Floats, classes: Ints, scores: Floats) -> tuple[Floats, Floats]:
        """Log probabilities after a step that is no blank: (N, W) of unchanged prefixes, (N, W, K) of extended ones."""
        same = self.last[:, :, None] == classes[:, None, :]
        repeat = np.where(same, scores[:, None, :], -np.inf).max(axis=2)
        # A repeated class adds a character only after a blank.
        new = np.where(same, self.ends_blank[:, :, None], total[:, :, None]) + scores[:, None, :]
        child = self.known[:, :, None] == self.parent[:, None, :]
        twin = self.last[:, :, None] == self.last[:, None, :]
        base = np.where(twin, self.ends_blank[:, :, None], total[:, :, None])
        grown_into = np.where(child, base, -np.inf).max(axis=1)
        new[np.matmul(child.astype(np.float32), same.astype(np.float32)) > 0] = -np.inf
        return np.logaddexp(self.ends_not_blank, grown_into) + repeat, new

    def _become(self, source: Ints, added: Ints, stay: Floats, not_blank: Floats, scores: Floats) -> None:
        stays = added < 0

        def of_source(table: NDArray[N]) -> NDArray[N]:
            return np.take_along_axis(table, source, axis=1)

        known = of_source(self.known)
        self.parent = np.where(stays, of_source(self.parent), known)
        self.known = np.where(stays, known, known * _PRIME + (added + 2).astype(np.uint64))
        self.last = np.where(stays, of_source(self.last), added)
        self.ends_blank = np.where(stays, of_source(stay), -np.inf)
        self.ends_not_blank = np.where(stays, of_source(not_blank), scores)


def _spell(final: Ints, history: Sequence[tuple[Ints, Ints]]) -> list[Ints]:
    """Follow the history backwards to collect the classes of each line's best prefix."""
    lines = np.arange(len(final))
    added = np.full((len(history), len(final)), -1)
    at = final
    for step in range(len(history) - 1, -1, -1):
        source, classes = history[step]
        added[step], at = classes[lines, at], source[lines, at]
    return [column[column >= 0] for column in added.T]
