"""Removing background noise (JPEG, scanner) from lines, so that spaces are read as on a plain background."""

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from image_support import decoded, saved
from PIL import Image as Picture
from PIL import ImageDraw, ImageFont
from ppocr_support import read, rectangle
from strict_arrays import StrictArrays

from ocrsvc.engines.ppocr.engine import PageHandle
from ocrsvc.engines.ppocr.gpu.arrays import ArrayBackend
from ocrsvc.engines.ppocr.gpu.resampling import crop_lines
from ocrsvc.engines.ppocr.pipeline.network_input import USUAL, level_ground, to_tensor
from ocrsvc.imaging.geometry import crop
from ocrsvc.results import Pixels

SERIF = Path("/usr/share/fonts/truetype/dejavu/DejaVuSerif.ttf")
WORDS = "until morning the water in our small garden was not so very quiet"
Tone = int | tuple[int, int, int]


def line(text: str = WORDS, ink: Tone = 0, ground: Tone = 255) -> Picture.Image:
    """A line of 40 px text on an image 64 px high."""
    font = ImageFont.truetype(str(SERIF), 40)
    picture = Picture.new("RGB" if isinstance(ground, tuple) else "L", (int(font.getlength(text)) + 40, 64), ground)
    ImageDraw.Draw(picture).text((20, 8), text, fill=ink, font=font)
    return picture


def as_jpeg(picture: Picture.Image, quality: int = 80) -> Pixels:
    return decoded(saved(picture, "JPEG", quality=quality))


def grainy(picture: Picture.Image) -> Pixels:
    soft = cv2.GaussianBlur(np.asarray(picture, np.float32), (0, 0), 0.6) * 0.8 + 40
    return np.clip(soft + np.random.default_rng(3).normal(0, 6, soft.shape), 0, 255).astype(np.uint8)


@pytest.mark.parametrize(
    "pixels",
    [
        pytest.param(np.asarray(line()), id="no noise"),
        pytest.param(as_jpeg(line(ink=200)), id="hardly any contrast"),
        pytest.param(np.random.default_rng(1).integers(0, 256, (48, 320), np.uint8), id="a picture"),
        pytest.param(np.full((48, 320, 3), 255, np.uint8), id="nothing at all"),
        pytest.param(np.tile(np.arange(256, dtype=np.uint8), (48, 1)), id="a gradient"),
    ],
)
def test_lines_without_a_noisy_background_stay_unchanged(pixels: Pixels) -> None:
    assert level_ground(pixels) is pixels
    # Coloured ink as bright as the background stays, too.
    picture = line(ink=(0, 0, 0), ground=(255, 255, 255))
    ImageDraw.Draw(picture).rectangle((2, 2, 12, 60), fill=(255, 255, 90))
    assert level_ground(as_jpeg(picture))[30, 6, 0] < 150


@pytest.mark.parametrize("backend", [ArrayBackend(), StrictArrays()], ids=["numpy", "strict"])
@pytest.mark.parametrize("ground", [255, (250, 240, 200)], ids=["gray", "colour"])
def test_noise_is_removed_on_the_gpu_as_in_memory(backend: ArrayBackend, ground: Tone) -> None:
    plain = line(ground=ground, ink=0 if ground == 255 else (0, 0, 0))
    page = np.concatenate([as_jpeg(plain), np.asarray(plain)])
    quads = [rectangle(0, top, page.shape[1], top + 64) for top in (0, 64)]
    tensor = backend.download(crop_lines(backend, backend.upload(page), quads, [640, 640], 640, USUAL))
    for row, quad in zip(tensor, quads, strict=True):
        expected = to_tensor(level_ground(crop(page, quad, 640, 48)), USUAL)[0]
        assert (np.abs(row - expected) > 1.01 / 127.5).mean() < 1e-3


@pytest.mark.parametrize(
    "noise", [lambda page: as_jpeg(page, 60), lambda page: as_jpeg(page, 80), grainy], ids=["q60", "q80", "grain"]
)
def test_spaces_of_noisy_enlarged_pages_are_read(noise: Callable[[Picture.Image], Pixels], handle: PageHandle) -> None:
    words = WORDS.split()
    rows = [" ".join(words[at:] + words[:at]) for at in range(len(words))]
    pictures = [line(row).resize((900, 39)) for row in rows]
    page = Picture.new("L", (980, 60 * len(rows) + 40), 255)
    for at, picture in enumerate(pictures):
        page.paste(picture, (40, 30 + 60 * at))
    pixels = cv2.resize(noise(page), None, fx=4 / 3, fy=4 / 3, interpolation=cv2.INTER_LINEAR)
    assert read(handle, np.asarray(pixels, np.uint8)).text.splitlines() == rows
