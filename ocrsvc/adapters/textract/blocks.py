"""Converts a page to AWS Textract's blocks (page, lines, words); positions are fractions of the page's size."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from ocrsvc.formats.boxes import Boxed, page_with_words, to_boxes, to_frames, to_scores
from ocrsvc.results import Line, Page

Block = dict[str, Any]

_SHARE_DIGITS: Final = 6
_PERCENT_DIGITS: Final = 3


def blocks_of(page: Page) -> list[Block]:
    """The page's block, then the lines' blocks in reading order, then the words' blocks.

    An id is the block's type, the page's number and a count, so it is unique in a document.
    """
    page = page_with_words(page)
    right, bottom = page.width, page.height
    frame = Line("", 1.0, ((0, 0), (right, 0), (right, bottom), (0, bottom)))
    lines = list(_blocks("LINE", page.lines, page))
    words = list(_blocks("WORD", [word for line in page.lines for word in line.words or ()], page))
    rest = iter(words)
    for line, block in zip(page.lines, lines, strict=True):
        _add_children(block, [next(rest) for _ in line.words or ()])
    for word in words:
        word["TextType"] = "PRINTED"
    (whole,) = _blocks("PAGE", [frame], page)
    del whole["Text"], whole["Confidence"]
    _add_children(whole, lines)
    return [whole, *lines, *words]


def _blocks(kind: str, texts: Sequence[Boxed], page: Page) -> Iterator[Block]:
    """A block of this type for each line or word, without relationships."""
    polygons = to_boxes(texts) / (page.width, page.height)
    frames = to_frames(polygons)
    # Width and height instead of right and bottom.
    frames[:, 2:] -= frames[:, :2]
    places = zip(polygons.round(_SHARE_DIGITS).tolist(), frames.round(_SHARE_DIGITS).tolist(), strict=True)
    scores = to_scores(texts, _PERCENT_DIGITS + 2)
    for number, (text, score, (polygon, frame)) in enumerate(zip(texts, scores, places, strict=True), start=1):
        left, top, width, height = frame
        yield {
            "BlockType": kind,
            "Confidence": round(100 * score, _PERCENT_DIGITS),
            "Text": text.text,
            "Geometry": {
                "BoundingBox": {"Width": width, "Height": height, "Left": left, "Top": top},
                "Polygon": [{"X": x, "Y": y} for x, y in polygon],
            },
            "Id": f"{kind.lower()}-{page.number}-{number}",
            "Page": page.number,
        }


def _add_children(block: Block, children: Sequence[Block]) -> None:
    if children:
        block["Relationships"] = [{"Type": "CHILD", "Ids": [child["Id"] for child in children]}]
