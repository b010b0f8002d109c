"""Pages of cells: ruled tables, frames, lists of goods, blocks side by side, columns of different widths."""

from __future__ import annotations

from collections.abc import Sequence

from order_parts import LEFT, RIGHT, TOP, title
from order_sheet import LEADING, Sheet

SIZE = 19.0


def _price(sheet: Sheet) -> str:
    return f"{sheet.random.uniform(1, 900):,.2f}"


def _ruled_table(
    sheet: Sheet, top: float, widths: Sequence[float], rows: Sequence[Sequence[str]], align: float
) -> float:
    """Cells with rules around them; text begins at the left, and from the top, the middle (0.5) or the bottom (1).

    Returns where the page may go on.
    """
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
    """A head over each two columns, the names of the columns, and names of several lines beside numbers."""
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
    """Cells of one to five lines, with rules around them."""
    top = title(sheet, TOP)
    count = sheet.random.randint(3, 4)
    rows = [[sheet.words(1, sheet.random.choice([2, 6, 12])) for _ in range(count)] for _ in range(8)]
    top = _ruled_table(sheet, top, [(RIGHT - LEFT) / count] * count, rows, sheet.random.choice([0, 0.5]))
    sheet.paragraph(LEFT, top, RIGHT - LEFT, SIZE, 3)


def framed_cards(sheet: Sheet) -> None:
    """Cards in rows: a name, two lines, a price."""
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
    """Names, some of which go on in a second line, and their prices far on the right."""
    top = title(sheet, TOP)
    names = [sheet.wrapped(sheet.words(2, 7), 420, SIZE) for _ in range(14)]
    for name in names:
        bottom = sheet.stack(name, LEFT, top, SIZE)
        sheet.put_right(_price(sheet), RIGHT, top, SIZE)
        top = bottom + 18
    sheet.paragraph(LEFT, top + 30, RIGHT - LEFT, SIZE, 3)


def receipt_of_wrapped_names(sheet: Sheet) -> None:
    """A narrow receipt, tightly set: a name that is too long goes on below, its price is beside its first line."""
    left, right, top = 300.0, 760.0, TOP
    for _ in range(3):
        sheet.put_centered(sheet.words(2, 3), (left + right) / 2, top, 22)
        top += 29
    top += 24
    for _ in range(14):
        name = sheet.wrapped(sheet.words(1, 6), 300, 22)
        sheet.stack(name, left, top, 22)
        sheet.put_right(_price(sheet), right, top, 22)
        top += LEADING * 22 * len(name)


def address_blocks(sheet: Sheet) -> None:
    """Two or three blocks of addresses and a note side by side, text, a table."""
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
    """Labels, some of two lines; the value is centred beside them."""
    top = title(sheet, TOP)
    for _ in range(12):
        label = sheet.wrapped(sheet.words(1, 5), 220, SIZE)
        bottom = sheet.stack(label, LEFT, top, SIZE)
        sheet.put(sheet.words(2, 4), 420, top + (len(label) - 1) * 0.65 * SIZE, SIZE)
        top = bottom + 22


def columns_in_bands(sheet: Sheet) -> None:
    """Columns of one width, a short heading, columns of another width."""
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
