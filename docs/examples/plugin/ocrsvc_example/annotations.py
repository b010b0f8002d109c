"""The output format: PPOCRLabel's Label.txt, a line for each page: its name, a tab, and its lines of text as JSON."""

import json
from collections.abc import Iterable, Iterator

from ocrsvc.results import EngineInfo, Page


def annotation_parts(pages: Iterable[Page], _count: int, _engine: EngineInfo) -> Iterator[str]:
    """Write the text and the corners of each line, in whole pixels."""
    for page in pages:
        lines = [
            {"transcription": line.text, "points": [(round(x), round(y)) for x, y in line.box], "difficult": False}
            for line in page.lines
        ]
        yield f"page-{page.number}.png\t{json.dumps(lines, ensure_ascii=False)}\n"
