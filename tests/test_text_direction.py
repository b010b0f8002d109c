"""Right-to-left text: logical and display order of characters, direction, and text of a divided line."""

import numpy as np
import pytest
from support import read_data

from ocrsvc.imaging.tables.find_tables import divide_lines, join_pieces
from ocrsvc.imaging.text_direction import logical_order, runs_from_right_to_left, visual_order

# Logical texts with their display order in a browser (UAX #9), in a right-to-left paragraph, or left-to-right if most
# letters are Latin.
SHOWN: dict[str, str] = read_data("right_to_left.json")["display order by logical text"]


@pytest.mark.parametrize("logical", SHOWN)
def test_display_order_becomes_logical_order(logical: str) -> None:
    order, characters = logical_order(list(SHOWN[logical]))
    assert "".join(characters) == logical
    assert sorted(order) == list(range(len(logical)))
    # Converting to display order and back restores the text.
    assert "".join(logical_order(visual_order(logical))[1]) == logical


def test_brackets_in_logical_form_stay_unchanged() -> None:
    """A recognizer trained on logical text returns brackets by meaning, so their shapes must not be mirrored."""
    assert "".join(logical_order(list("ןאכ )גבא( ךרע"))[1]) == "ערך (אבג) כאן"
    # A character of several letters is not split or reversed.
    assert logical_order(["ם", "לו", "ש"]) == ([2, 1, 0], ["ש", "לו", "ם"])


@pytest.mark.parametrize(("text", "direction"), [("שלום a", True), ("של hello", False), ("12 +", None), ("", None)])
def test_the_majority_of_letters_determines_the_direction(text: str, direction: bool | None) -> None:
    assert runs_from_right_to_left(text) is direction


def test_pieces_of_a_divided_hebrew_line_have_their_text() -> None:
    ink = np.zeros((30, 400), np.uint8)
    ink[5:25, 0:100] = ink[5:25, 250:400] = 1
    texts = ["שלום עולם"]
    pieces = divide_lines(texts, np.array([[0, 0, 400, 30]], np.float32), ink, 30.0)
    assert [(texts[0][one.begin : one.end].strip(), one.frame[0]) for one in pieces] == [("שלום", 250.0), ("עולם", 0.0)]
    assert join_pieces(sorted(pieces, key=lambda one: one.frame[0]), texts) == "שלום עולם"
