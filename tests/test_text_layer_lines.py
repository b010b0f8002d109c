"""Lines of a PDF's text layer: split only between columns and cells, and ignored where something covers them."""

from collections.abc import Sequence

import pytest
from documents import stream
from text_layer_pages import image, mapped, own_lines, page_pdf, text, with_image

SIZE = 10.0
DIGIT = 0.556 * SIZE
"""The width of a digit in Helvetica, in points."""
COURIER = b"<< /Type /Font /Subtype /Type1 /BaseFont /Courier /Encoding /WinAnsiEncoding >>"
SENTENCE = "The quick brown fox jumps over the lazy dog."
OWN = text(SENTENCE.encode())
IMAGE = image()


def rows(cells: Sequence[Sequence[str]], lefts: Sequence[float]) -> bytes:
    return b"".join(
        text(cell.encode(), left, 180 - 14 * row, SIZE)
        for row, line in enumerate(cells)
        for cell, left in zip(line, lefts, strict=True)
    )


def below(lines: Sequence[str], pitch: float = 12, size: float = SIZE) -> bytes:
    return b"".join(text(line.encode(), 20, 180 - pitch * row, size) for row, line in enumerate(lines))


def numbers(count: int, columns: int) -> list[list[str]]:
    return [[str(1234 + 1111 * ((row * columns + column) % 7)) for column in range(columns)] for row in range(count)]


def flat(cells: Sequence[Sequence[str]]) -> list[str]:
    return [cell for row in cells for cell in row]


@pytest.mark.parametrize("gap", [0.55, 0.7, 1.0, 1.4])
@pytest.mark.parametrize("mode", ["auto", "only"])
def test_close_cells_in_aligned_rows_are_separate_lines(gap: float, mode: str) -> None:
    cells = numbers(4, 4)
    lefts = [20 + at * (4 * DIGIT + gap * SIZE) for at in range(4)]
    assert sorted(own_lines(page_pdf(rows(cells, lefts)), mode)) == sorted(flat(cells))


WORDS_AND_NUMBERS = [["one two", "1234"], ["sun set", "2345"], ["the end", "3456"], ["any one", "4567"]]
NUMBERED = [[str(row), "1234", "2345"] for row in range(4)]


@pytest.mark.parametrize(
    ("cells", "lefts"),
    [
        # The first column's text is 34.5 to 37.2 points wide; the second column begins after 39 points.
        pytest.param(WORDS_AND_NUMBERS, [20, 59], id="a narrow gap without a space"),
        pytest.param(NUMBERED, [20, 32, 62], id="row numbers beside other columns"),
    ],
)
def test_close_cells_are_split(cells: Sequence[Sequence[str]], lefts: Sequence[float]) -> None:
    assert sorted(own_lines(page_pdf(rows(cells, lefts)))) == sorted(flat(cells))


def test_right_aligned_numbers_are_a_column() -> None:
    names, amounts = ["alpha", "be", "gamma!", "delta"], ["7", "81", "6,42", "115"]
    right = below(names, 14)
    for row, amount in enumerate(amounts):
        width = DIGIT * sum(0.5 if character == "," else 1 for character in amount)
        right += text(amount.encode(), 86 - width, 180 - 14 * row, SIZE)
    assert sorted(own_lines(page_pdf(right))) == sorted([*names, *amounts])


@pytest.mark.parametrize("gray", [0, 0.7])
@pytest.mark.parametrize("turn", [b"1 0 0 1 0 0", b"0 -1 1 0 0 200", b"-1 0 0 -1 200 200", b"0 1 -1 0 200 0"])
def test_a_rule_splits_the_cells_of_a_single_row(gray: float, turn: bytes) -> None:
    gap = 0.6 * SIZE
    lefts = [40 + at * (4 * DIGIT + gap) for at in range(3)]
    grid = b"%g G 0.5 w " % gray + b"".join(b"%g 90 m %g 106 l S " % (left - gap / 2, left - gap / 2) for left in lefts)
    cells = b"".join(text(cell, left, 95, SIZE) for cell, left in zip((b"1234", b"2345", b"3456"), lefts, strict=True))
    assert sorted(own_lines(page_pdf(b"q %s cm\n" % turn + grid + cells + b"Q\n"))) == ["1234", "2345", "3456"]
    assert own_lines(page_pdf(cells)) == ["1234 2345 3456"]


