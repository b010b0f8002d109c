"""Draws the pages in this folder, and the reference page with which the engine ppocr chooses its runtime.

Needs Pillow with Raqm, and the fonts Noto Sans CJK and Noto Naskh Arabic (Debian: fonts-noto-cjk fonts-noto-core). The
texts of korean.png and arabic.png are from the Universal Declaration of Human Rights; we wrote the others.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

HERE = Path(__file__).parent
ARABIC_FONT = Path("/usr/share/fonts/truetype/noto/NotoNaskhArabic-Regular.ttf")
FONT = Path(sys.argv[1] if len(sys.argv) > 1 else "/usr/share/fonts/opentype/noto/NotoSansCJK-Regular.ttc")

NOTICE = [
    ("通知 Notice", 44),
    ("图书馆今天下午三点关门。", 30),
    ("The library closes at 15:00 today.", 30),
    ("编号 2026-1121  电话 010-5550142", 26),
]

# Mixed Chinese and Latin text: without spaces between the scripts, as often typed in offices, and with them.
CLOSED = (HERE / "closed.txt").read_text("utf-8").splitlines()
SPACED = [re.sub("(?<=[0-9A-Za-z])(?=[一-龥])|(?<=[一-龥])(?=[0-9A-Za-z])", " ", line) for line in CLOSED]
REFERENCE = [row.split(maxsplit=1) for row in (HERE / "reference.txt").read_text("utf-8").splitlines()]
REFERENCE_WORDS = ["姓名", "Name", "日期", "Date", "数量", "Total", "合计", "No. 17", "单价", "12.40"]


def draw_reference() -> Image.Image:
    """The page on which candidate runtimes are compared: 13 lines and ten words, 960 x 704 pixels, gray."""
    page = Image.new("L", (960, 704), "white")
    pen, top = ImageDraw.Draw(page), 20
    for size, text in REFERENCE:
        pen.text((30, top), text, "black", ImageFont.truetype(str(FONT), int(size)))
        top += round(int(size) * 1.25) + 15
    for number, word in enumerate(REFERENCE_WORDS):
        column, row = number % 5, number // 5
        pen.text((30 + 180 * column, top + 42 * row), word, "black", ImageFont.truetype(str(FONT), 24))
    return page.quantize(16)


def draw_notice() -> Image.Image:
    """Four lines, Chinese and English, black on white, 640 x 300 pixels."""
    page = Image.new("RGB", (640, 300), "white")
    pen, top = ImageDraw.Draw(page), 24
    for text, size in NOTICE:
        pen.text((32, top), text, "black", ImageFont.truetype(str(FONT), size))
        top += size + 32
    return page


def draw_lines(lines: list[str]) -> Image.Image:
    """Lines of 20 px, black on white, 560 x 300 pixels."""
    page = Image.new("RGB", (560, 300), "white")
    pen, font = ImageDraw.Draw(page), ImageFont.truetype(str(FONT), 20)
    for number, line in enumerate(lines):
        pen.text((32, 24 + 42 * number), line, "black", font)
    return page


def draw_foreign(lines: list[str], font_file: Path, *, from_right: bool = False) -> Image.Image:
    """Lines of 26 px, black on white, 900 pixels wide."""
    page = Image.new("L", (900, 40 + 52 * len(lines)), "white")
    pen, font = ImageDraw.Draw(page), ImageFont.truetype(str(font_file), 26)
    for number, line in enumerate(lines):
        left = page.width - 30 - font.getlength(line) if from_right else 30
        pen.text((left, 20 + 52 * number), line, "black", font)
    return page.quantize(8)


def main() -> None:
    """Write all pages: notice (also a JPEG, rotated, and one line of it), closed, spaced, korean, arabic, reference."""
    for name, lines in (("closed", CLOSED), ("spaced", SPACED)):
        draw_lines(lines).convert("L").save(HERE / f"{name}.png", optimize=True)
        (HERE / f"{name}.txt").write_text("\n".join(lines) + "\n", "utf-8")
    for name, font_file in (("korean", FONT), ("arabic", ARABIC_FONT)):
        lines = (HERE / f"{name}.txt").read_text("utf-8").splitlines()
        draw_foreign(lines, font_file, from_right=name == "arabic").save(HERE / f"{name}.png", optimize=True)
    page = draw_notice()
    page.save(HERE / "notice.png", optimize=True)
    page.save(HERE / "notice.jpg", quality=90)
    page.rotate(-90, expand=True).save(HERE / "notice_turned_90.png", optimize=True)
    page.rotate(180).save(HERE / "notice_turned_180.png", optimize=True)
    page.crop((20, 175, 620, 225)).save(HERE / "line.png", optimize=True)
    draw_reference().save(HERE.parents[1] / "ocrsvc/engines/ppocr/reference_page.png", optimize=True)
    (HERE / "notice.txt").write_text("\n".join(text for text, _ in NOTICE) + "\n", "utf-8")


if __name__ == "__main__":
    main()
