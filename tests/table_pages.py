"""Draws pages with tables whose cells are known: ruled, partly ruled, without rules, with spans, rotated."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ocrsvc.imaging.geometry import as_boxes
from ocrsvc.results import Line, Page, Pixels

ENGLISH: Final = (
    "total net gross order paper steel glass water north south price weight length speed model sample average series "
    "station travel number market energy output input annual report quarter region factory product service account"
)
CHINESE: Final = (
    "合计 单价 数量 金额 名称 规格 型号 日期 备注 北京 上海 广州 钢材 玻璃 纸张 产量 能源 部门 姓名 编号 税率"
)
SIZE_PX: Final = (1240, 1754)
FONTS: Final = {
    "en": "/usr/share/fonts/truetype/liberation/LiberationSans-Regular.ttf",
    "zh": "/usr/share/fonts/opentype/noto/NotoSansCJK-Regular.ttc",
}
STYLES: Final = ("ruled", "spans", "framed", "between_rows", "booktabs", "inner", "open", "wrapped")
INK: Final = 20


@dataclass(frozen=True, slots=True)
class TrueCell:
    """A cell as drawn; rows and columns are counted from 0."""

    row: int
    column: int
    row_span: int
    column_span: int
    text: str


@dataclass
class Sheet:
    """A page being drawn: its texts with their (left, top, right, bottom), and the cells of each table."""

    language: str
    font_px: int
    image: Image.Image = field(default_factory=lambda: Image.new("L", SIZE_PX, 255))
    texts: list[tuple[str, tuple[float, float, float, float]]] = field(default_factory=list)
    tables: list[list[TrueCell]] = field(default_factory=list)

    def __post_init__(self) -> None:
        try:
            self.font = ImageFont.truetype(FONTS[self.language], self.font_px)
        except OSError:
            self.font = cast("ImageFont.FreeTypeFont", ImageFont.load_default(self.font_px))
        self.pen = ImageDraw.Draw(self.image)

    def width_of(self, text: str) -> float:
        return float(self.font.getlength(text))

    def write(self, x: float, y: float, text: str) -> None:
        self.pen.text((x, y), text, font=self.font, fill=INK)
        self.texts.append((text, (x - 2, y, x + self.width_of(text) + 2, y + 1.25 * self.font_px)))

    def rule(self, x0: float, y0: float, x1: float, y1: float, width: int = 2, gray: int = INK) -> None:
        self.pen.line((x0, y0, x1, y1), fill=gray, width=width)


@dataclass(frozen=True, slots=True)
class DrawnPage:
    """A page with its ground truth: gray pixels (H, W), lines as an engine returns them, and the tables' cells."""

    name: str
    pixels: Pixels
    page: Page
    tables: list[list[TrueCell]]


def words(random_: random.Random, language: str, least: int, most: int) -> str:
    chosen = random_.choices((CHINESE if language == "zh" else ENGLISH).split(), k=random_.randint(least, most))
    return ("" if language == "zh" else " ").join(chosen)


def number(random_: random.Random) -> str:
    return f"{random_.randint(1, 99999) / random_.choice((1, 10, 100)):,.2f}"


