"""Accuracy bars for the whole corpus: goals, and a floor for each kind of page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from bench.corpus import ALL, Tally

# (token F1, CER) by kind, measured at commit ecd9bb0 with the corrected scorer in single precision on 2026-11-22. CER
# is None for kinds without a known reading order.
FLOOR: Final[Mapping[str, tuple[float, float | None]]] = {
    ALL: (0.9721, 0.1341),
    "card": (1.0, None),
    "document": (0.9856, 0.1590),
    "ecommerce": (0.9052, None),
    "format": (1.0, 0.0),
    "line": (0.9128, 0.1270),
    "photo": (0.8944, 0.0),
    "receipt": (0.9535, 0.1348),
    "rotated": (0.9835, 0.0480),
    "scene": (0.9826, 0.0540),
    "screenshot": (0.9957, 0.0074),
}
# Token F1 of RapidOCR 3.10.0 with its defaults on the same pages; measure it with accuracy.py --rapidocr defaults.
RAPIDOCR_F1: Final[Mapping[str, float]] = {
    ALL: 0.9513,
    "card": 1.0,
    "document": 0.9749,
    "ecommerce": 0.8841,
    "format": 0.9091,
    "line": 0.8308,
    "photo": 0.8887,
    "receipt": 0.9413,
    "rotated": 0.8672,
    "scene": 0.9797,
    "screenshot": 0.9942,
}
SLACK: Final = 0.003
GOALS_F1: Final[Mapping[str, float]] = {ALL: 0.978, "photo": 0.96, "ecommerce": 0.915}
GOAL_CER: Final = 0.09
GOAL_SPACES_RIGHT: Final = 0.95


def min_f1(kind: str) -> float:
    """The lowest token F1 accepted for a kind."""
    return max(GOALS_F1.get(kind, 0.0), FLOOR[kind][0] - SLACK)


def max_cer(kind: str) -> float | None:
    """The highest CER accepted for a kind; None for kinds without a known reading order."""
    floor = FLOOR[kind][1]
    if kind == ALL or floor is None:
        return GOAL_CER if kind == ALL else None
    return floor + SLACK


def missed(tallies: Mapping[str, Tally]) -> Iterator[str]:
    """One sentence for each missed bar."""
    for kind, tally in sorted(tallies.items()):
        if tally.f1 < min_f1(kind):
            yield f"F1 of {kind} is {tally.f1:.4f}, below {min_f1(kind):.4f}"
        most = max_cer(kind)
        if most is not None and tally.cer > most:
            yield f"CER of {kind} is {tally.cer:.4f}, above {most:.4f}"
    spaces = tallies[ALL].mixed
    if spaces.share_right < GOAL_SPACES_RIGHT:
        yield f"of spaces beside Chinese {spaces.share_right:.4f} are right, below {GOAL_SPACES_RIGHT:.4f}"
