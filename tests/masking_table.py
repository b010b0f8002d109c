r"""Real-looking sentences in Chinese and English, with numbers that are to be masked, and with those that are not.

They are in masking_sentences.txt, `\n` a line's end; what is to be masked stands in « ». Check digits are right by
GB 11643, GB 32100, ISO 13616 and ISO 7812. A heading says the group, which a report has a line for, and the kind of its
numbers; a group that begins with "not" has none.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SENTENCES: Final = Path(__file__).with_name("masking_sentences.txt")


@dataclass(frozen=True, slots=True)
class Row:
    """A sentence; `begin` and `end` of each number in it that is to be masked."""

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


def seen(found: Iterable[tuple[int, int]], text: str) -> list[tuple[int, int]]:
    """Spans without the spaces at their ends."""
    trimmed = []
    for begin, end in found:
        part = text[begin:end]
        trimmed.append((begin + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())))
    return trimmed
