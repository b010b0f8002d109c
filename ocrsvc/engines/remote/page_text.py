"""Cleans the Markdown that a remote model wrote, and derives the page's lines from it."""

import html
import re
from itertools import pairwise
from typing import Final

from ocrsvc.results import Line, Page

# Front matter that models add: only lines such as "primary_language: en", as pages may have text between two rules.
_FRONT_MATTER: Final = re.compile(r"\A\s*---[ \t]*\n(?:[a-z_]+:[^\n]*\n)+---[ \t]*(?:\n|\Z)")
_FENCE: Final = re.compile(r"\A\s*```(?:markdown|md|html|text)?[ \t]*\n(.*?)\n?```\s*\Z", re.DOTALL)
# Matches DeepSeek-OCR's tags with the type or position of a block, and the special tokens of all models.
_TOKENS: Final = re.compile(r"<\|(ref|det)\|>[^<]*<\|/\1\|>|<\|[a-z_/]{1,40}\|>|<｜[^<>｜]{1,40}｜>")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_BLOCK_FORMULA: Final = re.compile(r"(?<!\\)\\[\[\]]")
_INLINE_FORMULA: Final = re.compile(r"(?<!\\)\\[()]")
_PICTURE: Final = re.compile(r"!\[[^\[\]\n]{0,2000}\]\([^()\n]{0,2000}\)")
_LINK: Final = re.compile(r"\](?=[(:])")
_TABLE_TAG: Final = re.compile(r"<(/?)(table|tr|t[dh]|br)\b([^<>]{0,300})>", re.IGNORECASE)
_DROPPED_TAG: Final = re.compile(r"</?(?:thead|tbody|tfoot|caption|center|div|p|b|i|u)\b[^<>]{0,300}>", re.IGNORECASE)
_TAG_BEGINNING: Final = re.compile(r"<(?=[A-Za-z/!?])")
_SPAN: Final = re.compile(r"\b(rowspan|colspan)\s*=\s*[\"']?([1-9]\d?)\b", re.IGNORECASE)

_LINE_END: Final = re.compile(r"</tr>|<br>")
_CELL_END: Final = re.compile(r"</t[dh]>")
_ANY_TAG: Final = re.compile(r"</?(?:table|tr|t[dh])[^<>]*>")
_MARKS: Final = re.compile(r"^\s{0,3}(?:#{1,6}|>)\s+|\*\*|\$\$")
_RULE: Final = re.compile(r"[|\s:+=*_-]+")


def clean_markdown(text: str) -> str:
    """The Markdown of a page in a model's answer, in linear time.

    Tables are HTML with only rowspan and colspan as attributes, formulas LaTeX in $ or $$. Nothing else acts as HTML,
    as a link or as a picture, since the text of a page can be anything.
    """
    text = _FRONT_MATTER.sub("", text.replace("\r\n", "\n"), count=1)
    if fenced := _FENCE.match(text):
        text = fenced[1]
    text = _CONTROL.sub(" ", _TOKENS.sub("", text))
    text = _INLINE_FORMULA.sub("$", _BLOCK_FORMULA.sub("$$", text))
    text = _LINK.sub("] ", _DROPPED_TAG.sub("", _PICTURE.sub("", text)))
    pieces, end = list[str](), 0
    for tag in _TABLE_TAG.finditer(text):
        pieces += [_TAG_BEGINNING.sub("< ", text[end : tag.start()]), _bare_tag(tag)]
        end = tag.end()
    pieces.append(_TAG_BEGINNING.sub("< ", text[end:]))
    return "\n".join(line.rstrip() for line in "".join(pieces).strip().split("\n"))


def _bare_tag(tag: re.Match[str]) -> str:
    spans = "" if tag[1] else "".join(f' {name.lower()}="{count}"' for name, count in _SPAN.findall(tag[3])[:2])
    return f"<{tag[1]}{tag[2].lower()}{spans}>"


def plain_lines(markdown: str) -> list[str]:
    """The lines of cleaned Markdown as plain text, each row of a table as one line; formulas stay LaTeX."""
    found = []
    for line in _LINE_END.sub("\n", markdown).split("\n"):
        if not line.strip() or _RULE.fullmatch(line):
            continue
        text = _ANY_TAG.sub("", _CELL_END.sub(" ", line))
        if text.lstrip().startswith("|"):
            text = text.replace("|", " ")
        found.append(" ".join(html.unescape(_MARKS.sub("", text)).split()))
    return [line for line in found if line]


def page_of(markdown: str, width: int, height: int, *, whole: bool) -> Page:
    """A page of `width` x `height` pixels from cleaned Markdown; with `whole` all text is one line.

    The lines have equal strips of the page as boxes, from top to bottom, because most models report no positions.
    """
    texts = plain_lines(markdown)
    texts = [" ".join(texts)] if whole and texts else texts
    tops = [height * at / len(texts) for at in range(len(texts) + 1)] if texts else []
    boxes = [((0.0, top), (width, top), (width, bottom), (0.0, bottom)) for top, bottom in pairwise(tops)]
    lines = (Line(text, 1.0, box) for text, box in zip(texts, boxes, strict=True))
    return Page(width, height, 0, tuple(lines), markdown=markdown)
