"""What several kinds of pages have: the size, a header, a title, a chart."""

from __future__ import annotations

from order_sheet import Sheet

WIDTH, HEIGHT = 1200.0, 1600.0
LEFT, RIGHT, TOP = 90.0, 1110.0, 80.0


def header(sheet: Sheet) -> float:
    """A running title and the number of the page; returns where the text may begin."""
    sheet.put(sheet.words(2, 3), LEFT, TOP, 18)
    sheet.put_right(str(sheet.random.randint(2, 400)), RIGHT, TOP, 18)
    return TOP + 70


def title(sheet: Sheet, top: float) -> float:
    """A title in the middle; returns where the text may begin."""
    sheet.put_centered(sheet.words(4, 6).capitalize(), (LEFT + RIGHT) / 2, top, 38)
    return top + 80


def chart(sheet: Sheet, left: float, top: float, width: float, height: float) -> float:
    """A title, the vertical axis from top to bottom, the horizontal one from left to right, the legend.

    Returns where the text may go on.
    """
    size = 15.0
    sheet.put_centered(sheet.words(3, 4), left + width / 2, top, 19)
    top += 45
    for tick in range(5):
        sheet.put_right(str(50 - 10 * tick), left + 40, top + tick * height / 5, size)
    for number in range(5):
        sheet.put(f"{2010 + number}", left + 60 + number * (width - 60) / 5, top + height, size)
    sheet.put_centered(sheet.words(1, 2) + "   " + sheet.words(1, 2), left + width / 2, top + height + 35, size)
    return top + height + 75
