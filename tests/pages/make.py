"""Makes the pages beside this file.

    python tests/pages/make.py

Needs Pillow and the font Noto Sans CJK (Debian: fonts-noto-cjk). The texts are ours, and so are the pages.
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

HERE = Path(__file__).parent
FONT = Path(sys.argv[1] if len(sys.argv) > 1 else "/usr/share/fonts/opentype/noto/NotoSansCJK-Regular.ttc")

NOTICE = [
    ("通知 Notice", 44),
    ("图书馆今天下午三点关门。", 30),
    ("The library closes at 15:00 today.", 30),
    ("编号 2026-1121  电话 010-5550142", 26),
]


def draw_notice() -> Image.Image:
    """Four lines, Chinese and English, black on white, 640 x 300 pixels."""
    page = Image.new("RGB", (640, 300), "white")
    pen, top = ImageDraw.Draw(page), 24
    for text, size in NOTICE:
        pen.text((32, top), text, "black", ImageFont.truetype(str(FONT), size))
        top += size + 32
    return page


def main() -> None:
    """Write notice.png, the same as a JPEG, turned by 90 and 180 degrees, and one line of it."""
    page = draw_notice()
    page.save(HERE / "notice.png", optimize=True)
    page.save(HERE / "notice.jpg", quality=90)
    page.rotate(-90, expand=True).save(HERE / "notice_turned_90.png", optimize=True)
    page.rotate(180).save(HERE / "notice_turned_180.png", optimize=True)
    page.crop((20, 175, 620, 225)).save(HERE / "line.png", optimize=True)
    (HERE / "notice.txt").write_text("\n".join(text for text, _ in NOTICE) + "\n", "utf-8")


if __name__ == "__main__":
    main()
