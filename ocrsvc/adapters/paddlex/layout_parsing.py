"""POST /layout-parsing of PaddleX's pipelines PaddleOCR-VL and PP-StructureV3: pages as Markdown and blocks."""

from dataclasses import replace
from typing import Final

from ocrsvc.adapters.context import AdapterContext, all_pages
from ocrsvc.adapters.paddlex.answers import data_info, success_envelope
from ocrsvc.adapters.paddlex.members import Members
from ocrsvc.formats.blocks import Kind, blocks_of
from ocrsvc.formats.markdown import markdown_by_page
from ocrsvc.formats.markup import to_html
from ocrsvc.results import Page, ReadOptions

_LABELS: Final[dict[Kind, str]] = {"heading": "paragraph_title", "paragraph": "text", "item": "text", "table": "table"}


class LayoutMembers(Members):
    """The members of a request to /layout-parsing that this service uses."""

    use_table_recognition: bool = True

    @property
    def read_options(self) -> ReadOptions:
        """The options for the reader that the request's members select."""
        return replace(super().read_options, characters=False, tables=self.use_table_recognition)


def answer_layout(data: bytes, members: LayoutMembers, context: AdapterContext) -> bytes:
    """The JSON response for a file, all of whose pages are read. Raises as `AdapterContext.read_pages`."""
    file = context.read_pages(data, members.read_options)
    pages = all_pages(file)
    results = [layout_result(page, markdown, len(pages)) for page, markdown in markdown_by_page(pages)]
    return success_envelope({"layoutParsingResults": results, "dataInfo": data_info(file.kind, pages)}, members.log_id)


def layout_result(page: Page, markdown: str, count: int) -> dict[str, object]:
    """A page as PaddleX's LayoutParsingResult; `count` is the number of pages."""
    blocks: list[dict[str, object]] = []
    for number, block in enumerate(blocks_of(page)):
        (left, top), _, (right, bottom), _ = block.frame(page)
        blocks.append(
            {
                "block_label": _LABELS[block.kind],
                "block_content": block.text if block.table is None else to_html(block.table),
                "block_bbox": [round(left), round(top), round(right), round(bottom)],
                "block_id": number,
                "block_order": number + 1,
            }
        )
    pruned = {"page_count": count, "width": page.width, "height": page.height, "parsing_res_list": blocks}
    # No picture is cut out, and no block continues on another page.
    about = {"text": markdown, "images": {}, "isStart": True, "isEnd": True}
    return {"prunedResult": pruned, "markdown": about, "outputImages": None, "inputImage": None}
