"""The rules of masking by kind, and what they find in a text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ocrsvc.masking.card import find_cards
from ocrsvc.masking.credit_code import find_credit_codes
from ocrsvc.masking.iban import find_ibans
from ocrsvc.masking.mail import find_mails
from ocrsvc.masking.own_patterns import Find, compile_patterns
from ocrsvc.masking.passport import find_passports
from ocrsvc.masking.phone import find_phones
from ocrsvc.masking.resident_id import find_resident_ids
from ocrsvc.masking.text_forms import Span, to_half_width
from ocrsvc.masking.uk_nino import find_ninos
from ocrsvc.masking.us_ssn import find_ssns
from ocrsvc.records import MASK_KINDS, MaskKind

MASK: Final = "*"

# What is proven comes first: it names what several rules find.
_FINDERS: Final[Mapping[MaskKind, tuple[Find, ...]]] = {
    "id": (find_resident_ids, find_credit_codes, find_ibans, find_ssns, find_ninos, find_passports),
    "card": (find_cards,),
    "mail": (find_mails,),
    "phone": (find_phones,),
}


@dataclass(frozen=True, slots=True)
class Rules:
    """What is to be masked.

    Attributes:
        kinds: Of the built-in rules, and "own" for the operator's patterns.
        own: Finders of the operator's patterns.
    """

    kinds: frozenset[MaskKind]
    own: tuple[Find, ...] = ()


def make_rules(kinds: Iterable[MaskKind] = MASK_KINDS, patterns: Sequence[str] = ()) -> Rules:
    """The rules of some kinds, by default all, with the operator's patterns as settings hold them."""
    return Rules(frozenset(kinds), compile_patterns(patterns))


def find_spans(text: str, rules: Rules) -> list[Span]:
    """What the rules find in a text, in order; what overlaps is one, of the kind of that which begins first.

    Takes time in proportion to the text.
    """
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
    """The text with a star in place of each sign that the rules find; spaces and line ends stay.

    As long as the text, so that places in it stay what they are.
    """
    return mask_spans(text, ((begin, end) for begin, end, _ in find_spans(text, rules)))


def mask_spans(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """The text with a star in place of each sign but space from the first place of a span to the one after its last."""
    pieces, at = [], 0
    for begin, end in spans:
        pieces += [text[at:begin], "".join(sign if sign.isspace() else MASK for sign in text[begin:end])]
        at = end
    return "".join([*pieces, text[at:]])


def _found(text: str, rules: Rules) -> Iterator[Span]:
    plain = to_half_width(text)
    for kind, finders in _FINDERS.items():
        if kind in rules.kinds:
            yield from _with_kind(kind, finders, plain)
    if "own" in rules.kinds:
        yield from _with_kind("own", rules.own, text)
        if plain != text:
            yield from _with_kind("own", rules.own, plain)


def _with_kind(kind: MaskKind, finders: Iterable[Find], text: str) -> Iterator[Span]:
    return (Span(begin, end, kind) for find in finders for begin, end in find(text))
