"""Pages survive conversion to JSON and back; other JSON is refused."""

from dataclasses import replace
from typing import Any

import orjson
import pytest
from support import read_data

from ocrsvc.formats.page_serialization import InvalidData, pack_page, unpack_page
from ocrsvc.results import Barcode, Cell, Character, EngineTimes, Line, MaskedPart, Page, Region, Table, Word

BOX = ((0.0, 0.5), (2.0, 0.5), (2.0, 1.25), (0.0, 1.25))
WORD = Word("ab", 0.5, BOX, (Character("a", 1.0, BOX), Character("b", 0.0, BOX)))
PAGE = Page(
    60,
    30,
    90,
    (Line("ab 甲\U0001f600", 0.75, BOX, (WORD,), "text_layer"),),
    number=3,
    tables=(Table(BOX, 2, 1, (Cell(0, 0, 2, 1, BOX, "ab", (0,)),)),),
    regions=(Region("title", 0.25, BOX, (0,)),),
    masked=(MaskedPart("id", 0, 0, 2, BOX),),
    barcodes=(Barcode("QRCode", "abc", BOX),),
)


def packed(page: Page) -> Any:
    return orjson.loads(orjson.dumps(pack_page(page)))


@pytest.mark.parametrize("page", [PAGE, Page(1, 1, 0, ()), replace(PAGE, masked=()), replace(PAGE, masked=None)])
def test_a_page_comes_back_unchanged(page: Page) -> None:
    assert unpack_page(packed(page)) == page


def test_the_times_of_the_engine_are_not_packed() -> None:
    assert unpack_page(packed(replace(PAGE, times=EngineTimes(1.0, 2.0, 3.0)))).times is None


@pytest.mark.parametrize(("path", "value"), read_data("invalid_pages.json"), ids=str)
def test_invalid_pages_are_refused(path: list[Any], value: object) -> None:
    part = row = packed(PAGE)
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    with pytest.raises(InvalidData):
        unpack_page(row)


@pytest.mark.parametrize("value", [None, [], "page", {}, {"width": 1, "height": 1}])
def test_other_json_is_refused(value: object) -> None:
    with pytest.raises(InvalidData):
        unpack_page(value)
