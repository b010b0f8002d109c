"""Pages and errors in TurboOCR's JSON, with its error codes and its HTTP status for bad files."""

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from ocrsvc import errors
from ocrsvc.adapters.context import original_code_of, texts_with_corners
from ocrsvc.adapters.turboocr.parameters import DocumentParameters, PageParameters
from ocrsvc.errors import OcrsvcError
from ocrsvc.formats.markup import to_html
from ocrsvc.imaging.geometry import restore_page
from ocrsvc.results import Box, Page, Region, RegionType, Table

CLASSES: Final[Mapping[RegionType, tuple[str, int]]] = {
    "text": ("text", 22),
    "title": ("paragraph_title", 17),
    "figure": ("image", 14),
    "figure_caption": ("figure_title", 7),
    "table": ("table", 21),
    "table_caption": ("figure_title", 7),
    "header": ("header", 12),
    "footer": ("footer", 8),
    "reference": ("reference", 18),
    "equation": ("display_formula", 5),
}
"""PP-DocLayoutV3's class name and number per region type."""

# TurboOCR's class for lines outside all regions.
_REMAINDER: Final = ("SupplementaryRegion", -1)

CODES: Final[tuple[tuple[type[OcrsvcError], str], ...]] = (
    (errors.NothingSent, "MISSING_IMAGE"),
    (errors.BadBase64, "BASE64_DECODE_FAILED"),
    (errors.UnsupportedImage, "IMAGE_DECODE_FAILED"),
    (errors.BrokenImage, "IMAGE_DECODE_FAILED"),
    (errors.ImageTooLarge, "DIMENSIONS_TOO_LARGE"),
    (errors.TooManyPages, "PDF_TOO_LARGE"),
    (errors.BadOption, "INVALID_PARAMETER"),
    (errors.NotReady, "NOT_READY"),
    (errors.DeadlineExceeded, "INFERENCE_TIMEOUT"),
    (errors.Refused, "SERVER_BUSY"),
    (errors.EngineFailed, "INFERENCE_ERROR"),
)
# Errors of a file that TurboOCR reports with status 400.
_BAD_FILES: Final = (errors.UnsupportedImage, errors.BrokenImage, errors.ImageTooLarge, errors.TooManyPages)


def to_results(page: Page, parameters: PageParameters, scale: float = 1.0) -> dict[str, object]:
    """The lines, and layout, reading order, blocks and tables if requested; boxes are multiplied by `scale`."""
    answer: dict[str, object] = {"results": _lines(page, parameters, scale)}
    if parameters.has_layout:
        answer["layout"] = [_region(number, region, scale) for number, region in enumerate(page.regions)]
    if parameters.has_order:
        answer["reading_order"] = list(range(len(page.lines)))
    if parameters.as_blocks:
        answer["blocks"] = _blocks(page, scale)
    if parameters.tables:
        answer["tables"] = [_table(table, page.regions, scale) for table in page.tables]
    return answer


def to_document_page(page: Page, parameters: DocumentParameters, drawn_dpi: float | None) -> dict[str, object]:
    """A page of a document; `drawn_dpi` is its rendering resolution, None for an image."""
    turned = -page.angle % 360 if parameters.autorotate else 0
    if turned:
        sides = (page.height, page.width) if turned in {90, 270} else (page.width, page.height)
        page = restore_page(page, turned, *sides)
    scale = parameters.dpi / drawn_dpi if drawn_dpi else 1.0
    mode, sources = parameters.mode, {line.source for line in page.lines}
    if mode not in {"ocr", "geometric"} and not {"text_layer", "ocr"} <= sources:
        mode = "geometric" if "text_layer" in sources else "ocr"
    answer: dict[str, object] = {
        "page": page.number,
        "page_index": page.number - 1,
        "dpi": parameters.dpi,
        "width": max(1, round(page.width * scale)),
        "height": max(1, round(page.height * scale)),
        **to_results(page, parameters, scale),
        # How the page was read: from its text layer, by the engine, or both.
        "mode": mode,
        "text_layer_quality": "trusted" if "text_layer" in sources else "absent",
    }
    return answer | ({"orientation_deg": turned} if turned else {})


def _lines(page: Page, parameters: PageParameters, scale: float) -> list[dict[str, object]]:
    regions = {line: number for number, region in enumerate(page.regions) for line in region.lines}
    items = []
    for number, (text, score, box) in enumerate(texts_with_corners(page.lines, scale=scale)):
        item: dict[str, object] = {"text": text, "confidence": score, "bounding_box": box}
        if page.lines[number].source == "text_layer":
            item["source"] = "pdf"
        if parameters.has_layout:
            item = {"id": number, **item, **({"layout_id": regions[number]} if number in regions else {})}
        items.append(item)
    return items


def _region(number: int, region: Region, scale: float) -> dict[str, object]:
    name, class_id = _class_of(region)
    confidence, box = round(region.confidence or 1.0, 5), _corners(region.box, scale)
    return {"id": number, "class": name, "class_id": class_id, "confidence": confidence, "bounding_box": box}


def _class_of(region: Region) -> tuple[str, int]:
    return CLASSES[region.type] if region.confidence else _REMAINDER


def _blocks(page: Page, scale: float) -> list[dict[str, object]]:
    """TurboOCR's blocks: the regions that contain lines, in reading order."""
    with_text = [(number, region) for number, region in enumerate(page.regions) if region.lines]
    return [
        {
            "id": order,
            "layout_id": number,
            "class": _class_of(region)[0],
            "bounding_box": _corners(region.box, scale),
            "content": "\n".join(page.lines[line].text for line in region.lines),
            "order_index": order,
        }
        for order, (number, region) in enumerate(with_text)
    ]


def _table(table: Table, regions: Iterable[Region], scale: float) -> dict[str, object]:
    """A table, with the number and confidence of the table region that contains its centre."""
    centre = np.mean(table.box, axis=0)
    around = (
        (number, region.confidence)
        for number, region in enumerate(regions)
        if region.type == "table" and np.all((np.min(region.box, 0) <= centre) & (centre <= np.max(region.box, 0)))
    )
    number, confidence = next(around, (-1, 1.0))
    cells = [
        {
            "text": cell.text,
            "bounding_box": _corners(cell.box, scale),
            "row": cell.row,
            "col": cell.column,
            "rowspan": cell.row_span,
            "colspan": cell.column_span,
        }
        for cell in table.cells
    ]
    members = {"layout_id": number, "html": to_html(table), "confidence": round(confidence, 5)}
    return {**members, "bounding_box": _corners(table.box, scale), "cells": cells}


def _corners(box: Box, scale: float) -> list[list[int]]:
    return [[round(x * scale), round(y * scale)] for x, y in box]


def code_of(error: OcrsvcError) -> str:
    """TurboOCR's code for an error, else this service's code in upper case."""
    default = error.code.upper() if type(error) is not OcrsvcError else "INFERENCE_ERROR"
    return str(original_code_of(CODES, error, "INVALID_JSON") or default)


def status_of(failure: OcrsvcError) -> int:
    """The HTTP status of an error: 400 for every unreadable file, as in TurboOCR."""
    return 400 if isinstance(failure, _BAD_FILES) and not isinstance(failure, errors.BodyTooLarge) else failure.status


def error_members(failure: OcrsvcError) -> dict[str, object]:
    """The JSON members of an error."""
    return {"error": {"code": code_of(failure), "message": str(failure)}}
