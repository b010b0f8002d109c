"""Chooses which stored documents are removed for a new one: each caller has a share, and finished ones go first.

When there is no space left, a caller's own finished documents go, the oldest first; then those of callers that hold
more than their share (finished ones first, then those that came last), but only for a caller who holds less. A caller
with nothing in store also displaces the oldest finished document of any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stored:
    """One document in store: the bytes of all its files, and monotonic seconds of its arrival."""

    id: str
    caller: str
    size: int
    came_s: float
    is_done: bool


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that one caller wants to store, as a new document or with the one that is named."""

    caller: str
    size: int
    document: str = ""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most documents, and the most bytes, of all callers together."""

    documents: int
    size: int


def displaced(stored: Sequence[Stored], need: Need, bounds: Bounds) -> list[Stored] | None:
    """What has to go so that the need fits; None when nothing makes it fit."""
    left, gone = sorted(stored, key=lambda document: document.came_s), []
    while _excess(left, bounds, need) > 1:
        victim = _next_victim(left, need, bounds)
        if victim is None:
            return None
        left.remove(victim)
        gone.append(victim)
    return gone


def _next_victim(stored: Sequence[Stored], need: Need, bounds: Bounds) -> Stored | None:
    """The next to go, of those in store, the oldest first."""
    done = [document for document in stored if document.is_done and document.id != need.document]
    own = _of(need.caller, stored)
    if finished := _of(need.caller, done):
        return finished[0]
    callers = {document.caller for document in stored} | {need.caller}
    share = Bounds(max(1, bounds.documents // len(callers)), max(1, bounds.size // len(callers)))
    if own and _excess(own, share, need) > 1:
        return None
    excess = {caller: _excess(_of(caller, stored), share) for caller in sorted(callers)}
    worst = max(excess, key=excess.__getitem__)
    if excess[worst] > 1:
        return (_of(worst, done) or _of(worst, stored)[::-1])[0]
    return done[0] if done and not own else None


def _of(caller: str, stored: Sequence[Stored]) -> list[Stored]:
    return [document for document in stored if document.caller == caller]


def _excess(stored: Sequence[Stored], bounds: Bounds, need: Need | None = None) -> float:
    """How many times the bounds these fill, together with a need; more than 1 is too much."""
    documents, size = len(stored), sum(document.size for document in stored)
    if need is not None:
        documents, size = documents + (not need.document), size + need.size
    return max(documents / bounds.documents, size / bounds.size)
