"""The rules of masking: their kinds as requests name them, and what they find in a text."""

from __future__ import annotations

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
from ocrsvc.settings.limits import compile_pattern

HEADER: Final = "X-Mask"
"""The header, or metadata of gRPC, that asks for masking in any format."""

_ONE: Final = "|".join(MASK_KINDS)
ACCEPTED: Final = f"one or more of {', '.join(MASK_KINDS)}, separated by commas"
PATTERN: Final = f"^ *({_ONE}) *(, *({_ONE}) *){{0,{len(MASK_KINDS) - 1}}}$"

Find = Callable[[str], Iterator[tuple[int, int]]]
"""Where something stands in a text: the first place of each, and the place after its last."""

MASK: Final = "*"

# What is proven comes first: it names what several rules find.
_FINDERS: Final[Mapping[MaskKind, tuple[Find, ...]]] = {
    "id": (find_resident_ids, find_credit_codes, find_ibans, find_passports, find_shapes),
    "card": (find_cards,),
    "mail": (find_mails,),
    "phone": (find_phones,),
}


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


class Span(NamedTuple):
    """What a rule found in a text: its first place, the place after its last, and the kind of the rule."""

    begin: int
    end: int
    kind: MaskKind


@dataclass(frozen=True, slots=True)
class Rules:
    """What is to be masked: the kinds of built-in rules, "own" among them for the operator's patterns, and these."""

    kinds: frozenset[MaskKind]
    own: tuple[Find, ...] = ()


def make_rules(kinds: Iterable[MaskKind] = MASK_KINDS, patterns: Sequence[str] = ()) -> Rules:
    """The rules of some kinds, by default all, with the operator's patterns, which RE2 matches in linear time."""
    return Rules(frozenset(kinds), tuple(partial(_find_own, compile_pattern(pattern)) for pattern in patterns))


def find_spans(text: str, rules: Rules) -> list[Span]:
    """What the rules find in a text, in linear time; what overlaps is one, of the kind of that which begins first."""
    found = sorted(_found(text, rules), key=lambda span: (span.begin, -span.end))
    merged: list[Span] = []
    for span in found:
        if merged and span.begin < merged[-1].end:
            if span.end > merged[-1].end:
                merged[-1] = merged[-1]._replace(end=span.end)
        else:
            merged.append(span)
    return merged


def masked_text(text: str, rules: Rules) -> str:
    """The text, as long as it was, with a star in place of each sign that the rules find; spaces and line ends stay."""
    return mask_spans(text, ((begin, end) for begin, end, _ in find_spans(text, rules)))


def mask_spans(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """The text with a star in place of each sign but space from the first place of a span to the one after its last."""
    pieces, at = [], 0
    for begin, end in spans:
        pieces += [text[at:begin], "".join(sign if sign.isspace() else MASK for sign in text[begin:end])]
        at = end
    return "".join([*pieces, text[at:]])


def _find_own(pattern: Any, text: str) -> Iterator[tuple[int, int]]:
    # re2 counts the places of a str in one pass over it.
    return ((begin, end) for begin, end in (match.span() for match in pattern.finditer(text)) if begin < end)


def _found(text: str, rules: Rules) -> Iterator[Span]:
    plain = to_half_width(text)
    for kind, finders in (*_FINDERS.items(), ("own", rules.own)):
        # The operator's patterns see the text as it was read, too.
        forms = dict.fromkeys((text, plain) if kind == "own" else (plain,))
        for find, form in product(finders if kind in rules.kinds else (), forms):
            yield from (Span(begin, end, kind) for begin, end in find(form))
