"""Draws pages with known reading order: running text, charts, pictures, tables, forms, lists, frames."""

from collections.abc import Callable, Sequence
from functools import partial
from inspect import isfunction
from typing import TypeGuard

from order_sheet import LEADING, LEFT, RIGHT, TOP, Sheet, chart, header, title

SIZE = 19.0

Draw = Callable[[Sheet], None]
# Running text, charts and pictures


def _columns(sheet: Sheet, count: int, top: float, bottom: float, size: float = 20) -> None:
    gutter = size * sheet.random.uniform(1.2, 2.5)
    width = (RIGHT - LEFT - gutter * (count - 1)) / count
    for number in range(count):
        shift = sheet.random.choice([0, 0, sheet.random.uniform(0, 14)])
        sheet.text_column(LEFT + number * (width + gutter), top + shift, width, size, bottom)


def _title_over_columns(count: int, sheet: Sheet) -> None:
    top = title(sheet, header(sheet))
    _columns(sheet, count, top, 1450)
    sheet.put_centered(str(sheet.random.randint(2, 90)), (LEFT + RIGHT) / 2, 1520, 18)


def columns_under_headings(sheet: Sheet) -> None:
    top = title(sheet, TOP)
    _columns(sheet, 2, top, 700)
    sheet.put(sheet.words(8, 10).capitalize(), LEFT, 760, 30)
    _columns(sheet, 3, 840, 1480)


def chart_in_text(sheet: Sheet) -> None:
    bottom = sheet.text_column(LEFT, header(sheet), RIGHT - LEFT, 21, 550)
    bottom = chart(sheet, LEFT + 100, bottom + 20, 800, 420)
    sheet.put_centered("Figure " + sheet.words(4, 8), (LEFT + RIGHT) / 2, bottom, 18)
    sheet.text_column(LEFT, bottom + 60, RIGHT - LEFT, 21, 1480)


def figures_in_columns(sheet: Sheet) -> None:
    """Two columns; a chart interrupts the left one, an empty figure with a caption the right one."""
    top, width = header(sheet), 490.0
    bottom = sheet.text_column(LEFT, top, width, 19, 600)
    bottom = chart(sheet, LEFT + 20, bottom + 20, width - 40, 260)
    bottom = sheet.paragraph(LEFT, bottom, width, 16, 2) + 30
    sheet.text_column(LEFT, bottom, width, 19, 1480)
    left = LEFT + width + 36
    bottom = sheet.text_column(left, top, width, 19, 350) + 300
    bottom = sheet.paragraph(left, bottom, width, 16, 2) + 30
    sheet.text_column(left, bottom, width, 19, 1480)


def four_text_pages_on_a_sheet(sheet: Sheet) -> None:
    for number in range(4):
        left, top = LEFT + number % 2 * 540, 80 + number // 2 * 770
        sheet.put(sheet.words(2, 3).capitalize(), left, top, 24)
        sheet.text_column(left, top + 50, 460, 16, top + 600)
        sheet.put_centered(str(number + 1), left + 230, top + 630, 15)


def two_pages_on_a_sheet(sheet: Sheet) -> None:
    for number in range(2):
        left = LEFT + number * 545
        sheet.put(sheet.words(1, 2), left, TOP, 17)
        sheet.put_right(str(number + 44), left + 470, TOP, 17)
        sheet.text_column(left, TOP + 60, 470, 19, 1480)


def sidebar_right(sheet: Sheet) -> None:
    top = title(sheet, header(sheet))
    sheet.text_column(LEFT, top, 680, 21, 1480)
    sheet.put(sheet.words(1, 2).capitalize(), 820, top + 6, 24)
    sheet.text_column(820, top + 55, 290, 16, 1150)


def sidebar_left(sheet: Sheet) -> None:
    """A web page: a list of short links on the left, an article on the right, a footer below both."""
    top = title(sheet, TOP)
    y = top + 10
    for _ in range(22):
        sheet.put(sheet.words(1, 2).capitalize(), LEFT, y, 18)
        y += 34
    sheet.put(sheet.words(4, 5).capitalize(), 360, top, 32)
    sheet.text_column(360, top + 60, 750, 20, 1420)
    sheet.put_centered(sheet.words(6, 9), (LEFT + RIGHT) / 2, 1520, 15)


def vertical_chinese(sheet: Sheet) -> None:
    sheet.chinese = True
    left = 1040.0
    for number in range(20):
        length = 34 if number % 6 else 16
        sheet.put_down("".join(sheet.full_line(length * 36.0, 36)), left, 150, 36)
        left -= 50


