"""The operator's own patterns, matched in linear time by RE2, whatever they and the text are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from ocrsvc.settings.groups.masking import compile_pattern

Find = Callable[[str], Iterator[tuple[int, int]]]
"""Where something stands in a text: the first place of each, and the place after its last."""


def compile_patterns(patterns: Sequence[str]) -> tuple[Find, ...]:
    """A finder for each pattern, in the syntax of RE2, as the settings have checked them."""
    return tuple(partial(_find, compile_pattern(pattern)) for pattern in patterns)


def _find(pattern: Any, text: str) -> Iterator[tuple[int, int]]:
    # re2 counts the places of a str in one pass over it.
    return ((begin, end) for begin, end in (match.span() for match in pattern.finditer(text)) if begin < end)
