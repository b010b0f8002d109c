"""Pages of running text, charts and pictures, whose reading order is known."""

from __future__ import annotations

from collections.abc import Callable

from order_parts import LEFT, RIGHT, TOP, chart, header, title
from order_sheet import Sheet


def _columns(sheet: Sheet, count: int, top: float, bottom: float, size: float = 20) -> None:
    """Columns with the same leading, on the same lines or not."""
    gutter = size * sheet.random.uniform(1.2, 2.5)
    width = (RIGHT - LEFT - gutter * (count - 1)) / count
    for number in range(count):
        shift = sheet.random.choice([0, 0, sheet.random.uniform(0, 14)])
        sheet.text_column(LEFT + number * (width + gutter), top + shift, width, size, bottom)


def columns_page(count: int) -> Callable[[Sheet], None]:
    """What draws a title over some columns."""

    def draw(sheet: Sheet) -> None:
        top = title(sheet, header(sheet))
        _columns(sheet, count, top, 1450)
        sheet.put_centered(str(sheet.random.randint(2, 90)), (LEFT + RIGHT) / 2, 1520, 18)

    return draw


def columns_under_headings(sheet: Sheet) -> None:
    """Two columns, a heading across, three columns."""
    top = title(sheet, TOP)
    _columns(sheet, 2, top, 700)
    sheet.put(sheet.words(8, 10).capitalize(), LEFT, 760, 30)
    _columns(sheet, 3, 840, 1480)


def chart_in_text(sheet: Sheet) -> None:
    """Text, a chart with its labels, a caption, more text."""
    bottom = sheet.text_column(LEFT, header(sheet), RIGHT - LEFT, 21, 550)
    bottom = chart(sheet, LEFT + 100, bottom + 20, 800, 420)
    sheet.put_centered("Figure " + sheet.words(4, 8), (LEFT + RIGHT) / 2, bottom, 18)
    sheet.text_column(LEFT, bottom + 60, RIGHT - LEFT, 21, 1480)


def figures_in_columns(sheet: Sheet) -> None:
    """Two columns; the left one is interrupted by a chart and the right one by an empty figure with a caption."""
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
    """Four pages of text, each with its heading and number."""
    for number in range(4):
        left, top = LEFT + number % 2 * 540, 80 + number // 2 * 770
        sheet.put(sheet.words(2, 3).capitalize(), left, top, 24)
        sheet.text_column(left, top + 50, 460, 16, top + 600)
        sheet.put_centered(str(number + 1), left + 230, top + 630, 15)


def two_pages_on_a_sheet(sheet: Sheet) -> None:
    """An open book: two pages beside each other."""
    for number in range(2):
        left = LEFT + number * 545
        sheet.put(sheet.words(1, 2), left, TOP, 17)
        sheet.put_right(str(number + 44), left + 470, TOP, 17)
        sheet.text_column(left, TOP + 60, 470, 19, 1480)


def sidebar_right(sheet: Sheet) -> None:
    """A wide column, and a narrow one in smaller type."""
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
    """Columns that are read downwards, from right to left."""
    sheet.chinese = True
    left = 1040.0
    for number in range(20):
        length = 34 if number % 6 else 16
        sheet.put_down("".join(sheet.full_line(length * 36.0, 36)), left, 150, 36)
        left -= 50


def mixed_languages(sheet: Sheet) -> None:
    """Chinese in the left column, English in the right one."""
    top = title(sheet, TOP)
    sheet.chinese = True
    sheet.text_column(LEFT, top, 490, 21, 1480, 1.5)
    sheet.chinese = False
    sheet.text_column(625, top, 485, 19, 1480)


def footnotes_and_captions(sheet: Sheet) -> None:
    """Two columns, a table across both with its caption, two columns again, notes below."""
    top = header(sheet)
    _columns(sheet, 2, top, 480, 19)
    sheet.put_centered("Table " + sheet.words(9, 12), (LEFT + RIGHT) / 2, 530, 18)
    sheet.table(LEFT + 80, 575, (260, 120, 120, 120, 120), 8, 18, 1.6)
    _columns(sheet, 2, 860, 1300, 19)
    sheet.paragraph(LEFT, 1400, RIGHT - LEFT, 15, 3)


def text_around_a_figure(sheet: Sheet) -> None:
    """Wide text, narrow text beside a figure with a caption, wide text."""
    top = sheet.text_column(LEFT, header(sheet), RIGHT - LEFT, 20, 450)
    sheet.text_column(LEFT, top, 520, 20, 900)
    sheet.paragraph(680, 860, 420, 15, 2)
    sheet.text_column(LEFT, 930, RIGHT - LEFT, 20, 1480)


def slide(sheet: Sheet) -> None:
    """A title and two lists with headings, the second in smaller type."""
    sheet.put(sheet.words(3, 5).capitalize(), LEFT, 100, 56)
    for left, size in ((LEFT, 26.0), (640.0, 24.0)):
        sheet.put(sheet.words(2, 3).capitalize(), left, 240, 34)
        y = 310.0
        for _ in range(sheet.random.randint(5, 8)):
            y = sheet.paragraph(left, y, 470, size, sheet.random.randint(1, 3)) + 18


def newspaper(sheet: Sheet) -> None:
    """A headline over two of three columns; the third begins at the top."""
    top = header(sheet)
    sheet.put(sheet.words(4, 4).capitalize()[:32], LEFT, top, 40)
    width = 320.0
    sheet.text_column(LEFT, top + 80, width, 18, 1480)
    sheet.text_column(LEFT + width + 30, top + 80, width, 18, 1480)
    sheet.text_column(LEFT + 2 * (width + 30), top, width, 18, 1480)


def comic(sheet: Sheet) -> None:
    """Two rows of panels with balloons; each balloon is read whole."""
    for top in (150.0, 800.0):
        for left, lower in zip((LEFT + 40, 460.0, 850.0), sheet.random.sample((0, 9, 18), 3), strict=True):
            y = top + lower
            for _ in range(sheet.random.randint(3, 5)):
                sheet.put_centered(sheet.words(1, 3)[:20], left + 110, y, 22)
                y += 27
