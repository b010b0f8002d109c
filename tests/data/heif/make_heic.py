"""Writes the HEIC files in this folder (blue top left, red top right, green bottom) and a large black AVIF.

    pip install pillow-heif==1.8.1 && python tests/data/heif/make_heic.py

pillow-heif contains x265, a GPL encoder, so the tests do not install it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
from PIL import Image

HERE = Path(__file__).parent
ORIENTATION = 0x0112


def turned(image: Image.Image, orientation: int) -> Image.Image:
    """A copy with this EXIF orientation; the encoder also writes the boxes `irot` and `imir`."""
    copy, exif = image.copy(), Image.Exif()
    exif[ORIENTATION] = orientation
    copy.info["exif"] = exif.tobytes()
    return copy


def save(name: str, image: Image.Image, **options: Any) -> None:
    image.save(HERE / name, quality=90, **options)


def save_deep(name: str, mode: str, samples: np.ndarray, **options: Any) -> None:
    """Save with 10 bits per sample."""
    height, width = samples.shape[:2]
    file = pillow_heif.from_bytes(mode, (width, height), np.ascontiguousarray(samples).tobytes())
    file.save(HERE / name, quality=90, **options)


if __name__ == "__main__":
    pillow_heif.register_heif_opener()
    pixels = np.zeros((64, 96, 3), np.uint8)
    pixels[:32, :48, 2], pixels[:32, 48:, 0], pixels[32:, :, 1] = 255, 255, 255
    page, deep = Image.fromarray(pixels), pixels.astype(np.uint16) * 257
    alpha = np.tile(np.repeat(np.array([0, 255], np.uint8), 48), (64, 1))
    save("plain.heic", page)
    save("turned.heic", turned(page, 6))
    save("mirrored.heic", turned(page, 5))
    save("tiles.heic", page.resize((150, 100), Image.Resampling.NEAREST), tile_size=64)
    save("clear.heic", Image.fromarray(np.dstack([pixels // 8, alpha])))
    save("gray.heic", page.convert("L"))
    save_deep("ten_bits.heic", "RGB;16", deep)
    save_deep("ten_bits_444.heic", "RGB;16", deep, chroma=444)
    save_deep("gray_ten_bits.heic", "I;16", deep.max(2) - deep[..., 1] // 2)
    several = pillow_heif.from_pillow(Image.new("RGB", (96, 64), (255, 255, 255)))
    several.add_from_pillow(page)
    several.save(HERE / "several.heic", quality=90, primary_index=1)
    Image.new("L", (16_000, 16_000)).save(HERE / "large.avif", speed=10)
