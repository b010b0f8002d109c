"""Masking rules: their kinds, named by requests, and the spans that they find in a text."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Final, NamedTuple

from ocrsvc.errors import BadOption
from ocrsvc.masking.cards_mails_phones import find_cards, find_mails, find_phones
from ocrsvc.masking.identity_numbers import (
    find_credit_codes,
    find_ibans,
    find_passports,
    find_resident_ids,
    find_shapes,
)
from ocrsvc.masking.text_forms import to_half_width
from ocrsvc.results import MASK_KINDS, MaskKind
from ocrsvc.settings.workers_and_limits import compile_pattern

HEADER: Final = "X-Mask"  # HTTP header and gRPC metadata key that request masking, whatever the body's format

_ONE: Final = "|".join(MASK_KINDS)
ACCEPTED: Final = f"one or more of {', '.join(MASK_KINDS)}, separated by commas"
PATTERN: Final = f"^ *({_ONE}) *(, *({_ONE}) *){{0,{len(MASK_KINDS) - 1}}}$"

Find = Callable[[str], Iterator[tuple[int, int]]]  # yields the index range [begin, end) of each match in a text

MASK: Final = "*"

# Kinds with check digits come first, because the first of several overlapping matches determines the kind.
_FINDERS: Final[Mapping[MaskKind, tuple[Find, ...]]] = {
    "id": (find_resident_ids, find_credit_codes, find_ibans, find_passports, find_shapes),
    "card": (find_cards,),
    "mail": (find_mails,),
    "phone": (find_phones,),
}


def parse_kinds(text: str) -> tuple[MaskKind, ...]:
    """Parse a list of kinds such as "id,phone"; returns them in the order of MASK_KINDS. Raises ValueError."""
    names = {name.strip() for name in text.lower().split(",", len(MASK_KINDS) - 1)}
    if not names <= set(MASK_KINDS):
        raise ValueError(text)
    return tuple(kind for kind in MASK_KINDS if kind in names)


def kinds_of_header(value: str) -> tuple[MaskKind, ...]:
    """Parse the value of the header X-Mask. Raises BadOption."""
    try:
        return parse_kinds(value)
    except ValueError as error:
        raise BadOption(f"{HEADER} is {value[:40]!r}: send {ACCEPTED}.") from error


class Span(NamedTuple):
    """A match [begin, end) in a text, and the kind of its rule."""

    begin: int
    end: int
    kind: MaskKind


@dataclass(frozen=True, slots=True)
class Rules:
    """The kinds of text to mask. `own` finds the operator's patterns; it is used only if `kinds` contains "own"."""

    kinds: frozenset[MaskKind]
    own: tuple[Find, ...] = ()


def make_rules(kinds: Iterable[MaskKind] = MASK_KINDS, patterns: Sequence[str] = ()) -> Rules:
    """Make the rules of these kinds, by default all, and the operator's patterns, which RE2 matches in linear time."""
    return Rules(frozenset(kinds), tuple(partial(_find_own, compile_pattern(pattern)) for pattern in patterns))


def find_spans(text: str, rules: Rules) -> list[Span]:
    """Find all matches in a text, in linear time; overlapping ones merge into the kind of the first."""
    merged: list[Span] = []
    for span in sorted(_matches(text, rules), key=lambda span: (span.begin, -span.end)):
        if merged and span.begin < merged[-1].end:
            if span.end > merged[-1].end:
                merged[-1] = merged[-1]._replace(end=span.end)
        else:
            merged.append(span)
    return merged


def masked_text(text: str, rules: Rules) -> str:
    """Replace each matched character by a star, except white space; the length stays."""
    return mask_spans(text, ((begin, end) for begin, end, _ in find_spans(text, rules)))


def mask_spans(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Replace every character in the spans [begin, end) with an asterisk, except white space."""
    pieces, at = [], 0
    for begin, end in spans:
        stars = "".join(character if character.isspace() else MASK for character in text[begin:end])
        pieces += [text[at:begin], stars]
        at = end
    return "".join([*pieces, text[at:]])


def _find_own(pattern: Any, text: str) -> Iterator[tuple[int, int]]:
    # `finditer` of re2 converts the byte offsets of all matches to str offsets in a single pass.
    return ((begin, end) for begin, end in (match.span() for match in pattern.finditer(text)) if begin < end)


def _matches(text: str, rules: Rules) -> Iterator[Span]:
    plain = to_half_width(text)
    for kind, finders in (*_FINDERS.items(), ("own", rules.own)):
        # The operator's patterns search both the original and the half-width text.
        forms = dict.fromkeys((text, plain) if kind == "own" else (plain,))
        for find, form in product(finders if kind in rules.kinds else (), forms):
            yield from (Span(begin, end, kind) for begin, end in find(form))
