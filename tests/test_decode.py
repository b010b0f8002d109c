"""Decoding image files of all supported types to pixels, and the errors for undecodable files."""

import functools
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile_files import deflated
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from image_support import saved
from numpy.typing import NDArray
from PIL import Image as Pillow
from PIL import TiffImagePlugin
from support import SHARED, data_of, malformed_files

from ocrsvc.errors import BrokenImage, ImageTooLarge, OcrsvcError, UnsupportedImage
from ocrsvc.http.base64text import decode_base64
from ocrsvc.imaging.codecs.decode import PixelLimits, decode, open_encoded_image
from ocrsvc.results import no_check

LIMITS = PixelLimits(50_000_000, {"gif": 20_000_000, "webp": 30_000_000, "tiff": 40_000_000})
ORIENTATION = 0x0112
WHITE_IS_ZERO, BLACK_IS_ZERO = 0, 1


def colour_page() -> Pillow.Image:
    """Blue top left, red top right, green bottom: different in every orientation."""
    pixels = np.zeros((32, 48, 3), np.uint8)
    pixels[:16, :24, 2], pixels[:16, 24:, 0], pixels[16:, :, 1] = 255, 255, 255
    return Pillow.fromarray(pixels)


def gray_page() -> Pillow.Image:
    return Pillow.fromarray((np.add.outer(np.arange(32) * 3, np.arange(48) * 2)).astype(np.uint8))


