"""The options of a request to Mistral's OCR: which pages, which model, and what an answer is to hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ocrsvc.errors import BadOption
from ocrsvc.imaging.page_ranges import ALL, Ranges
from ocrsvc.records import ReadOptions

_MOST_RANGES: Final = 1000
_MOST_DIGITS: Final = 9
_GRANULARITIES: Final = ("word", "page", "block")
_ACCEPTED_PAGES: Final = 'page numbers from 0, as a list, or a text such as "0-2,5"'


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for.

    Attributes:
        read: How the pages are read.
        ranges: Which of them.
        model: As it was sent; empty for none.
        table_format: "markdown" or "html" lists the tables beside the text; empty does not.
        blocks: Whether blocks with their places are told.
        confidences: How fine confidences are told: "word", "page" or "block"; empty for none.
    """

    read: ReadOptions
    ranges: Ranges
    model: str
    table_format: str
    blocks: bool
    confidences: str


def parse_options(members: Mapping[str, object], *, has_models: bool) -> Asked:
    """What the members ask for.

    Without a model repository one model reads everything, so that the name decides nothing.

    Raises:
        BadOption: A value is not accepted, or asks for what no model here does.
    """
    for name in ("bbox_annotation_format", "document_annotation_format", "document_annotation_prompt"):
        if members.get(name):
            raise BadOption(f"{name} is not served: no model here describes pages.", "Leave it out.")
    model = _choice(members, "model", ())
    confidences = _choice(members, "confidence_scores_granularity", _GRANULARITIES)
    wanted = model if has_models and model and not model.startswith("mistral") else None
    read = ReadOptions(tables=True, words=confidences == "word", model=wanted)
    table_format = _choice(members, "table_format", ("markdown", "html"))
    blocks = members.get("include_blocks") is True
    return Asked(read, _ranges_of(members.get("pages")), model, table_format, blocks, confidences)


def _choice(members: Mapping[str, object], name: str, accepted: tuple[str, ...]) -> str:
    """A text, one of those that are accepted if there are any; empty for none. Raises BadOption."""
    value = members.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > 200 or (accepted and value not in accepted):
        raise BadOption(f"{name} has a wrong value.", f"Send {' or '.join(accepted) or 'a name'}, or leave it out.")
    return value


def _ranges_of(sent: object) -> Ranges:
    """Pages from 0, in a list or a text, as ranges from 1. Raises BadOption."""
    if sent is None:
        return ALL
    items = sent.split(",", _MOST_RANGES) if isinstance(sent, str) else sent
    if not isinstance(items, list) or not 0 < len(items) <= _MOST_RANGES:
        raise _bad_pages()
    return tuple(map(_range_of, items))


def _range_of(item: object) -> tuple[int, int]:
    if type(item) is int and 0 <= item < 10**_MOST_DIGITS:
        return item + 1, item + 1
    if not isinstance(item, str) or len(item) > 3 * _MOST_DIGITS:
        raise _bad_pages()
    first, dash, last = item.partition("-")
    numbers = [_number(first), _number(last if dash else first)]
    if numbers[1] < numbers[0]:
        raise _bad_pages()
    return numbers[0] + 1, numbers[1] + 1


def _number(text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
        raise _bad_pages()
    return int(text)


def _bad_pages() -> BadOption:
    return BadOption("pages has a wrong value.", f"Send {_ACCEPTED_PAGES}.")