def draw_table(sheet: Sheet, random_: random.Random, style: str, left: float, top: float, width: float) -> float:
    """Draw one table; returns its bottom."""
    size = sheet.font_px
    columns, rows = random_.randint(3, 6 if width > 700 else 4), random_.randint(4, 9)
    shares = np.array([random_.uniform(0.8, 1.5) for _ in range(columns)])
    xs = (left + width * np.concatenate([[0], np.cumsum(shares / shares.sum())])).tolist()
    pitch = size * random_.uniform(1.6, 2.3)
    wrapped = {random_.randint(1, rows - 1): random_.randint(1, columns - 1)} if style == "wrapped" else {}
    heights = [pitch + (1.25 * size if row in wrapped else 0) for row in range(rows)]
    ys = (top + np.concatenate([[0], np.cumsum(heights)])).tolist()
    cells = (
        _merged(random_, rows, columns) if style == "spans" else [(*place, 1, 1) for place in np.ndindex(rows, columns)]
    )
    aligned = [random_.choice(("left", "right", "middle")) for _ in range(columns)]
    truth = []
    for row, column, row_span, column_span in cells:
        room = xs[column + column_span] - xs[column] - size
        is_wrapped = wrapped.get(row) == column
        text = _text(sheet, random_, row, column, room, lines=2 if is_wrapped else 1)
        if random_.random() < 0.08 and row and column:
            text = ""
        truth.append(TrueCell(row, column, row_span, column_span, text))
        _write(sheet, text, (xs[column], ys[row], xs[column + column_span], ys[row + row_span]), aligned[column])
    _rule(sheet, random_, style, xs, ys, cells)
    sheet.tables.append(truth)
    return float(ys[-1])


def _merged(random_: random.Random, rows: int, columns: int) -> list[tuple[int, int, int, int]]:
    """The cells of a grid, some spanning rows or columns, as (row, column, row span, column span)."""
    taken: set[tuple[int, int]] = set()
    cells = []
    for row, column in np.ndindex(rows, columns):
        if (row, column) in taken:
            continue
        down, right = random_.choice(((1, 1), (1, 1), (1, 1), (2, 1), (1, 2), (2, 2)))
        # No cell spans into the last row or column, so every grid border is drawn somewhere.
        down, right = max(1, min(down, rows - 1 - row)), max(1, min(right, columns - 1 - column))
        places = {(row + r, column + c) for r in range(down) for c in range(right)}
        if places & taken or row == rows - 1 or column == columns - 1:
            down = right = 1
            places = {(row, column)}
        taken |= places
        cells.append((row, column, down, right))
    return cells


def _text(sheet: Sheet, random_: random.Random, row: int, column: int, room: float, lines: int) -> str:
    written = []
    for _ in range(lines):
        text = words(random_, sheet.language, 1, 2) if not row or not column or lines > 1 else number(random_)
        while sheet.width_of(text) > room and len(text) > 1:
            text = text[:-1].strip()
        written.append(text)
    return "\n".join(written)


def _write(sheet: Sheet, text: str, box: tuple[float, float, float, float], aligned: str) -> None:
    left, top, right, bottom = box
    lines = text.split("\n") if text else []
    y = (top + bottom) / 2 - 0.6 * sheet.font_px * len(lines) - 0.05 * sheet.font_px
    pad = 0.45 * sheet.font_px
    for line in lines:
        width = sheet.width_of(line)
        x = {"left": left + pad, "right": right - pad - width, "middle": (left + right - width) / 2}[aligned]
        sheet.write(x, y, line)
        y += 1.2 * sheet.font_px


def _rule(
    sheet: Sheet,
    random_: random.Random,
    style: str,
    xs: Sequence[float],
    ys: Sequence[float],
    cells: Sequence[tuple[int, int, int, int]],
) -> None:
    width, gray = random_.choice((1, 2, 3)), random_.choice((0, 60, 150, 200))
    if style in {"ruled", "spans"} or (style == "wrapped" and random_.random() < 0.6):
        for row, column, down, right in cells:
            sheet.pen.rectangle((xs[column], ys[row], xs[column + right], ys[row + down]), outline=gray, width=width)
    across = {
        "framed": ys,
        "between_rows": ys,
        "booktabs": (ys[0], ys[1], ys[-1]),
        "inner": (ys[0], ys[1], ys[-1]),
    }.get(style, ())
    for y in across:
        sheet.rule(xs[0], y, xs[-1], y, width, gray)
    sides = {"framed": (xs[0], xs[-1]), "inner": xs[1:-1]}.get(style, ())
    for x in sides:
        sheet.rule(x, ys[0], x, ys[-1], width, gray)