def exif_of(orientation: int) -> Pillow.Exif:
    exif = Pillow.Exif()
    exif[ORIENTATION] = orientation
    return exif


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png_of(width: int, height: int, depth: int, kind: int, rows: bytes, *extra: bytes) -> bytes:
    """A PNG built by hand: `rows` include their filter bytes; `extra` chunks precede the pixel data."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(extra) + pixels


def read(data: bytes, *, gray: bool = False) -> NDArray[np.uint8]:
    return decode(data, LIMITS, gray=gray).pixels


def black_and_white_page() -> Pillow.Image:
    return gray_page().point(lambda level: 255 * (level > 80)).convert("1")


def stored(page: Pillow.Image) -> NDArray[np.uint8]:
    """The expected pixels: gray, or channels in BGR order."""
    pixels = np.asarray(page.convert("L") if page.mode in ("1", "L") else page.convert("RGB"))
    return pixels if pixels.ndim == 2 else pixels[..., ::-1]


LOSSLESS: list[tuple[Callable[[], Pillow.Image], str, dict[str, Any]]] = [
    *((colour_page, name, {}) for name in ("PNG", "BMP", "TIFF", "PPM", "GIF")),
    *((colour_page, "TIFF", {"compression": kind}) for kind in ("tiff_lzw", "tiff_deflate", "packbits")),
    (colour_page, "WEBP", {"lossless": True}),
    *((black_and_white_page, name, {}) for name in ("PNG", "BMP", "TIFF", "PPM", "GIF")),
    (black_and_white_page, "TIFF", {"compression": "group4"}),
    *((gray_page, name, {}) for name in ("PNG", "BMP", "TIFF", "PPM", "GIF")),
    *((lambda: colour_page().quantize(4), name, {}) for name in ("PNG", "BMP", "TIFF", "GIF")),
    (lambda: colour_page().convert("CMYK"), "TIFF", {}),
]


@pytest.mark.parametrize(("page", "name", "options"), LOSSLESS)
def test_lossless_files_are_exact(page: Callable[[], Pillow.Image], name: str, options: dict[str, Any]) -> None:
    assert np.array_equal(read(saved(page(), name, **options)), stored(page()))


def test_a_palette_of_grays_counts_as_gray() -> None:
    assert read(saved(gray_page().convert("RGB").quantize(256), "PNG")).shape == (32, 48)


def ycck() -> bytes:
    """A YCCK JPEG of the inverted colours; Pillow inverts CMYK when it writes, so it gets the complement."""
    planes = Pillow.fromarray(255 - np.asarray(colour_page())).convert("YCbCr").split()
    inverted = [plane.point(lambda level: 255 - level) for plane in planes]
    data = saved(Pillow.merge("CMYK", [*inverted, planes[0].point(lambda _: 0)]), "JPEG", quality=95, subsampling=0)
    adobe = data.index(b"Adobe")
    return data[: adobe + 11] + b"\x02" + data[adobe + 12 :]


JPEGS: dict[str, Callable[[], bytes]] = {
    "plain": lambda: saved(colour_page(), "JPEG", quality=95),
    "progressive": lambda: saved(colour_page(), "JPEG", quality=95, progressive=True),
    "unsampled": lambda: saved(colour_page(), "JPEG", quality=95, subsampling=0),
    "CMYK": lambda: saved(colour_page().convert("CMYK"), "JPEG", quality=95, subsampling=0),
    "YCCK": ycck,
}


@pytest.mark.parametrize("kind", JPEGS)
def test_a_jpeg_decodes_within_its_compression_loss(kind: str) -> None:
    assert np.abs(read(JPEGS[kind]()).astype(int) - stored(colour_page())).mean() < 6


@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM"])
def test_colour_is_converted_to_gray_on_request(name: str) -> None:
    page = colour_page().resize((96, 64), Pillow.Resampling.NEAREST)
    losses: dict[str, dict[str, Any]] = {"JPEG": {"quality": 95}, "WEBP": {"lossless": True}}
    pixels = read(saved(page, name, **losses.get(name, {})), gray=True).astype(int)
    # Gray = 0.299 R + 0.587 G + 0.114 B, JPEG's weights (ITU-R BT.601).
    assert [pixels[8, 8], pixels[8, 88], pixels[56, 8]] == pytest.approx([29, 76, 150], abs=3)


WIDE = np.array([[0, 1, 255, 256, 0x1234, 0x8000, 0xFFFF]], np.uint16)
NARROW = [0, 0, 0, 1, 0x12, 0x80, 0xFF]


def png_of_words(kind: int, *words: int) -> bytes:
    return png_of(3, 1, 16, kind, b"\0" + np.array(words, ">u2").tobytes())


def pgm_of(top: int) -> bytes:
    levels = np.array([0, top // 2, top], ">u2" if top > 255 else np.uint8)
    return b"P5\n# a comment\n3 1\n%d\n" % top + levels.tobytes()


def tiff_of(levels: NDArray[Any], photometric: int = BLACK_IS_ZERO) -> bytes:
    data = saved(Pillow.fromarray(levels[None]), "TIFF", tiffinfo=TiffImagePlugin.ImageFileDirectory_v2())
    entry = struct.pack("<HHIH", 262, 3, 1, BLACK_IS_ZERO)
    assert data.count(entry) == 1
    return data.replace(entry, struct.pack("<HHIH", 262, 3, 1, photometric))


HALF = Pillow.fromarray(np.array([[(100, 0, 0, 128), (0, 0, 0, 255)]], np.uint8))
ROWS: dict[str, tuple[bytes, Sequence[float]]] = {
    "a PNG of 16 bits": (saved(Pillow.fromarray(WIDE), "PNG"), NARROW),
    "a TIFF of 16 bits": (saved(Pillow.fromarray(WIDE), "TIFF"), NARROW),
    "16 bits in colour": (png_of_words(2, *WIDE[0].tolist(), 0xFFFF, 0xFFFF), [*NARROW, 255, 255]),
    "16 bits with alpha": (png_of_words(4, 0, 0xFFFF, 0x8000, 0xFFFF, 0, 0), [0, 128, 255]),
    **{
        f"a PGM whose white is {top}": (pgm_of(top), [0, 255 * (top // 2) / top, 255])
        for top in (1, 100, 255, 1000, 65_535)
    },
    "8 bits whose white is 0": (tiff_of(np.array([0, 255], np.uint8), WHITE_IS_ZERO), [255, 0]),
    "16 bits whose white is 0": (tiff_of(np.array([0, 65_535], np.uint16), WHITE_IS_ZERO), [255, 0]),
    **{
        f"floats up to {white}": (tiff_of(np.array([0, white / 2, white], np.float32)), [0, 128, 255])
        for white in (1.0, 255.0, 4000.0)
    },
    "a transparent page": (saved(Pillow.new("RGBA", (2, 1), (0, 0, 0, 0)), "PNG"), [255] * 6),
    # Over white: red = 100 * 128 / 255 + 255 - 128; green and blue = 255 - 128.
    "half transparent ink": (saved(HALF, "PNG"), [177, 127, 127, 0, 0, 0]),
}


@pytest.mark.parametrize("kind", ROWS)
def test_samples_of_every_kind_are_scaled_to_eight_bits_over_white(kind: str) -> None:
    data, expected = ROWS[kind]
    row = read(data)[0]
    assert (row[:, ::-1].ravel() if row.ndim == 2 else row) == pytest.approx(expected, abs=1)


def ink(level: int, ground_alpha: int = 0) -> Pillow.Image:
    """A bar of gray `level` on a transparent ground."""
    pixels = np.zeros((32, 48, 4), np.uint8)
    pixels[..., 3] = ground_alpha
    pixels[8:24, 8:40] = (level, level, level, 255)
    return Pillow.fromarray(pixels)


INKS = [("PNG", 10, 255), ("WEBP", 10, 255), ("TIFF", 10, 255), ("PNG", 255, 0), ("PNG", 240, 0)]


@pytest.mark.parametrize(("name", "level", "ground"), INKS)
@pytest.mark.parametrize("gray", [False, True])
def test_transparency_is_composited_over_a_contrasting_ground(name: str, level: int, ground: int, gray: bool) -> None:
    pixels = read(saved(ink(level), name, **({"lossless": True} if name == "WEBP" else {})), gray=gray)
    assert (int(pixels[16, 16].max()), int(pixels[0, 0].min())) == (level, ground)


def test_the_transparent_colour_of_a_palette_becomes_white() -> None:
    page = colour_page().quantize(4)
    red = page.getpixel((40, 4))
    pixels = read(saved(page, "PNG", transparency=red))
    assert (pixels[4, 40].tolist(), pixels[4, 4].tolist()) == ([255, 255, 255], [255, 0, 0])


def shown(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """The pixels as displayed, by the EXIF standard's table of the positions of row 0 and column 0."""
    rows = pixels.swapaxes(0, 1) if orientation > 4 else pixels
    flips = {2: (1, -1), 3: (-1, -1), 4: (-1, 1), 6: (1, -1), 7: (-1, -1), 8: (-1, 1)}.get(orientation, (1, 1))
    return rows[:: flips[0], :: flips[1]]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["JPEG", "WEBP", "PNG", "TIFF"])
