r"""Realistic Chinese and English sentences with numbers that must be masked and numbers that must not.

The sentences are in masking_sentences.txt: `\n` is a line break, « » enclose a number to mask. Check digits are valid
by GB 11643, GB 32100, ISO 13616 and ISO 7812. A heading names a group (a line of the report) and the kind of its
numbers; a group whose name begins with "not" has no numbers to mask.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SENTENCES: Final = Path(__file__).with_name("masking_sentences.txt")


@dataclass(frozen=True, slots=True)
class Row:
    """A sentence, and the span (begin, end) of each number to mask in it."""

    group: str
    kind: str
    text: str
    spans: tuple[tuple[int, int], ...]


def rows() -> list[Row]:
    table, group, kind = [], "", ""
    for sentence in _SENTENCES.read_text("utf-8").splitlines():
        if sentence.startswith("## "):
            group, _, kind = sentence.removeprefix("## ").partition(" =")
            continue
        parts = re.split("[«»]", sentence.replace("\\n", "\n"))
        ends = [len("".join(parts[: number + 1])) for number in range(len(parts))]
        table.append(Row(group, kind.strip(), "".join(parts), tuple(zip(ends[:-1:2], ends[1::2], strict=True))))
    return table


def trim_spans(found: Iterable[tuple[int, int]], text: str) -> list[tuple[int, int]]:
    """Spans without leading and trailing spaces."""
    trimmed = []
    for begin, end in found:
        part = text[begin:end]
        trimmed.append((begin + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())))
    return trimmed