def mixed_languages(sheet: Sheet) -> None:
    top = title(sheet, TOP)
    sheet.chinese = True
    sheet.text_column(LEFT, top, 490, 21, 1480, 1.5)
    sheet.chinese = False
    sheet.text_column(625, top, 485, 19, 1480)


def footnotes_and_captions(sheet: Sheet) -> None:
    top = header(sheet)
    _columns(sheet, 2, top, 480, 19)
    sheet.put_centered("Table " + sheet.words(9, 12), (LEFT + RIGHT) / 2, 530, 18)
    sheet.table(LEFT + 80, 575, (260, 120, 120, 120, 120), 8, 18, 1.6)
    _columns(sheet, 2, 860, 1300, 19)
    sheet.paragraph(LEFT, 1400, RIGHT - LEFT, 15, 3)


def text_around_a_figure(sheet: Sheet) -> None:
    top = sheet.text_column(LEFT, header(sheet), RIGHT - LEFT, 20, 450)
    sheet.text_column(LEFT, top, 520, 20, 900)
    sheet.paragraph(680, 860, 420, 15, 2)
    sheet.text_column(LEFT, 930, RIGHT - LEFT, 20, 1480)


def slide(sheet: Sheet) -> None:
    sheet.put(sheet.words(3, 5).capitalize(), LEFT, 100, 56)
    for left, size in ((LEFT, 26.0), (640.0, 24.0)):
        sheet.put(sheet.words(2, 3).capitalize(), left, 240, 34)
        y = 310.0
        for _ in range(sheet.random.randint(5, 8)):
            y = sheet.paragraph(left, y, 470, size, sheet.random.randint(1, 3)) + 18


def newspaper(sheet: Sheet) -> None:
    """A headline over two of three columns; the third column starts at the top."""
    top = header(sheet)
    sheet.put(sheet.words(4, 4).capitalize()[:32], LEFT, top, 40)
    width = 320.0
    sheet.text_column(LEFT, top + 80, width, 18, 1480)
    sheet.text_column(LEFT + width + 30, top + 80, width, 18, 1480)
    sheet.text_column(LEFT + 2 * (width + 30), top, width, 18, 1480)


def comic(sheet: Sheet) -> None:
    """Two rows of panels with speech balloons; each balloon is read as a whole."""
    for top in (150.0, 800.0):
        for left, lower in zip((LEFT + 40, 460.0, 850.0), sheet.random.sample((0, 9, 18), 3), strict=True):
            y = top + lower
            for _ in range(sheet.random.randint(3, 5)):
                sheet.put_centered(sheet.words(1, 3)[:20], left + 110, y, 22)
                y += 27


# Tables, forms, lists and numbered lines


def tables_in_the_right_column(sheet: Sheet) -> None:
    top = title(sheet, header(sheet))
    sheet.text_column(LEFT, top, 500, 19, 1400)
    for _ in range(3):
        sheet.put("Table " + sheet.words(3, 5), 630, top, 19)
        top = sheet.table(630, top + 36, (180, 100, 100, 100), 9, 17, 1.55) + 30


def table_in_the_left_column(sheet: Sheet) -> None:
    top = title(sheet, TOP)
    sheet.table(LEFT, top, (220, 90, 90, 90, 90), 50, 15, 1.6)
    left = LEFT + 605
    sheet.put(sheet.words(2, 3).capitalize(), left, top + 8, 20)
    bottom = sheet.paragraph(left, top + 45, RIGHT - left, 18, 5) + 40
    bottom = sheet.table(left, bottom, (240, 150), 3, 18, 1.8, heads=False) + 40
    bottom = sheet.paragraph(left, bottom, RIGHT - left, 18, 4) + 40
    chart(sheet, left, bottom, RIGHT - left, 300)


def _transcript(sheet: Sheet, left: float, top: float, width: float, height: float, number: int) -> None:
    size = 15.0
    sheet.put_right(f"Page {number}", left + width, top, size)
    pitch = (height - 40) / 25
    for row in range(25):
        y = top + 40 + row * pitch
        sheet.put_right(str(row + 1), left + 25, y, size)
        text = sheet.full_line((width - 60) * sheet.random.choice([0.4, 0.7, 1, 1, 1]), size)
        sheet.put(text, left + 50, y, size)


