"""Lines of a PDF's own text: parted between the columns of a page and the cells of a table, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from text_layer_pages import mapped, own_lines, page_pdf, text

SIZE = 10.0
DIGIT = 0.556 * SIZE
"""Points that a digit of Helvetica takes."""
COURIER = b"<< /Type /Font /Subtype /Type1 /BaseFont /Courier /Encoding /WinAnsiEncoding >>"


def rows(cells: Sequence[Sequence[str]], lefts: Sequence[float], pitch: float = 14.0) -> bytes:
    """Each cell as a string of its own, its left side at these points."""
    return b"".join(
        text(cell.encode(), left, 180 - pitch * row, SIZE)
        for row, line in enumerate(cells)
        for cell, left in zip(line, lefts, strict=True)
    )


def numbers(count: int, columns: int) -> list[list[str]]:
    return [[str(1234 + 1111 * ((row * columns + column) % 7)) for column in range(columns)] for row in range(count)]


def flat(cells: Sequence[Sequence[str]]) -> list[str]:
    return [cell for row in cells for cell in row]


# Parted


@pytest.mark.parametrize("gap", [0.55, 0.7, 1.0, 1.4])
@pytest.mark.parametrize("mode", ["auto", "only"])
def test_cells_below_each_other_are_lines_however_close_they_stand(gap: float, mode: str) -> None:
    cells = numbers(4, 4)
    lefts = [20 + at * (4 * DIGIT + gap * SIZE) for at in range(4)]
    assert sorted(own_lines(page_pdf(rows(cells, lefts)), mode)) == sorted(flat(cells))


def test_where_a_file_writes_its_blanks_a_narrow_white_without_one_is_between_cells() -> None:
    cells = [["one two", "1234"], ["sun set", "2345"], ["the end", "3456"], ["any one", "4567"]]
    # Of Helvetica's 10 points: 34.5 to 37.2 of the first column's words.
    assert sorted(own_lines(page_pdf(rows(cells, [20, 59])))) == sorted(flat(cells))


def test_numbers_that_end_below_each_other_are_a_column() -> None:
    names, amounts = ["alpha", "be", "gamma!", "delta"], ["7", "81", "6,42", "115"]
    right = b"".join(text(name.encode(), 20, 180 - 14 * row, SIZE) for row, name in enumerate(names))
    for row, amount in enumerate(amounts):
        width = DIGIT * sum(0.5 if sign == "," else 1 for sign in amount)
        right += text(amount.encode(), 86 - width, 180 - 14 * row, SIZE)
    assert sorted(own_lines(page_pdf(right))) == sorted([*names, *amounts])


@pytest.mark.parametrize("gray", [0, 0.7])
@pytest.mark.parametrize("turn", [0, 90, 180, 270])
def test_a_rule_between_two_cells_parts_them_in_a_single_row(gray: float, turn: int) -> None:
    gap = 0.6 * SIZE
    lefts = [40 + at * (4 * DIGIT + gap) for at in range(3)]
    grid = b"%g G 0.5 w " % gray + b"".join(b"%g 90 m %g 106 l S " % (left - gap / 2, left - gap / 2) for left in lefts)
    cells = b"".join(text(cell, left, 95, SIZE) for cell, left in zip((b"1234", b"2345", b"3456"), lefts, strict=True))
    turned = {0: b"1 0 0 1 0 0", 90: b"0 -1 1 0 0 200", 180: b"-1 0 0 -1 200 200", 270: b"0 1 -1 0 200 0"}[turn]
    file = page_pdf(b"q %s cm\n" % turned + grid + cells + b"Q\n")
    assert sorted(own_lines(file)) == ["1234", "2345", "3456"]
    assert own_lines(page_pdf(cells)) == ["1234 2345 3456"]


def on_grounds(words: Sequence[bytes], fills: Sequence[bytes], y: float, gap: float = 6.0, left: float = 20) -> bytes:
    """Words beside each other so many points apart, each in the middle of a ground of its own colour; b"" has none."""
    content = b""
    for word, fill in zip(words, fills, strict=True):
        width = DIGIT * len(word)
        ground = b"%s %g %g %g 14 re f 0 g\n" % (fill, left - gap / 2 + 0.5, y - 4, width + gap - 1) if fill else b""
        content += ground + text(word, left, y, SIZE)
        left += width + gap
    return content


LIGHT, DARKER = b"0.95 g", b"0.8 g"


def test_cells_on_grounds_of_their_own_are_parted_over_rows() -> None:
    cells = numbers(3, 3)
    fills = [LIGHT, DARKER, LIGHT]
    grid = b"".join(on_grounds([cell.encode() for cell in row], fills, 180 - 14 * at) for at, row in enumerate(cells))
    assert sorted(own_lines(page_pdf(grid))) == sorted(flat(cells))


def test_columns_of_text_close_to_each_other_are_parted_though_their_words_stand_as_far_apart() -> None:
    column = b"".join(
        b"BT /F 8 Tf %g Tw %g %g Td (%s) Tj ET\n" % (5.2 - 0.4 * row, left, 180 - 10 * row, line.encode())
        for left in (10, 157)
        for row, line in enumerate(_even_lines())
    )
    assert own_lines(page_pdf(column)) == [*_even_lines(), *_even_lines()]


def _even_lines() -> list[str]:
    """Lines of about the same width when their blanks are 5.2 points wider, 4.8, and so on."""
    return [*["aaaa bbbb cccc dddd eee"] * 2, *["aaaa bbbb cccc dddd eeee"] * 2] * 2


def test_tables_of_hebrew_are_parted_and_read_from_the_right() -> None:
    font, more = mapped({ord("a") + at: chr(0x5D0 + at) for at in range(26)})
    cells = b"".join(text(b"cba", left, 180 - 14 * row, SIZE) for row in range(4) for left in (100, 122))
    assert own_lines(page_pdf(cells, font=font, more=more)) == ["\u05d0\u05d1\u05d2"] * 8


# Not parted


def justified(lines: Sequence[str], width: float, *, has_blanks: bool) -> bytes:
    """Lines that fill so many points; without blanks each word is moved to its place."""
    content = b""
    for row, line in enumerate(lines):
        words = line.split()
        white = (width - DIGIT * sum(map(len, words))) / (len(words) - 1)
        y = 180 - 12 * row
        if has_blanks:
            content += b"BT /F %g Tf %g Tw 20 %g Td (%s) Tj ET\n" % (SIZE, white - 0.278 * SIZE, y, line.encode())
        else:
            shift = -white / SIZE * 1000
            moved = (b" %g " % shift).join(b"(%s)" % word.encode() for word in words)
            content += b"BT /F %g Tf 20 %g Td [%s] TJ ET\n" % (SIZE, y, moved)
    return content


@pytest.mark.parametrize("has_blanks", [True, False])
def test_justified_text_stays_together_where_its_blanks_line_up(has_blanks: bool) -> None:
    lines = ["111 222 3333 44444 5", "66 777 8888 9999 000", "1234 56 78 1234 56789", "12 3456 7890 123 456"]
    lines = [*lines, "1 2345 67890 12 3456", "123 4 567 8901 234567"]
    assert own_lines(page_pdf(justified(lines, 120, has_blanks=has_blanks))) == lines


@pytest.mark.parametrize("fill", [b"0.867 g", b"1 1 0 rg", b"0.02 0.27 0.68 rg", b"0.7 g"])
@pytest.mark.parametrize("marked", [b"678", b"1", b"34567890"])
@pytest.mark.parametrize("gap", [3.6, 5.0, 6.0])
def test_a_word_on_a_ground_of_its_own_stays_in_its_line(fill: bytes, marked: bytes, gap: float) -> None:
    line = on_grounds([b"12345", marked, b"901"], [b"", fill, b""], 150, gap)
    others = b"".join(on_grounds([b"2" * at, b"345"], [b"", b""], 40 + 14 * at, gap) for at in range(3, 6))
    assert own_lines(page_pdf(line + others))[0] == f"12345 {marked.decode()} 901"


def test_a_justified_line_of_few_words_is_one_line() -> None:
    assert own_lines(page_pdf(justified(["111 222 333"], 110, has_blanks=True))) == ["111 222 333"]


@pytest.mark.parametrize("marker", ["%d.", "(%d)", "%d)", "-", "1.%d", "%d"])
def test_what_stands_before_the_items_of_a_list_belongs_to_them(marker: str) -> None:
    markers = [marker % row if "%" in marker else marker for row in range(4)]
    cells = [[before, f"{word} thing"] for before, word in zip(markers, ("a", "the", "my", "no"), strict=True)]
    assert own_lines(page_pdf(rows(cells, [20, 36]))) == [" ".join(row) for row in cells]


def test_numbers_of_rows_are_a_column_where_there_are_others() -> None:
    cells = [[str(row), "1234", "2345"] for row in range(4)]
    assert sorted(own_lines(page_pdf(rows(cells, [20, 32, 62])))) == sorted(flat(cells))


def test_headings_whose_letters_stand_apart_stay_lines() -> None:
    lines = [b"ANNUAL REPORT", b"BY THE OFFICE", b"OF OUR TOWN X"]
    spaced = b"".join(
        b"BT /F 12 Tf 4 Tc 20 %d Td (%s) Tj ET\n" % (180 - 16 * row, line) for row, line in enumerate(lines)
    )
    assert len(own_lines(page_pdf(spaced))) == 3


def test_programs_in_a_font_of_one_width_stay_lines() -> None:
    lines = [f"self.{name}  = {name}[i]" for name in ("alpha", "gamma", "delta", "kappa")]
    code = b"".join(text(line.encode(), 20, 180 - 12 * row, 9) for row, line in enumerate(lines))
    assert len(own_lines(page_pdf(code, font=COURIER))) == 4


def test_chinese_commas_below_each_other_are_neither_a_column_nor_a_blank() -> None:
    font, more = mapped({ord("A"): "\u5e8a", ord("B"): "\u524d", ord(","): "\uff0c"})
    poem = b"".join(
        text(sign.encode(), 20 + 12 * at, 180 - 16 * row) for row in range(6) for at, sign in enumerate("ABAB,BABA")
    )
    verse = "\u5e8a\u524d\u5e8a\u524d\uff0c\u524d\u5e8a\u524d\u5e8a"
    assert own_lines(page_pdf(poem, font=font, more=more), "only") == [verse] * 6
