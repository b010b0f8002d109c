"""Text from right to left and in columns: the order of characters, words, pieces of tables, and lines of a page."""

import numpy as np
import pytest
from support import read_data

from ocrsvc.imaging.tables.find_tables import divide_lines, join_pieces
from ocrsvc.imaging.text_direction import logical_order, runs_from_right_to_left, visual_order

# Each logical text, and how a browser shows it in a paragraph from right to left (or from left to right, where most
# letters are Latin), by UAX #9. Small letters are Latin; Hebrew ones are written out.
SHOWN: dict[str, str] = read_data("right_to_left.json")["shown, by what it means"]


@pytest.mark.parametrize("logical", SHOWN)
def test_display_order_becomes_logical_order(logical: str) -> None:
    order, characters = logical_order(list(SHOWN[logical]))
    assert "".join(characters) == logical
    assert sorted(order) == list(range(len(logical)))
    # What is turned to be shown turns back to be read.
    assert "".join(logical_order(visual_order(logical))[1]) == logical


def test_brackets_in_logical_form_stay_unchanged() -> None:
    """The shapes are those of the table above, mirrored: as a recognizer gives them that learnt the written signs."""
    assert "".join(logical_order(list("ןאכ )גבא( ךרע"))[1]) == "ערך (אבג) כאן"
    # Characters that are several letters stay whole.
    assert logical_order(["ם", "לו", "ש"]) == ([2, 1, 0], ["ש", "לו", "ם"])


@pytest.mark.parametrize(("text", "direction"), [("שלום a", True), ("של hello", False), ("12 +", None), ("", None)])
def test_the_majority_of_letters_gives_the_direction(text: str, direction: bool | None) -> None:
    assert runs_from_right_to_left(text) is direction


def test_pieces_of_a_hebrew_line_have_their_own_text() -> None:
    ink = np.zeros((30, 400), np.uint8)
    ink[5:25, 0:100] = ink[5:25, 250:400] = 1
    texts = ["שלום עולם"]
    pieces = divide_lines(texts, np.array([[0, 0, 400, 30]], np.float32), ink, 30.0)
    assert [(texts[0][one.begin : one.end].strip(), one.frame[0]) for one in pieces] == [("שלום", 250.0), ("עולם", 0.0)]
    assert join_pieces(sorted(pieces, key=lambda one: one.frame[0]), texts) == "שלום עולם"
