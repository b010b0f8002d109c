"""Synthetic sheets of text lines in a known reading order, and the lines' boxes in a simulated photograph."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import cv2
import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein

# fmt: off
ENGLISH = (
    "report", "market", "river", "station", "paper", "garden", "number", "window", "letter", "silver", "during",
    "against", "between", "morning", "winter", "several", "company", "quarter", "growth", "margin", "supply", "demand",
    "annual", "council", "public", "region", "bridge", "travel", "forest", "island", "modern", "history", "science",
    "teacher", "student", "kitchen", "evening", "another", "because", "through", "without", "present", "journal"
)
# fmt: on
CHINESE = "的一是在不了有和人这中大为上个国我以要他时来用们生到作地于出就分对成会可主发年动同工也能下过子说产种面"

LEADING = 1.3  # line pitch within a cell, in font sizes

Measure = Callable[[str, float], float]
"""Returns the width in pixels of a text at a font size in pixels."""


@dataclass(frozen=True, slots=True)
class SetLine:
    """A placed line: its text, the top left corner of its em box, its width and its font size, in pixels."""

    text: str
    left: float
    top: float
    width: float
    size: float
    vertical: bool = False


def estimated_width(text: str, size: float) -> float:
    """Width estimated without a font: 0.52 em per ASCII character, 1 em per other character."""
    return sum(size * (0.52 if character.isascii() else 1.0) for character in text)


@dataclass(slots=True)
class Sheet:
    """Collects lines in reading order, and rules as (left, top, right, bottom)."""

    random: random.Random
    measure: Measure = estimated_width
    chinese: bool = False
    lines: list[SetLine] = field(default_factory=list)
    rules: list[tuple[float, float, float, float]] = field(default_factory=list)

    def put(self, text: str, left: float, top: float, size: float) -> float:
        """Place a text at its left edge; returns its right edge."""
        width = self.measure(text, size)
        self.lines.append(SetLine(text, left, top, width, size))
        return left + width

    def put_right(self, text: str, right: float, top: float, size: float) -> None:
        self.put(text, right - self.measure(text, size), top, size)

    def put_centered(self, text: str, middle: float, top: float, size: float) -> None:
        self.put(text, middle - self.measure(text, size) / 2, top, size)

    def put_down(self, text: str, left: float, top: float, size: float) -> None:
        self.lines.append(SetLine(text, left, top, size, size, vertical=True))

    def frame(self, left: float, top: float, right: float, bottom: float) -> None:
        self.rules += [(left, y, right, y) for y in (top, bottom)] + [(x, top, x, bottom) for x in (left, right)]

    def stack(self, texts: Sequence[str], left: float, top: float, size: float) -> float:
        """Place lines below each other; returns the top of the next line."""
        for text in texts:
            self.put(text, left, top, size)
            top += LEADING * size
        return top

    def wrapped(self, text: str, width: float, size: float) -> list[str]:
        """Break a text into lines of at most `width`, greedily like a browser."""
        lines: list[str] = []
        for word in text if self.chinese else text.split():
            longer = word if not lines else lines[-1] + ("" if self.chinese else " ") + word
            if lines and self.measure(longer, size) <= width:
                lines[-1] = longer
            else:
                lines.append(word)
        return lines

    def word(self) -> str:
        if self.chinese:
            return "".join(self.random.choices(CHINESE, k=self.random.randint(2, 4)))
        return self.random.choice(ENGLISH)

    def words(self, least: int, most: int) -> str:
        return ("" if self.chinese else " ").join(self.word() for _ in range(self.random.randint(least, most)))

    def number(self, digits: int = 4) -> str:
        return f"{self.random.uniform(1, 10**digits):,.2f}"

    def full_line(self, width: float, size: float) -> str:
        text = self.word()
        while self.measure(longer := text + ("" if self.chinese else " ") + self.word(), size) <= width:
            text = longer
        if self.chinese:  # Chinese text is justified without hyphens
            while self.measure(text + "的", size) <= width:
                text += self.random.choice(CHINESE)
        return text

    def paragraph(self, left: float, top: float, width: float, size: float, rows: int, leading: float = 1.35) -> float:
        """Place running text with a short last row; returns the top of the next row."""
        for row in range(rows):
            last = row == rows - 1
            self.put(self.full_line(width * (self.random.uniform(0.3, 0.9) if last else 1.0), size), left, top, size)
            top += leading * size
        return top

    def text_column(
        self, left: float, top: float, width: float, size: float, bottom: float, leading: float = 1.35
    ) -> float:
        """Fill a column with paragraphs down to `bottom`; returns the top of the next paragraph."""
        while bottom - top > 2 * leading * size:
            rows = min(self.random.randint(3, 8), int((bottom - top) / (leading * size)))
            top = self.paragraph(left, top, width, size, rows, leading) + 0.6 * size
        return top

    def table(
        self,
        left: float,
        top: float,
        widths: Sequence[float],
        rows: int,
        size: float,
        pitch: float = 1.6,
        *,
        heads: bool = True,
    ) -> float:
        """Place names on the left and right-aligned numbers in the other columns; returns the top of the next row."""
        for row in range(rows):
            self.put(self.words(1, 2).capitalize()[: max(3, int(widths[0] / size * 1.5))], left, top, size)
            edge = left + widths[0]
            for width in widths[1:]:
                edge += width
                self.put_right(f"{2010 + row}" if heads and not row else self.number(3), edge, top, size)
            top += pitch * size
        return top


WIDTH, HEIGHT = 1200.0, 1600.0
LEFT, RIGHT, TOP = 90.0, 1110.0, 80.0


def header(sheet: Sheet) -> float:
    """Place a running title and a page number; returns the top of the text."""
    sheet.put(sheet.words(2, 3), LEFT, TOP, 18)
    sheet.put_right(str(sheet.random.randint(2, 400)), RIGHT, TOP, 18)
    return TOP + 70


def title(sheet: Sheet, top: float) -> float:
    """Place a centred title; returns the top of the text."""
    sheet.put_centered(sheet.words(4, 6).capitalize(), (LEFT + RIGHT) / 2, top, 38)
    return top + 80


def chart(sheet: Sheet, left: float, top: float, width: float, height: float) -> float:
    """Place a title, the labels of the vertical and horizontal axes, and a legend; returns the top of the next text."""
    size = 15.0
    sheet.put_centered(sheet.words(3, 4), left + width / 2, top, 19)
    top += 45
    for tick in range(5):
        sheet.put_right(str(50 - 10 * tick), left + 40, top + tick * height / 5, size)
    for number in range(5):
        sheet.put(f"{2010 + number}", left + 60 + number * (width - 60) / 5, top + height, size)
    sheet.put_centered(sheet.words(1, 2) + "   " + sheet.words(1, 2), left + width / 2, top + height + 35, size)
    return top + height + 75


Matrix = NDArray[np.float64]
Frame = tuple[float, float, float, float]
"""Left, top, right, bottom."""

MARGIN = 0.12  # margin of a detector's box around the ink, in em
JITTER = 0.05  # standard deviation of its sides, in em


@dataclass(frozen=True, slots=True)
class View:
    """Pose of the sheet: `slant` in degrees clockwise, and `keystone`, the share by which its top edge is shorter."""

    slant: float = 0.0
    keystone: float = 0.0

    def matrix(self, width: float, height: float) -> Matrix:
        """The (3, 3) homography from the sheet to the picture."""
        corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
        # Perspective also shortens the right edge, by half as much as the top edge.
        inset = np.array([[1, 0], [-1, 0.5], [0, -0.5], [0, 0]]) * self.keystone * width / 2
        seen = (corners + inset).astype(np.float32)
        tilted = cv2.getPerspectiveTransform(corners, seen)
        turned = np.vstack([cv2.getRotationMatrix2D((width / 2, height / 2), -self.slant, 1.0), [0, 0, 1]])
        return cast(Matrix, turned @ tilted)


def quads_of(lines: Sequence[SetLine], matrix: Matrix, shake: random.Random | None) -> NDArray[np.float32]:
    """(N, 4, 2) corners of the lines in the picture, clockwise from the start of reading; `shake` jitters the sides."""
    quads = []
    for line in lines:
        offsets = [MARGIN + (shake.gauss(0, JITTER) if shake else 0.0) for _ in range(4)]
        left, top, right, bottom = (offset * line.size for offset in offsets)
        height = line.size * len(line.text) if line.vertical else line.size
        frame = (line.left - left, line.top - top, line.left + line.width + right, line.top + height + bottom)
        corners = [(frame[0], frame[1]), (frame[2], frame[1]), (frame[2], frame[3]), (frame[0], frame[3])]
        quads.append(corners[1:] + corners[:1] if line.vertical else corners)
    points = np.array(quads, np.float32).reshape(-1, 1, 2)
    return cast("NDArray[np.float32]", cv2.perspectiveTransform(points, matrix).reshape(-1, 4, 2))


def quads_around(frames: Sequence[Frame]) -> NDArray[np.float32]:
    """(N, 4, 2) corners of upright frames, clockwise from the top left."""
    quads = [[[left, top], [right, top], [right, bottom], [left, bottom]] for left, top, right, bottom in frames]
    return np.array(quads, np.float32).reshape(-1, 4, 2)


def rules_of(rules: Sequence[tuple[float, float, float, float]], matrix: Matrix) -> NDArray[np.float32]:
    """(M, 4, 2) corners of the rules in the picture: zero-width quads along each rule."""
    points = np.array([[rule[:2], rule[2:], rule[2:], rule[:2]] for rule in rules], np.float32).reshape(-1, 1, 2)
    seen = cv2.perspectiveTransform(points, matrix) if len(points) else points
    return cast("NDArray[np.float32]", seen.reshape(-1, 4, 2))


def order_cer(truth: Sequence[str], read: Sequence[str]) -> float:
    """Edit distance of the joined texts without whitespace, divided by the length of the true text."""
    one, other = ("".join("".join(lines).split()) for lines in (truth, read))
    return Levenshtein.distance(one, other) / max(1, len(one))
