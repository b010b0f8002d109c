"""Numbers as arguments of commands, for argparse's `type`."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def whole_number(most: int = 10**9) -> Callable[[str], int]:
    """Parses a whole number from 1 to `most`; what else there is raises ArgumentTypeError."""

    def parse(text: str) -> int:
        if not text.isdecimal() or len(text) > len(str(most)) or not 1 <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to {most}")
        return int(text)

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
