"""Pages of tables, forms, lists and numbered lines, whose reading order is known."""

from __future__ import annotations

from order_parts import LEFT, RIGHT, TOP, chart, header, title
from order_sheet import Sheet


def tables_in_the_right_column(sheet: Sheet) -> None:
    """A report: running text on the left, tables with captions on the right."""
    top = title(sheet, header(sheet))
    sheet.text_column(LEFT, top, 500, 19, 1400)
    for _ in range(3):
        sheet.put("Table " + sheet.words(3, 5), 630, top, 19)
        top = sheet.table(630, top + 36, (180, 100, 100, 100), 9, 17, 1.55) + 30


def table_in_the_left_column(sheet: Sheet) -> None:
    """A dense table as long as the page on the left, on the right text, short tables and a chart."""
    top = title(sheet, TOP)
    sheet.table(LEFT, top, (220, 90, 90, 90, 90), 50, 15, 1.6)
    left = LEFT + 605
    sheet.put(sheet.words(2, 3).capitalize(), left, top + 8, 20)
    bottom = sheet.paragraph(left, top + 45, RIGHT - left, 18, 5) + 40
    bottom = sheet.table(left, bottom, (240, 150), 3, 18, 1.8, heads=False) + 40
    bottom = sheet.paragraph(left, bottom, RIGHT - left, 18, 4) + 40
    chart(sheet, left, bottom, RIGHT - left, 300)


def _transcript(sheet: Sheet, left: float, top: float, width: float, height: float, number: int) -> None:
    """A page of numbered lines; questions and answers of different length."""
    size = 15.0
    sheet.put_right(f"Page {number}", left + width, top, size)
    pitch = (height - 40) / 25
    for row in range(25):
        y = top + 40 + row * pitch
        sheet.put_right(str(row + 1), left + 25, y, size)
        text = sheet.full_line((width - 60) * sheet.random.choice([0.4, 0.7, 1, 1, 1]), size)
        sheet.put(text, left + 50, y, size)


