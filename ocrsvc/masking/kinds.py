"""The kinds of masking as requests name them."""

from __future__ import annotations

from typing import Final

from ocrsvc.errors import BadOption
from ocrsvc.records import MASK_KINDS, MaskKind

HEADER: Final = "X-Mask"
"""The header, or metadata of gRPC, that asks for masking in any format."""

_ONE: Final = "|".join(MASK_KINDS)
ACCEPTED: Final = f"one or more of {', '.join(MASK_KINDS)}, separated by commas"
PATTERN: Final = f"^ *({_ONE}) *(, *({_ONE}) *){{0,{len(MASK_KINDS) - 1}}}$"


def parse_kinds(text: str) -> tuple[MaskKind, ...]:
    """The kinds that a list such as "id,phone" names, in the order of MASK_KINDS. Raises ValueError."""
    names = {name.strip() for name in text.lower().split(",", len(MASK_KINDS) - 1)}
    if not names <= set(MASK_KINDS):
        raise ValueError(text)
    return tuple(kind for kind in MASK_KINDS if kind in names)


def kinds_of_header(sent: str) -> tuple[MaskKind, ...]:
    """The kinds that a header names. Raises BadOption."""
    try:
        return parse_kinds(sent)
    except ValueError as error:
        raise BadOption(f"{HEADER} is {sent[:40]!r}: accepted is {ACCEPTED}.") from error
