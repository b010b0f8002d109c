"""Settings of masking: the operator's own patterns."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator

from ocrsvc.settings.group import SettingsGroup, setting

_MOST_PATTERNS: Final = 100
_MOST_LETTERS: Final = 1000
_PATTERN_BYTES: Final = 1 << 20


def _split_lines(value: object) -> object:
    """The lines of a text without the blank ones; anything else as it is."""
    if isinstance(value, str):
        return tuple(line.strip() for line in value.splitlines() if line.strip())
    return value


def _check_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """The patterns, if RE2 compiles each and none of them finds empty text; raises ValueError."""
    if not patterns:
        return patterns
    if find_spec("re2") is None or len(patterns) > _MOST_PATTERNS:
        raise ValueError("not installed, or too many")
    for pattern in patterns:
        if len(pattern) > _MOST_LETTERS or compile_pattern(pattern).search(""):
            raise ValueError("a pattern that is too long, or that finds empty text")
    return patterns


def compile_pattern(pattern: str) -> Any:
    """What re2 makes of a pattern, with little memory. Raises ValueError, and ImportError where it is not installed."""
    import re2

    options = re2.Options()
    options.max_mem, options.log_errors = _PATTERN_BYTES, False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise ValueError(f"not a pattern of RE2: {error}") from error


_ACCEPTED: Final = (
    f"with the extra ocrsvc[mask], up to {_MOST_PATTERNS} regular expressions of RE2, one a line (in the file a list), "
    f"each of up to {_MOST_LETTERS} letters and none of which finds empty text"
)
Patterns = Annotated[tuple[str, ...], BeforeValidator(_split_lines), AfterValidator(_check_patterns)]


class MaskingSettings(SettingsGroup):
    """The operator's patterns."""

    title = "Masking"

    mask_patterns: Patterns = setting(
        (),
        "Patterns of your own that mask=own masks, such as EMP-[0-9]{6}; RE2 matches them, in linear time whatever "
        "they are.",
        accepted=_ACCEPTED,
    )