def test_every_exif_orientation_is_turned_upright(name: str, orientation: int) -> None:
    save_options: dict[str, dict[str, Any]] = {"JPEG": {"quality": 95, "subsampling": 0}, "WEBP": {"lossless": True}}
    expected = shown(stored(colour_page()), orientation)
    pixels = read(saved(colour_page(), name, exif=exif_of(orientation), **save_options.get(name, {})))
    assert pixels.shape == expected.shape
    assert np.abs(pixels.astype(int) - expected).mean() < 6


def tiff_block(*entries: bytes, start: int = 8, count: int | None = None) -> bytes:
    return struct.pack("<2sHIH", b"II", 42, start, len(entries) if count is None else count) + b"".join(entries)


def entry_of(value: int, kind: int = 3, count: int = 1) -> bytes:
    return struct.pack("<HHIHxx", ORIENTATION, kind, count, value)


BROKEN_EXIF = {
    "zero": tiff_block(entry_of(0)),
    "wrong type": tiff_block(entry_of(6, kind=2)),
    "no TIFF": b"hello, world",
    "cut in an entry": tiff_block(entry_of(6))[:-6],
    "directory far outside": tiff_block(entry_of(6), start=2**32 - 1),
    "more entries than bytes": tiff_block(count=65_535),
}


@pytest.mark.parametrize("exif", BROKEN_EXIF.values(), ids=BROKEN_EXIF.keys())
def test_illegal_or_broken_exif_is_ignored(exif: bytes) -> None:
    page = colour_page()
    data = saved(page, "JPEG")
    segment = b"\xff\xe1" + struct.pack(">H", len(exif) + 8) + b"Exif\0\0" + exif
    assert read(data[:2] + segment + data[2:]).shape == (32, 48, 3)
    assert read(png_of(2, 1, 8, 0, b"\0\0\1", chunk(b"eXIf", exif))).shape == (1, 2)


