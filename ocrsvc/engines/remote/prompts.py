"""The prompts that remote models were trained with; docs/remote.md names where each is documented."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Prompt:
    """Text sent before or after an image of at most `max_side_px`, and additional `members` of the request's JSON."""

    text: str
    max_side_px: int = 4096  # bounds the memory of a page; the models shrink more
    text_first: bool = False
    members: Mapping[str, Any] = field(default_factory=dict)


_MARKDOWN: Final = (
    "Transcribe all text of this page in reading order as Markdown. Write tables as HTML and formulas as LaTeX between "
    "dollar signs. Leave pictures out. Answer with the transcription alone."
)
# The model was trained with the spelling "LateX".
_OLMOCR: Final = (
    "Attached is one page of a document that you must process. Just return the plain text representation of this "
    "document as if you were reading it naturally. Convert equations to LateX and tables to HTML.\n"
    "If there are any figures or charts, label them with the following markdown syntax ![Alt text describing the "
    "contents of the figure](page_startx_starty_width_height.png)\n"
    "Return your output as markdown, with a front matter section on top specifying values for the primary_language, "
    "is_rotation_valid, rotation_correction, is_table, and is_diagram parameters."
)
# vLLM's own limit on repetition: no 30 tokens twice within 90, except the tokens of <td> and </td>. Other servers
# ignore it.
_NO_REPEATS: Final = {"ngram_size": 30, "window_size": 90, "whitelist_token_ids": [128821, 128822]}

PROMPTS: Final[Mapping[str, Prompt]] = {
    "markdown": Prompt(_MARKDOWN),
    "paddleocr_vl": Prompt("OCR:"),
    "glm_ocr": Prompt("Text Recognition:"),
    "olmocr": Prompt(_OLMOCR, max_side_px=1288, text_first=True),
    "deepseek_ocr": Prompt(
        "<image>\n<|grounding|>Convert the document to markdown.",
        text_first=True,
        members={"skip_special_tokens": False, "vllm_xargs": _NO_REPEATS},
    ),
}
"""The prompt for each value of OCRSVC_REMOTE_PROMPT."""