def draw_paragraph(sheet: Sheet, random_: random.Random, left: float, top: float, width: float, lines: int) -> float:
    """Draw running text; returns its bottom."""
    for number_ in range(lines):
        text, room = "", width * (random_.uniform(0.3, 0.9) if number_ == lines - 1 else 1)
        while True:
            longer = text + ("" if sheet.language == "zh" or not text else " ") + words(random_, sheet.language, 1, 1)
            if sheet.width_of(longer) > room:
                break
            text = longer
        sheet.write(left, top, text or "end")
        top += 1.45 * sheet.font_px
    return top


def finish(sheet: Sheet, name: str, slant: float) -> DrawnPage:
    """The drawn page, rotated clockwise by `slant` degrees about its centre."""
    image = sheet.image.rotate(-slant, Image.Resampling.BICUBIC, fillcolor=255) if slant else sheet.image
    middle = np.array(SIZE_PX) / 2
    cos, sin = np.cos(np.radians(slant)), np.sin(np.radians(slant))
    turn = np.array([[cos, -sin], [sin, cos]])
    frames = np.array([frame for _, frame in sheet.texts])
    boxes = as_boxes((frames[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2) - middle) @ turn.T + middle)
    lines = tuple(Line(text, 0.99, box) for (text, _), box in zip(sheet.texts, boxes, strict=True))
    return DrawnPage(name, np.asarray(image), Page(*SIZE_PX, 0, lines), sheet.tables)


Drawer = Callable[[Sheet, random.Random], None]


def draw_page(kind: str, seed: int, slant: float = 0.0) -> DrawnPage:
    """Draw a page of a kind in KINDS; the same seed draws the same page."""
    random_ = random.Random(f"{kind} {seed}")
    sheet = Sheet(random_.choice(("en", "zh")), random_.choice((20, 24, 28, 32)))
    KINDS[kind](sheet, random_)
    return finish(sheet, f"{kind} {seed} {slant:+.1f}", slant)


def _with_text(style: str) -> Drawer:
    def draw(sheet: Sheet, random_: random.Random) -> None:
        y = draw_paragraph(sheet, random_, 120, 200, 1000, random_.randint(2, 5)) + 2 * sheet.font_px
        y = draw_table(sheet, random_, style, 120, y, random_.uniform(700, 1000)) + 2 * sheet.font_px
        draw_paragraph(sheet, random_, 120, y, 1000, random_.randint(2, 5))

    return draw


def _side_by_side(sheet: Sheet, random_: random.Random) -> None:
    style = random_.choice(("open", "ruled", "booktabs"))
    draw_table(sheet, random_, style, 100, 300, 460)
    draw_table(sheet, random_, style, 680, 300, 460)


def _in_a_column(sheet: Sheet, random_: random.Random) -> None:
    draw_paragraph(sheet, random_, 100, 200, 480, 30)
    y = draw_paragraph(sheet, random_, 660, 200, 480, 4) + 2 * sheet.font_px
    y = draw_table(sheet, random_, random_.choice(STYLES), 660, y, 480) + 2 * sheet.font_px
    draw_paragraph(sheet, random_, 660, y, 480, 4)


def _two_columns(sheet: Sheet, random_: random.Random) -> None:
    sheet.rule(100, 150, 1140, 150)
    draw_paragraph(sheet, random_, 100, 200, 480, 30)
    draw_paragraph(sheet, random_, 660, 200, 480, 30)
    sheet.rule(100, 1650, 1140, 1650)


def _letter(sheet: Sheet, random_: random.Random) -> None:
    y = 200.0
    for lines in (3, 2, 6, 8, 5):
        y = draw_paragraph(sheet, random_, 150, y, 940, lines) + sheet.font_px
    sheet.write(150, y + 50, "Signature")
    sheet.rule(300, y + 80, 700, y + 80)


KINDS: Final[dict[str, Drawer]] = {style: _with_text(style) for style in STYLES} | {
    "side_by_side": _side_by_side,
    "in_a_column": _in_a_column,
    "two_columns": _two_columns,
    "letter": _letter,
}
"""Page kinds by name; the last two have no table."""