def test_exif_orientation_is_read_in_both_byte_orders() -> None:
    big = struct.pack(">2sHIHHHIHxx", b"MM", 42, 8, 1, ORIENTATION, 3, 1, 6)
    little = tiff_block(entry_of(6))
    assert [read(png_of(2, 1, 8, 0, b"\0\0\1", chunk(b"eXIf", exif))).shape for exif in (big, little)] == [(2, 1)] * 2


@pytest.mark.parametrize("name", ["GIF", "PNG", "WEBP", "TIFF"])
def test_the_first_of_several_frames_is_decoded(name: str) -> None:
    first, second = Pillow.new("RGB", (20, 10), (250, 0, 0)), Pillow.new("RGB", (20, 10), (0, 0, 250))
    options = {"lossless": True} if name == "WEBP" else {}
    data = saved(first, name, save_all=True, append_images=[second], **options)
    assert read(data)[5, 10].tolist() == [0, 0, 250]


@pytest.mark.parametrize(("data", "name"), data_of("other_file_types"))
def test_other_file_types_are_refused_by_name(data: str, name: str) -> None:
    with pytest.raises(UnsupportedImage, match=name) as caught:
        read(data.encode("latin-1"))
    assert "JPEG, PNG" in caught.value.remedy


def cut(name: str, share: float, **options: Any) -> bytes:
    noise = np.random.default_rng(1).integers(0, 256, (64, 64, 3), np.uint8)
    data = saved(Pillow.fromarray(noise), name, **options)
    return data[: int(len(data) * share)]


DAMAGED = {
    "nothing": b"",
    "a JPEG header alone": saved(colour_page(), "JPEG")[:40],
    **{f"half of a {name}": cut(name, 0.5) for name in ("JPEG", "PNG", "WEBP", "BMP", "GIF", "PPM")},
    "a PNG of width 0": png_of(0, 10, 8, 0, b""),
    "a PNG without its palette": png_of(1, 1, 8, 3, b"\0\0"),
    "a PNG with a row missing": png_of(1, 2, 8, 0, b"\0\0"),
    "a PNG without pixels": b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)),
    "a WebP with an unknown chunk": b"RIFF\0\0\0\0WEBPABCD" + bytes(20),
    # Pillow writes the directory first, so the cut removes pixel data.
    "nine tenths of a TIFF": cut("TIFF", 0.9, compression="tiff_lzw"),
    "a PPM without a size": b"P6\nhello",
    "a PGM with maximum level 0": b"P5 1 1 0 \0",
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED.keys())
def test_damaged_files_are_refused(data: bytes) -> None:
    with pytest.raises(BrokenImage):
        read(data)


@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "PPM"])
def test_missing_end_markers_and_bytes_after_the_image_are_ignored(name: str) -> None:
    data = saved(colour_page(), name)
    end_bytes = {"JPEG": 2, "PNG": 12}.get(name, 0)
    for changed in (data[: len(data) - end_bytes], data + b"<html>PK\x03\x04" * 50):
        assert np.array_equal(read(changed), read(data))


def test_a_jpeg_with_too_many_scans_for_its_size_is_refused() -> None:
    data = saved(colour_page(), "JPEG", progressive=True)
    scan, frame = data.rindex(b"\xff\xda"), data.index(b"\xff\xc2") + 5
    with pytest.raises(BrokenImage, match="scans"):
        read(data[:scan] + data[scan:-2] * 600 + data[-2:])
    many = data[:scan] + data[scan:-2] * 60 + data[-2:]
    assert np.array_equal(read(many), read(data))
    with pytest.raises(BrokenImage, match="scans; the limit at 7000 x 7000 pixels is 30"):
        read(many[:frame] + struct.pack(">HH", 7000, 7000) + many[frame + 4 :])


