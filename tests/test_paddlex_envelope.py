"""The exchange inside a Triton tensor answers as PaddleX's over HTTP does."""

import json
from dataclasses import replace
from typing import Any

import pytest
from image_support import png
from web_support import as_base64

from ocrsvc.adapters.paddlex.http import infer
from ocrsvc.adapters.paddlex.word_boxes import to_word_members
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import Box, Character, Line, Word


def ask(reader: Reader, members: object) -> tuple[int, Any]:
    status, answer = infer(json.dumps(members).encode(), reader, 10.0)
    return status, json.loads(answer)


def test_response_has_paddlex_envelope(reader: Reader) -> None:
    status, answer = ask(reader, {"file": as_base64(png()), "visualize": False, "logId": "L"})
    assert (status, answer["logId"], answer["errorCode"], answer["errorMsg"]) == (200, "L", 0, "Success")
    assert len(answer["result"]["ocrResults"][0]["prunedResult"]["rec_texts"]) == 2


@pytest.mark.parametrize(
    ("members", "status"),
    [
        ({"file": "!!!!", "logId": "L"}, 422),
        ({"logId": "L"}, 422),
        ({"file": as_base64(png(shade=0)), "logId": "L"}, 500),
        ({"file": as_base64(png()), "fileType": 7, "logId": "L"}, 422),
    ],
)
def test_errors_have_the_envelope_and_the_callers_id(reader: Reader, members: object, status: int) -> None:
    found, answer = ask(reader, members)
    assert (found, answer["errorCode"], answer["logId"]) == (status, status, "L")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff"])
def test_invalid_json_is_reported_in_the_envelope(reader: Reader, body: bytes) -> None:
    status, answer = infer(body, reader, 10.0)
    assert (status, json.loads(answer)["errorCode"]) == (422, 422)


def line_of(text: str, *, upright: bool = False) -> Line:
    """A line whose letters are 10 px wide and 20 px tall; `upright` runs from the bottom to the top."""

    def box(begin: int, end: int) -> Box:
        corners = [(10.0 * begin, 0.0), (10.0 * end, 0.0), (10.0 * end, 20.0), (10.0 * begin, 20.0)]
        turned = [(y, 1000.0 - x) for x, y in corners] if upright else corners
        return turned[0], turned[1], turned[2], turned[3]

    letters = [Character(each, 1.0, box(place, place + 1)) for place, each in enumerate(text) if not each.isspace()]
    return Line(text, 1.0, box(0, len(text)), (Word(text, 1.0, box(0, len(text)), tuple(letters)),))


# What `BaseRecLabelDecode.get_word_info` of PaddleX 3.7.2 makes of them, with Chinese taken apart as its pipeline does.
GROUPS = [
    ("Total: 12.50 EUR", ["Total", ": ", "12.50", " ", "EUR"]),
    ("中文abc，12%。", ["中", "文", "abc", "，", "12", "%。"]),
    ("VGG-16 -x v1.a", ["VGG-16", " -", "x", " ", "v1", ".", "a"]),
    ("Ünïcode", ["Ü", "n", "ï", "code"]),
    ("a. 1", ["a", ". ", "1"]),
    (" a ", [" ", "a", " "]),
]


@pytest.mark.parametrize(("text", "groups"), GROUPS)
def test_words_are_grouped_as_paddlex_groups_them(text: str, groups: list[str]) -> None:
    members: Any = to_word_members([line_of(text)])
    assert members["text_word"] == [groups]
    assert [len(boxes) for boxes in members["text_word_boxes"]] == [len(groups)]


@pytest.mark.parametrize(
    ("upright", "boxes"),
    [
        (False, [[0, 0, 20, 20], [20, 0, 30, 20], [30, 0, 50, 20]]),
        (True, [[0, 980, 20, 1000], [0, 970, 20, 980], [0, 950, 20, 970]]),
    ],
)
def test_space_box_fills_the_gap_between_neighbours(upright: bool, boxes: list[list[int]]) -> None:
    assert to_word_members([line_of("ab cd", upright=upright)])["text_word_boxes"] == [boxes]


def test_line_without_character_boxes_is_one_group() -> None:
    known = line_of("ab 1")
    lines = [replace(known, words=None), replace(known, text="** *")]
    assert to_word_members(lines) == {"text_word": [["ab 1"], ["** *"]], "text_word_boxes": [[[0, 0, 40, 20]]] * 2}