def four_pages_on_a_sheet(sheet: Sheet) -> None:
    """Four transcript pages; upper left, upper right, lower left, lower right."""
    for number in range(4):
        _transcript(sheet, LEFT + number % 2 * 540, 100 + number // 2 * 760, 450, 620, 17 + number)


def form(sheet: Sheet) -> None:
    """Two pairs of label and value in each row."""
    top = title(sheet, TOP)
    for _ in range(14):
        for left in (LEFT, 640):
            label = "标签信息"[: sheet.random.randint(2, 4)] if sheet.chinese else sheet.words(1, 2).capitalize()
            sheet.put(label + ":", left, top, 20)
            sheet.put(sheet.words(1, 2), left + 240, top, 20)
        top += 48
    sheet.paragraph(LEFT, top + 30, RIGHT - LEFT, 18, 4)


def form_of_one_pair(sheet: Sheet) -> None:
    """One label and one value in each row, and a row of signatures."""
    top = title(sheet, TOP)
    for _ in range(16):
        sheet.put(sheet.words(1, 3).capitalize() + ":", LEFT, top, 20)
        sheet.put(sheet.words(2, 4), 480, top, 20)
        top += 46
    sheet.put("Signature", LEFT, top + 60, 18)
    sheet.put("Date", 760, top + 60, 18)


def boxed_form(sheet: Sheet) -> None:
    """A row of labels over a row of values, several times."""
    top = title(sheet, TOP)
    for _ in range(7):
        for number in range(5):
            sheet.put(sheet.word().capitalize(), LEFT + number * 210, top, 15)
        for number in range(5):
            sheet.put(sheet.word().upper() if number % 2 else sheet.number(3), LEFT + number * 210, top + 30, 19)
        top += 86


def receipt(sheet: Sheet) -> None:
    """Items on the left, prices on the right, row by row."""
    left, right, top = 300.0, 800.0, TOP
    for _ in range(3):
        sheet.put_centered(sheet.words(2, 4), (left + right) / 2, top, 22)
        top += 34
    top += 20
    for _ in range(14):
        sheet.put(sheet.words(1, 4)[:24], left, top, 22)
        sheet.put_right(sheet.number(3), right, top, 22)
        top += 30
    for name in ("Subtotal", "Tax 6%", "TOTAL", "Cash", "Change"):
        sheet.put(name, left, top + 12, 24)
        sheet.put_right(sheet.number(3), right, top + 12, 24)
        top += 34
    sheet.put_centered(sheet.words(3, 5), (left + right) / 2, top + 50, 22)


def table(sheet: Sheet) -> None:
    """Text, a table as wide as the page, text."""
    top = sheet.text_column(LEFT, header(sheet), RIGHT - LEFT, 20, 400)
    top = sheet.table(LEFT, top + 30, (320, 140, 140, 140, 140, 140), 24, 19, 1.5)
    sheet.text_column(LEFT, top + 40, RIGHT - LEFT, 20, 1480)


def table_of_words(sheet: Sheet) -> None:
    """A table whose cells are words, one line each."""
    top = title(sheet, TOP)
    for _ in range(26):
        for left in (LEFT, 370.0, 720.0):
            sheet.put(sheet.words(1, 3)[:22], left, top, 20)
        top += 42


def table_of_paragraphs(sheet: Sheet) -> None:
    """A table with cells of several lines: each cell is read whole."""
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
    """Two tables with the same rows, clearly apart: the left one first."""
    top = header(sheet)
    for left in (LEFT, 680.0):
        sheet.put(sheet.words(2, 3).capitalize(), left, top, 22)
        sheet.table(left, top + 50, (160, 90, 90, 90), 30, 17, 1.5)


def stock_tables(sheet: Sheet) -> None:
    """Two tables of a newspaper in small type, tightly set, under a heading."""
    top = title(sheet, TOP)
    for left in (LEFT, 640.0):
        sheet.table(left, top, (150, 80, 80, 80, 80), 60, 14, 1.4)


def invoice(sheet: Sheet) -> None:
    """Blocks of addresses side by side, a table, totals, three columns of small type at the foot."""
    sheet.put(sheet.words(2, 2).upper(), LEFT, TOP, 34)
    for left in (LEFT, 700.0):
        sheet.put("Bill to" if left == LEFT else "Ship to", left, 190, 18)
        for row in range(4):
            sheet.put(sheet.words(2, 3).capitalize(), left, 222 + row * 25, 19)
    top = sheet.table(LEFT, 420, (500, 160, 160, 160), 12, 20, 1.9)
    for name in ("Subtotal", "Tax", "Total"):
        sheet.put(name, 760, top + 20, 20)
        sheet.put_right(sheet.number(3), LEFT + 980, top + 20, 20)
        top += 38
    for left in (LEFT, 440.0, 790.0):
        for row in range(6):
            sheet.put(sheet.words(2, 3).capitalize(), left, 1350 + row * 20, 15)


def numbered_lines(sheet: Sheet) -> None:
    """A listing with the number of each line beside it."""
    top = header(sheet)
    for row in range(44):
        sheet.put_right(str(row + 1), LEFT + 30, top, 18)
        left = LEFT + 60 + 36 * sheet.random.randint(0, 3)
        sheet.put(sheet.words(1, 8), left, top, 18)
        top += 29


def definitions(sheet: Sheet) -> None:
    """Terms on the left, each beside the first line of its text."""
    top = title(sheet, TOP)
    for _ in range(9):
        sheet.put(sheet.words(1, 2).capitalize(), LEFT, top, 20)
        top = sheet.paragraph(380, top, RIGHT - 380, 20, sheet.random.randint(2, 5)) + 24


def index(sheet: Sheet) -> None:
    """Three columns of entries, each with its page at the end of the line."""
    top = title(sheet, TOP)
    for left in (LEFT, 450.0, 810.0):
        for row in range(36):
            sheet.put(f"{sheet.words(1, 2)}, {sheet.random.randint(1, 300)}", left, top + row * 30, 19)


def menu(sheet: Sheet) -> None:
    """Two columns of dishes, each with its price at the end of the row."""
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