def word_row(words: Sequence[bytes], fills: Sequence[bytes], y: float, gap: float = 6.0, left: float = 20) -> bytes:
    """Words in a row, `gap` points apart, each centred on an area of its colour; b"" draws no area."""
    content = b""
    for word, fill in zip(words, fills, strict=True):
        width = DIGIT * len(word)
        area = b"%s %g %g %g 14 re f 0 g\n" % (fill, left - gap / 2 + 0.5, y - 4, width + gap - 1) if fill else b""
        content += area + text(word, left, y, SIZE)
        left += width + gap
    return content


def test_cells_with_own_backgrounds_are_split_over_several_rows() -> None:
    cells, fills = numbers(3, 3), [b"0.95 g", b"0.8 g", b"0.95 g"]
    grid = b"".join(word_row([cell.encode() for cell in row], fills, 180 - 14 * at) for at, row in enumerate(cells))
    assert sorted(own_lines(page_pdf(grid))) == sorted(flat(cells))


def test_close_text_columns_are_split_despite_equally_wide_spaces() -> None:
    # Each line's spaces are 0.4 points narrower than those of the line before.
    lines = [*["aaaa bbbb cccc dddd eee"] * 2, *["aaaa bbbb cccc dddd eeee"] * 2] * 2
    column = b"".join(
        b"BT /F 8 Tf %g Tw %g %g Td (%s) Tj ET\n" % (5.2 - 0.4 * row, left, 180 - 10 * row, line.encode())
        for left in (10, 157)
        for row, line in enumerate(lines)
    )
    assert own_lines(page_pdf(column)) == [*lines, *lines]


def test_hebrew_tables_are_split_and_read_from_the_right() -> None:
    font, more = mapped({ord("a") + at: chr(0x5D0 + at) for at in range(26)})
    assert own_lines(page_pdf(rows([["cba"] * 2] * 4, [100, 122]), font=font, more=more)) == ["\u05d0\u05d1\u05d2"] * 8


def justified(lines: Sequence[str], width: float, *, has_spaces: bool) -> bytes:
    """Lines justified to a width in points; without spaces, each word is moved to its position."""
    content = b""
    for row, line in enumerate(lines):
        words = line.split()
        white = (width - DIGIT * sum(map(len, words))) / (len(words) - 1)
        y = 180 - 12 * row
        if has_spaces:
            content += b"BT /F %g Tf %g Tw 20 %g Td (%s) Tj ET\n" % (SIZE, white - 0.278 * SIZE, y, line.encode())
        else:
            moved = (b" %g " % (-white / SIZE * 1000)).join(b"(%s)" % word.encode() for word in words)
            content += b"BT /F %g Tf 20 %g Td [%s] TJ ET\n" % (SIZE, y, moved)
    return content


JUSTIFIED = ["111 222 3333 44444 5", "66 777 8888 9999 000", "1234 56 78 1234 56789", "12 3456 7890 123 456"]
JUSTIFIED += ["1 2345 67890 12 3456", "123 4 567 8901 234567"]
POEM = "\u5e8a\u524d\u5e8a\u524d\uff0c\u524d\u5e8a\u524d\u5e8a"
CHINESE = mapped({ord("A"): "\u5e8a", ord("B"): "\u524d", ord(","): "\uff0c"})


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (justified(JUSTIFIED, 120, has_spaces=True), JUSTIFIED),
        (justified(JUSTIFIED, 120, has_spaces=False), JUSTIFIED),
        (justified(["111 222 333"], 110, has_spaces=True), ["111 222 333"]),
    ],
    ids=["with spaces", "without spaces", "few words"],
)
def test_justified_text_stays_whole_where_its_spaces_line_up(content: bytes, lines: list[str]) -> None:
    assert own_lines(page_pdf(content)) == lines


@pytest.mark.parametrize("fill", [b"0.867 g", b"1 1 0 rg", b"0.02 0.27 0.68 rg", b"0.7 g"])
@pytest.mark.parametrize("marked", [b"678", b"1", b"34567890"])
@pytest.mark.parametrize("gap", [3.6, 5.0, 6.0])
def test_a_highlighted_word_stays_in_its_line(fill: bytes, marked: bytes, gap: float) -> None:
    line = word_row([b"12345", marked, b"901"], [b"", fill, b""], 150, gap)
    others = b"".join(word_row([b"2" * at, b"345"], [b"", b""], 40 + 14 * at, gap) for at in range(3, 6))
    assert own_lines(page_pdf(line + others))[0] == f"12345 {marked.decode()} 901"