def test_a_jpeg_with_separate_component_scans_is_charged_like_a_progressive_one() -> None:
    """Decoding such a JPEG needs 6.6 bytes of resident memory per pixel in gray and 8.5 in colour (measured)."""
    gray = saved(colour_page().convert("L"), "JPEG")
    frame, scan = gray.index(b"\xff\xc0"), gray.index(b"\xff\xda")
    after = frame + 2 + int.from_bytes(gray[frame + 2 : frame + 4], "big")
    components = b"\1\x11\0\2\x11\0\3\x11\0"
    begin = gray[:frame] + b"\xff\xc0\0\x11" + gray[frame + 4 : frame + 9] + b"\3" + components + gray[after:scan]
    pixels = gray[scan + 10 : -2]
    scans = [b"\xff\xda\0\x08\1" + bytes([name]) + b"\0\0\x3f\0" + pixels for name in (1, 2, 3)]
    picture = open_encoded_image(begin + b"".join(scans) + b"\xff\xd9", PixelLimits(10**6))
    area = picture.width * picture.height
    assert picture.peak_bytes(gray=True) >= 6.6 * area
    assert picture.peak_bytes(gray=False) >= 8.5 * area
    assert picture.read(True, no_check).shape[:2] == (picture.height, picture.width)


def huge_jpeg() -> bytes:
    data = saved(colour_page(), "JPEG")
    return data.replace(struct.pack(">BHH", 8, 32, 48), struct.pack(">BHH", 8, 60_000, 60_000))


def huge_tiff() -> bytes:
    data = saved(gray_page(), "TIFF")
    for tag, side_px in ((256, 48), (257, 32)):
        entry = struct.pack("<HHII", tag, 4, 1, side_px)
        assert data.count(entry) == 1
        data = data.replace(entry, struct.pack("<HHII", tag, 4, 1, 60_000))
    return data


HUGE: dict[str, Callable[[], bytes]] = {
    "jpeg": huge_jpeg,
    "png": lambda: png_of(60_000, 60_000, 1, 0, b""),
    "webp": lambda: b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f" + struct.pack("<I", 16_382 << 14 | 16_382) + bytes(9),
    "gif": lambda: b"GIF89a" + struct.pack("<HH", 60_000, 60_000) + saved(gray_page(), "GIF")[10:],
    "bmp": lambda: saved(gray_page(), "BMP")[:18] + struct.pack("<ii", 60_000, -60_000) + bytes(2000),
    "tiff": huge_tiff,
    "pnm": lambda: b"P4 60000 60000\n",
}


@pytest.mark.parametrize("name", HUGE)
def test_too_many_pixels_are_refused_with_count_and_limit(name: str) -> None:
    with pytest.raises(ImageTooLarge, match=r"(3600000000|268402689).*limit is \d+0000000 \(OCRSVC_"):
        read(HUGE[name]())


@pytest.mark.parametrize(("most", "of_pngs", "setting"), [(1535, 1536, "MAX"), (1536, 1535, "FORMAT_MAX")])
def test_exactly_the_limit_is_accepted_and_the_message_names_the_setting(most: int, of_pngs: int, setting: str) -> None:
    data = saved(colour_page(), "PNG")
    with pytest.raises(ImageTooLarge, match=rf"48 x 32 = 1536 pixels; the limit is 1535 \(OCRSVC_{setting}_PIXELS\)"):
        decode(data, PixelLimits(most, {"png": of_pngs}), gray=False)
    assert decode(data, PixelLimits(1536, {"png": 1536}), gray=False).width == 48


def test_a_too_long_side_is_refused() -> None:
    with pytest.raises(ImageTooLarge, match="no side may be longer than 65535"):
        read(png_of(65_536, 1, 1, 0, bytes(8193)))


def test_a_tile_larger_than_the_limit_is_refused() -> None:
    tags = {256: 64, 257: 64, 258: 8, 259: 1, 262: BLACK_IS_ZERO, 277: 1, 322: 60_000, 323: 60_000, 324: 200, 325: 1}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    with pytest.raises(ImageTooLarge, match="60000 x 60000"):
        read(struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + entries + bytes(4096))