def four_pages_on_a_sheet(sheet: Sheet) -> None:
    for number in range(4):
        _transcript(sheet, LEFT + number % 2 * 540, 100 + number // 2 * 760, 450, 620, 17 + number)


def form(sheet: Sheet) -> None:
    top = title(sheet, TOP)
    for _ in range(14):
        for left in (LEFT, 640):
            label = "标签信息"[: sheet.random.randint(2, 4)] if sheet.chinese else sheet.words(1, 2).capitalize()
            sheet.put(label + ":", left, top, 20)
            sheet.put(sheet.words(1, 2), left + 240, top, 20)
        top += 48
    sheet.paragraph(LEFT, top + 30, RIGHT - LEFT, 18, 4)


def form_of_one_pair(sheet: Sheet) -> None:
    top = title(sheet, TOP)
    for _ in range(16):
        sheet.put(sheet.words(1, 3).capitalize() + ":", LEFT, top, 20)
        sheet.put(sheet.words(2, 4), 480, top, 20)
        top += 46
    sheet.put("Signature", LEFT, top + 60, 18)
    sheet.put("Date", 760, top + 60, 18)


def boxed_form(sheet: Sheet) -> None:
    top = title(sheet, TOP)
    for _ in range(7):
        for number in range(5):
            sheet.put(sheet.word().capitalize(), LEFT + number * 210, top, 15)
        for number in range(5):
            sheet.put(sheet.word().upper() if number % 2 else sheet.number(3), LEFT + number * 210, top + 30, 19)
        top += 86


def _receipt_head(sheet: Sheet, middle: float, most_words: int, pitch: float) -> float:
    """Draw the three lines at the head of a receipt; returns the top of the next line."""
    for row in range(3):
        sheet.put_centered(sheet.words(2, most_words), middle, TOP + row * pitch, 22)
    return TOP + 3 * pitch


def _priced(sheet: Sheet, name: str, left: float, right: float, top: float, size: float) -> None:
    sheet.put(name, left, top, size)
    sheet.put_right(sheet.number(3), right, top, size)


def receipt(sheet: Sheet) -> None:
    left, right = 300.0, 800.0
    top = _receipt_head(sheet, (left + right) / 2, 4, 34) + 20
    for _ in range(14):
        _priced(sheet, sheet.words(1, 4)[:24], left, right, top, 22)
        top += 30
    for name in ("Subtotal", "Tax 6%", "TOTAL", "Cash", "Change"):
        _priced(sheet, name, left, right, top + 12, 24)
        top += 34
    sheet.put_centered(sheet.words(3, 5), (left + right) / 2, top + 50, 22)


def table(sheet: Sheet) -> None:
    top = sheet.text_column(LEFT, header(sheet), RIGHT - LEFT, 20, 400)
    top = sheet.table(LEFT, top + 30, (320, 140, 140, 140, 140, 140), 24, 19, 1.5)
    sheet.text_column(LEFT, top + 40, RIGHT - LEFT, 20, 1480)


def table_of_words(sheet: Sheet) -> None:
    top = title(sheet, TOP)
    for _ in range(26):
        for left in (LEFT, 370.0, 720.0):
            sheet.put(sheet.words(1, 3)[:22], left, top, 20)
        top += 42


def table_of_paragraphs(sheet: Sheet) -> None:
    """A table with multi-line cells; each cell is read as a whole."""
    top = title(sheet, TOP)
    size = 18.0
    for _ in range(9):
        rows = [1, sheet.random.randint(1, 2), sheet.random.randint(1, 4)]
        most = max(rows)
        for left, width, count in zip((LEFT, 330.0, 620.0), (200.0, 250.0, 480.0), rows, strict=True):
            middle = top + (most - count) * 0.5 * 1.3 * size
            for row in range(count):
                sheet.put(sheet.full_line(width * (1 if row < count - 1 else 0.6), size), left, middle, size)
                middle += 1.3 * size
        top += most * 1.3 * size + 24


def tables_side_by_side(sheet: Sheet) -> None:
    top = header(sheet)
    for left in (LEFT, 680.0):
        sheet.put(sheet.words(2, 3).capitalize(), left, top, 22)
        sheet.table(left, top + 50, (160, 90, 90, 90), 30, 17, 1.5)


def stock_tables(sheet: Sheet) -> None:
    top = title(sheet, TOP)
    for left in (LEFT, 640.0):
        sheet.table(left, top, (150, 80, 80, 80, 80), 60, 14, 1.4)


def invoice(sheet: Sheet) -> None:
    sheet.put(sheet.words(2, 2).upper(), LEFT, TOP, 34)
    for left in (LEFT, 700.0):
        sheet.put("Bill to" if left == LEFT else "Ship to", left, 190, 18)
        for row in range(4):
            sheet.put(sheet.words(2, 3).capitalize(), left, 222 + row * 25, 19)
    top = sheet.table(LEFT, 420, (500, 160, 160, 160), 12, 20, 1.9)
    for name in ("Subtotal", "Tax", "Total"):
        _priced(sheet, name, 760, LEFT + 980, top + 20, 20)
        top += 38
    for left in (LEFT, 440.0, 790.0):
        for row in range(6):
            sheet.put(sheet.words(2, 3).capitalize(), left, 1350 + row * 20, 15)


def numbered_lines(sheet: Sheet) -> None:
    top = header(sheet)
    for row in range(44):
        sheet.put_right(str(row + 1), LEFT + 30, top, 18)
        left = LEFT + 60 + 36 * sheet.random.randint(0, 3)
        sheet.put(sheet.words(1, 8), left, top, 18)
        top += 29


def definitions(sheet: Sheet) -> None:
    top = title(sheet, TOP)
    for _ in range(9):
        sheet.put(sheet.words(1, 2).capitalize(), LEFT, top, 20)
        top = sheet.paragraph(380, top, RIGHT - 380, 20, sheet.random.randint(2, 5)) + 24


def index(sheet: Sheet) -> None:
    top = title(sheet, TOP)
    for left in (LEFT, 450.0, 810.0):
        for row in range(36):
            sheet.put(f"{sheet.words(1, 2)}, {sheet.random.randint(1, 300)}", left, top + row * 30, 19)


def menu(sheet: Sheet) -> None:
    top = title(sheet, TOP)
    for left in (LEFT, 660.0):
        y = top + sheet.random.choice([0, 11])
        for row in range(24):
            if row % 8 == 0:
                sheet.put(sheet.words(1, 2).upper(), left, y, 26)
            else:
                sheet.put(sheet.words(1, 3).capitalize(), left, y, 20)
                sheet.put_right(str(sheet.random.randint(5, 60)), left + 440, y, 20)
            y += 46 if row % 8 == 0 else 40


# Multi-line cells: ruled tables, frames, lists of goods, blocks side by side


def _price(sheet: Sheet) -> str:
    return f"{sheet.random.uniform(1, 900):,.2f}"


def _ruled_table(
    sheet: Sheet, top: float, widths: Sequence[float], rows: Sequence[Sequence[str]], align: float
) -> float:
    """Draw a ruled table, its text aligned to the top (0), middle (0.5) or bottom (1) of cells; returns its end."""
    pad = sheet.random.choice([6, 10, 14])
    for row in rows:
        cells = [sheet.wrapped(text, width - 2 * pad, SIZE) for text, width in zip(row, widths, strict=True)]
        height = max(map(len, cells)) * LEADING * SIZE + 2 * pad
        left = LEFT
        for cell, width in zip(cells, widths, strict=True):
            sheet.frame(left, top, left + width, top + height)
            sheet.stack(cell, left + pad, top + pad + align * (height - 2 * pad - len(cell) * LEADING * SIZE), SIZE)
            left += width
        top += height
    return top + 40


def ruled_table_with_merged_heads(sheet: Sheet) -> None:
    """A head over every two columns, column names, and multi-line row names beside numbers."""
    top = title(sheet, TOP)
    count, pad, height = sheet.random.randint(2, 3), 8.0, LEADING * SIZE + 16
    first, width = 260.0, 130.0
    sheet.frame(LEFT, top, LEFT + first, top + 2 * height)
    sheet.put(sheet.word(), LEFT + pad, top + pad + height / 2, SIZE)
    for head in range(count):
        left = LEFT + first + 2 * width * head
        sheet.frame(left, top, left + 2 * width, top + height)
        sheet.put_centered(sheet.word(), left + width, top + pad, SIZE)
    for column in range(2 * count):
        left = LEFT + first + width * column
        sheet.frame(left, top + height, left + width, top + 2 * height)
        sheet.put_centered(sheet.word(), left + width / 2, top + height + pad, SIZE)
    rows = [[sheet.words(1, 7), *(sheet.number(3) for _ in range(2 * count))] for _ in range(8)]
    top = _ruled_table(sheet, top + 2 * height, [first, *[width] * 2 * count], rows, sheet.random.choice([0, 0.5]))
    sheet.paragraph(LEFT, top, RIGHT - LEFT, SIZE, 3)


def ruled_table_of_several_lines(sheet: Sheet) -> None:
    top = title(sheet, TOP)
    count = sheet.random.randint(3, 4)
    rows = [[sheet.words(1, sheet.random.choice([2, 6, 12])) for _ in range(count)] for _ in range(8)]
    top = _ruled_table(sheet, top, [(RIGHT - LEFT) / count] * count, rows, sheet.random.choice([0, 0.5]))
    sheet.paragraph(LEFT, top, RIGHT - LEFT, SIZE, 3)


def framed_cards(sheet: Sheet) -> None:
    top = title(sheet, TOP)
    count = sheet.random.randint(2, 4)
    gap = sheet.random.choice([16, 30])
    width = (RIGHT - LEFT - gap * (count - 1)) / count
    for _ in range(4):
        for number in range(count):
            left = LEFT + number * (width + gap)
            sheet.frame(left, top, left + width, top + 170)
            bottom = sheet.stack(
                [sheet.words(1, 2)[:16], *sheet.wrapped(sheet.words(4, 7), width - 30, SIZE)[:3]],
                left + 15,
                top + 15,
                SIZE,
            )
            sheet.put(_price(sheet), left + 15, bottom + 6, SIZE)
        top += 170 + gap


def goods_without_rules(sheet: Sheet) -> None:
    """Names, some wrapped to a second line, with their prices at the far right."""
    top = title(sheet, TOP)
    names = [sheet.wrapped(sheet.words(2, 7), 420, SIZE) for _ in range(14)]
    for name in names:
        bottom = sheet.stack(name, LEFT, top, SIZE)
        sheet.put_right(_price(sheet), RIGHT, top, SIZE)
        top = bottom + 18
    sheet.paragraph(LEFT, top + 30, RIGHT - LEFT, SIZE, 3)


def receipt_of_wrapped_names(sheet: Sheet) -> None:
    """A narrow, tightly set receipt: long names wrap, and the price is beside a name's first line."""
    left, right = 300.0, 760.0
    top = _receipt_head(sheet, (left + right) / 2, 3, 29) + 24
    for _ in range(14):
        name = sheet.wrapped(sheet.words(1, 6), 300, 22)
        sheet.stack(name, left, top, 22)
        sheet.put_right(_price(sheet), right, top, 22)
        top += LEADING * 22 * len(name)


def address_blocks(sheet: Sheet) -> None:
    top = title(sheet, TOP)
    count = sheet.random.randint(2, 3)
    width = (RIGHT - LEFT) / (count + 1)
    bottoms = []
    for number in range(count):
        block = [
            sheet.words(1, 2),
            *(sheet.words(1, 2) + f" {sheet.random.randint(1, 99)}" for _ in range(sheet.random.randint(2, 5))),
        ]
        bottoms.append(sheet.stack([line[:24] for line in block], LEFT + number * width, top, SIZE))
    note = sheet.wrapped(sheet.words(10, 18), width - 30, SIZE)
    bottoms.append(sheet.stack(note, LEFT + count * width, top, SIZE))
    top = sheet.paragraph(LEFT, max(bottoms) + 50, RIGHT - LEFT, SIZE, 3) + 30
    sheet.table(LEFT, top, (420, 160, 160, 160), 8, SIZE, 1.9)


def labels_of_two_lines(sheet: Sheet) -> None:
    """Labels, some of two lines, with their value vertically centred beside them."""
    top = title(sheet, TOP)
    for _ in range(12):
        label = sheet.wrapped(sheet.words(1, 5), 220, SIZE)
        bottom = sheet.stack(label, LEFT, top, SIZE)
        sheet.put(sheet.words(2, 4), 420, top + (len(label) - 1) * 0.65 * SIZE, SIZE)
        top = bottom + 22


def columns_in_bands(sheet: Sheet) -> None:
    top = title(sheet, TOP)
    for band, count in enumerate(sheet.random.choice([(2, 3), (3, 2), (2, 3, 2)])):
        if band:
            sheet.put(sheet.words(2, 3).capitalize(), LEFT, top + 14, 25)
            top += 60
        width = (RIGHT - LEFT - 30 * (count - 1)) / count
        rows = sheet.random.randint(7, 11)
        bottoms = [
            sheet.paragraph(LEFT + number * (width + 30), top, width, SIZE, rows - 2 * (number == count - 1))
            for number in range(count)
        ]
        top = max(bottoms)


def _is_kind(one: object) -> TypeGuard[Draw]:
    return isfunction(one) and one.__module__ == __name__ and not one.__name__.startswith("_")


KINDS: dict[str, Draw] = {
    **{f"columns_{count}": partial(_title_over_columns, count) for count in (1, 2, 3, 4)},
    **{name: draw for name, draw in globals().items() if _is_kind(draw)},
}
"""Column layouts and every public function above: each draws one page, its lines in reading order."""