@pytest.mark.parametrize("marker", ["%d.", "(%d)", "%d)", "-", "1.%d", "%d"])
def test_list_markers_stay_with_their_items(marker: str) -> None:
    markers = [marker % row if "%" in marker else marker for row in range(4)]
    cells = [[before, f"{word} thing"] for before, word in zip(markers, ("a", "the", "my", "no"), strict=True)]
    assert own_lines(page_pdf(rows(cells, [20, 36]))) == [" ".join(row) for row in cells]


def test_spaced_headings_programs_and_poems_stay_whole() -> None:
    lines = ["ANNUAL REPORT", "BY THE OFFICE", "OF OUR TOWN X"]
    assert len(own_lines(page_pdf(b"4 Tc " + below(lines, 16, 12)))) == 3
    program = [f"self.{name}  = {name}[i]" for name in ("alpha", "gamma", "delta", "kappa")]
    assert len(own_lines(page_pdf(below(program, size=9), font=COURIER))) == 4
    # Chinese commas below each other are neither a column nor a space.
    poems = b"".join(
        text(name.encode(), 20 + 12 * at, 180 - 16 * row) for row in range(6) for at, name in enumerate("ABAB,BABA")
    )
    font, more = CHINESE
    assert own_lines(page_pdf(poems, font=font, more=more), "only") == [POEM] * 6


def form(content: bytes, head: bytes, inner: bytes) -> bytes:
    resources = b"/Resources << /XObject << /I 60 0 R %s >> /Font << /F 3 0 R >> >>" % inner
    return stream(content, b"/Type /XObject /Subtype /Form /BBox [0 0 300 200] %s %s" % (head, resources))


def page_with_forms(page: bytes, content: bytes = IMAGE, head: bytes = b"", depth: int = 1) -> bytes:
    """A page that draws the form /X; the content is nested `depth` forms deep."""
    more: dict[int, bytes] = dict(with_image(bytes([90, 160]) * 100, 20, 10)["more"])  # type: ignore[call-overload]
    for number in range(depth):
        is_last = number == depth - 1
        inner = b"" if is_last else b"/X %d 0 R" % (81 + number)
        more[80 + number] = form(content if is_last else b"/X Do\n", head if is_last else b"", inner)
    return page_pdf(page, more=more, resources=b"/XObject << /X 80 0 R /I 60 0 R >> /ExtGState << /T << /ca 0.3 >> >>")


@pytest.mark.parametrize(
    "file",
    [
        *(page_with_forms(OWN + b"/X Do\n", depth=depth) for depth in (1, 2, 5)),
        page_with_forms(b"/X Do\n", OWN + IMAGE),
    ],
    ids=["in a form", "in two forms", "in five forms", "both in a form"],
)
def test_text_below_an_image_is_ignored(file: bytes) -> None:
    assert own_lines(file) == []


BAR = b"q %s 0 140 128 25 re f Q\n"
SEEN = {
    "above the image": page_with_forms(b"/X Do\n" + OWN),
    "above the image of one form": page_with_forms(b"/X Do\n", IMAGE + OWN),
    "beside a moved image": page_with_forms(OWN + b"q 1 0 0 1 0 -80 cm /X Do Q\n"),
    "beside a small image": page_with_forms(OWN + b"q 0.5 0 0 0.5 0 0 cm /X Do Q\n"),
    "beside a clipped image": page_with_forms(OWN + b"q 0 0 300 100 re W n /X Do Q\n"),
    "beside an image that its form moves": page_with_forms(OWN + b"/X Do\n", head=b"/Matrix [1 0 0 1 0 -80]"),
    "beside an image that its form clips": page_with_forms(OWN + b"/X Do\n").replace(
        b"/BBox [0 0 300 2", b"/BBox [0 0 300 1"
    ),
    "above a bar": page_pdf(BAR % b"0.9 g" + OWN),
    "below a transparent bar": page_with_forms(OWN + BAR % b"/T gs"),
    "below a transparent image": page_with_forms(OWN + b"q /T gs 300 0 0 200 0 0 cm /I Do Q\n"),
    "below a triangle": page_pdf(OWN + b"0.8 g 0 100 m 128 100 l 128 152 l h f\n"),
}


@pytest.mark.parametrize("kind", SEEN)
def test_visible_text_is_used(kind: str) -> None:
    assert own_lines(SEEN[kind]) == [SENTENCE]


@pytest.mark.parametrize("colour", [b"0 g", b"1 g", b"1 0 0 rg"])
def test_words_below_an_opaque_rectangle_are_ignored(colour: bytes) -> None:
    assert own_lines(page_pdf(OWN + BAR % colour)) == ["jumps over the lazy dog."]
    assert own_lines(page_with_forms(OWN + b"/X Do\n", BAR % colour)) == ["jumps over the lazy dog."]
