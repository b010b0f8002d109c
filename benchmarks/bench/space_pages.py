"""Draws pages of known Latin words as scanners and cameras produce them, as JPEG of several qualities."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

FACES: Final = ("Sans", "Serif")
_FONTS: Final = Path("/usr/share/fonts/truetype/dejavu")
_A4_INCHES: Final = (8.27, 11.69)
_MARGIN: Final = 0.08  # of the page's width, on each side
_PITCH: Final = 1.5  # times the font size
_MAX_WORDS: Final = 400  # per page, because large pages of small type would take minutes
_PAPER, _INK, _BLUR_PX, _GRAIN = 246, 40, 0.6, 6.0  # for a scanned page

_TEXT: Final = """
of to in is it on as by at or an we up so no if do go me the and was for that with from this have not but one were has
two who also may only other into than first time some most these over such our can new many very much light water house
river until morning winter summer people garden window letter market silver yellow bridge doctor father mother sister
table paper stone green black white small large short under after before again never every early quiet place field
story plain clear night north south round world still often young horse train wheel cloud grass
"""


@dataclass(frozen=True, slots=True)
class SpacedPage:
    """A page with known text: the picture and its lines."""

    picture: Image.Image
    lines: Sequence[str]

    @property
    def text(self) -> str:
        """All lines, joined."""
        return "\n".join(self.lines)


def draw_page(seed: int, face: str, size_px: int, dpi: int, *, grain: bool) -> SpacedPage:
    """Draw an A4 page of black words on white; with `grain`, as a scanner would produce it."""
    chosen, known = random.Random(seed), _TEXT.split()
    width, height = (round(side * dpi) for side in _A4_INCHES)
    picture = Image.new("L", (width, height), 255)
    draw = ImageDraw.Draw(picture)
    font = ImageFont.truetype(str(_FONTS / f"DejaVu{face}.ttf"), size_px)
    margin, lines, words = round(_MARGIN * width), list[str](), 0
    top = margin
    while top + _PITCH * size_px < height - margin and words < _MAX_WORDS:
        line = [chosen.choice(known)]
        while draw.textlength(" ".join([*line, word := chosen.choice(known)]), font=font) <= width - 2 * margin:
            line.append(word)
        draw.text((margin, top), " ".join(line), font=font, fill=0)
        lines.append(" ".join(line))
        words += len(line)
        top += round(_PITCH * size_px)
    return SpacedPage(_as_scanned(picture, seed) if grain else picture, lines)


def as_jpeg(picture: Image.Image, quality: int, dpi: int) -> bytes:
    """Encode the picture as a JPEG that states its resolution."""
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality, dpi=(dpi, dpi))
    return file.getvalue()


def _as_scanned(picture: Image.Image, seed: int) -> Image.Image:
    soft = np.asarray(picture.filter(ImageFilter.GaussianBlur(_BLUR_PX)), np.float64)
    shades = _INK + soft / 255 * (_PAPER - _INK)
    shades += np.random.default_rng(seed).normal(0, _GRAIN, shades.shape)
    return Image.fromarray(np.clip(shades, 0, 255).astype(np.uint8))
