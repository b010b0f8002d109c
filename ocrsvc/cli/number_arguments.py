"""Numbers as arguments of commands, for argparse's `type`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

_MOST_DIGITS: Final = 18


def whole_number(most: int | None = None) -> Callable[[str], int]:
    """Parses a whole number from 1, to `most` if that is given; what else there is raises ArgumentTypeError."""
    accepted = "above 0" if most is None else f"from 1 to {most}"

    def parse(text: str) -> int:
        number = int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else 0
        if number < 1 or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number {accepted}")
        return number

    return parse


def amount(below: float, what: str) -> Callable[[str], float]:
    """Parses a number from 0 to below a limit; `what` it is called where it is none, which raises ArgumentTypeError."""

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0 <= number < below:
            raise argparse.ArgumentTypeError(f"{text!r} is no {what}")
        return number

    return parse
