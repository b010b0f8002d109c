"""Lines of Arabic and Hebrew, from the order on the page to the order in which they are read."""

from __future__ import annotations

import numpy as np
import pytest

from ocrsvc.engines.line_recognizer import LineText, Path
from ocrsvc.engines.ppocr.pipeline.logical_order import in_logical_order, logical_order, runs_from_right_to_left

# Each logical text, and how a browser shows it in a paragraph from right to left (or from left to right, where most
# letters are Latin), by UAX #9. Small letters are Latin; Hebrew ones are written out.
SHOWN = {
    "שלום": "םולש",
    "שלום עולם": "םלוע םולש",
    "12": "12",
    "plain text 12": "plain text 12",
    "עמוד 12": "12 דומע",
    "עמוד 12.50 מתוך 100": "100 ךותמ 12.50 דומע",
    "ב 3/4 כוסות": "תוסוכ 3/4 ב",
    "מחיר 5% או $3": "$3 וא 5% ריחמ",
    "אני גר ב new york city היום": "םויה new york city ב רג ינא",
    "קניתי iphone 15 אתמול בערב": "ברעב לומתא iphone 15 יתינק",
    "ערך (abc) כאן אחרי": "ירחא ןאכ (abc) ךרע",
    "ערך (אבג) כאן": "ןאכ (גבא) ךרע",
    "ערך [א] «ב»": "«ב» [א] ךרע",
    "רשימה 1, 2, 3": "3 ,2 ,1 המישר",
    "the word שלום is hebrew": "the word םולש is hebrew",
    "the two words שלום עולם are hebrew": "the two words םלוע םולש are hebrew",
    "السعر ١٢٣ ريال": "لاير ١٢٣ رعسلا",
}


@pytest.mark.parametrize("logical", SHOWN)
def test_a_line_as_it_is_shown_becomes_the_text_that_was_written(logical: str) -> None:
    order, characters = logical_order(list(SHOWN[logical]))

    assert "".join(characters) == logical
    assert sorted(order) == list(range(len(logical)))


def test_brackets_that_a_recognizer_gives_as_they_were_written_stay_so() -> None:
    """The shapes are those of the table above, mirrored: as a recognizer gives them that learnt the written signs."""
    assert "".join(logical_order(list("ןאכ )גבא( ךרע"))[1]) == "ערך (אבג) כאן"


def test_characters_that_are_several_letters_stay_whole() -> None:
    assert logical_order(["ם", "לו", "ש"]) == ([2, 1, 0], ["ש", "לו", "ם"])


def test_the_places_of_characters_follow_their_text() -> None:
    places = np.arange(5)
    path = Path(list("12 בא"), places, places, 5, 0.5, places / 10)

    line = in_logical_order(LineText("12 בא", 0.5, path))

    assert line.text == "אב 12"
    assert line.path is not None
    assert line.path.characters == list("אב 12")
    assert line.path.first.tolist() == [4, 3, 2, 0, 1]
    assert line.path.probabilities.tolist() == [0.4, 0.3, 0.2, 0.0, 0.1]


@pytest.mark.parametrize(("text", "direction"), [("שלום a", True), ("של hello", False), ("12 +", None), ("", None)])
def test_most_letters_say_how_a_text_runs(text: str, direction: bool | None) -> None:
    assert runs_from_right_to_left(text) is direction