quarter_gigabyte = functools.partial(deflated, bytes(1 << 20), 256)
PIXEL = b"\0\0"
BOMBS: dict[str, Callable[[], bytes]] = {
    "a text that inflates": lambda: png_of(1, 1, 8, 0, PIXEL, chunk(b"zTXt", b"k\0\0" + quarter_gigabyte())),
    "a profile that inflates": lambda: png_of(1, 1, 8, 0, PIXEL, chunk(b"iCCP", b"p\0\0" + quarter_gigabyte())),
    "900 megapixels": lambda: png_of(30_000, 30_000, 1, 0, bytes(3751 * 30_000)),
    "one pixel that inflates": lambda: png_of(1, 1, 8, 0, PIXEL).replace(
        chunk(b"IDAT", zlib.compress(PIXEL, 9)), chunk(b"IDAT", quarter_gigabyte())
    ),
}
MEASURE = """
import resource, sys
from ocrsvc.errors import OcrsvcError
from ocrsvc.imaging.codecs.decode import PixelLimits, decode
data, limits = sys.stdin.buffer.read(), PixelLimits(50_000_000)
before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decode(data, limits, gray=False)
except OcrsvcError:
    pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb)
"""


@pytest.mark.parametrize("name", BOMBS)
def test_a_decompression_bomb_costs_no_memory(name: str) -> None:
    # A subprocess, so that no earlier test has raised the peak memory.
    command, root = [sys.executable, "-c", MEASURE], Path(__file__).parents[1]
    done = subprocess.run(command, input=BOMBS[name](), capture_output=True, check=True, timeout=60, cwd=root)
    assert int(done.stdout) < 16 << 10


def test_valid_files_write_nothing_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    junk = [chunk(b"iCCP", b"p\0\0" + zlib.compress(b"no profile")), chunk(b"tEXt", b"k\0v")[:-4] + b"\0\0\0\0"]
    read(png_of(1, 1, 8, 0, PIXEL, *junk))
    read(saved(colour_page(), "JPEG", icc_profile=b"no profile"))
    read(saved(gray_page(), "TIFF"))
    assert capfd.readouterr().err == ""


SAMPLES = {
    "JPEG": saved(colour_page(), "JPEG", exif=exif_of(6)),
    "progressive JPEG": saved(colour_page(), "JPEG", progressive=True),
    "CMYK JPEG": saved(colour_page().convert("CMYK"), "JPEG"),
    "PNG": saved(colour_page(), "PNG", exif=exif_of(6)),
    "palette PNG": saved(colour_page().quantize(4), "PNG", transparency=0),
    "alpha PNG": saved(ink(0), "PNG"),
    "WebP": saved(ink(0), "WEBP", exif=exif_of(6)),
    "BMP": saved(gray_page(), "BMP"),
    "GIF": saved(colour_page(), "GIF", save_all=True, append_images=[gray_page()]),
    "TIFF": saved(colour_page(), "TIFF", compression="tiff_lzw"),
    "G4 TIFF": saved(gray_page().convert("1"), "TIFF", compression="group4"),
    "PPM": saved(colour_page(), "PPM"),
}
SMALL = PixelLimits(1_000_000)
Damage = list[tuple[int, int]]


@pytest.mark.filterwarnings("ignore")  # Pillow warns about damaged TIFF tags before it fails
@pytest.mark.parametrize("name", SAMPLES)
@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    damage=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=6), gray=st.booleans()
)
def test_damaged_bytes_raise_only_documented_errors(name: str, damage: Damage, gray: bool) -> None:
    data = bytearray(SAMPLES[name])
    for position, value in damage:
        data[(position if position % 2 else position % 97) % len(data)] = value
    try:
        image = decode(bytes(data), SMALL, gray=gray)
    except OcrsvcError:
        return
    assert image.pixels.dtype == np.uint8
    assert image.pixels.ndim == 2 or image.pixels.shape[2] == 3


MALFORMED = malformed_files(lambda kind: kind != "filename")


@pytest.mark.skipif(not MALFORMED, reason=f"the malformed inputs are not at {SHARED}; set OCRSVC_SHARED")
@pytest.mark.parametrize(("file", "expect"), MALFORMED)
def test_malformed_corpus_files_end_as_their_manifest_allows(file: Path, expect: list[int]) -> None:
    data, status = file.read_bytes(), 200
    try:
        read(decode_base64(data) if file.name.startswith("b64_") else data)
    except OcrsvcError as error:
        status = error.status
    assert status in expect
