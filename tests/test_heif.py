"""HEIC and AVIF: which files are read, which are refused. tests/data/heif/make_heic.py wrote the HEIC files."""

from __future__ import annotations

import functools
import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from support import ocrsvc
from web_support import as_base64, json_of, texts

from ocrsvc.errors import BrokenImage, ClientGone, DeadlineExceeded, ImageTooLarge, OcrsvcError, UnsupportedImage
from ocrsvc.http.parsed_body import is_image
from ocrsvc.imaging.codecs.decode import PixelLimits, decode, decode_pixels, open_encoded_image

if TYPE_CHECKING:
    from flask.testing import FlaskClient

LIMITS = PixelLimits(1_000_000)
FOLDER = Path(__file__).parent / "data" / "heif"
BLUE, RED, GREEN = (255, 0, 0), (0, 0, 255), (0, 255, 0)
CORNERS = np.array([[BLUE, RED], [GREEN, GREEN]], np.uint8)
PICTURE = np.repeat(np.repeat(CORNERS, 32, 0), 48, 1)
GRAYS = np.array([[29, 76], [150, 150]], np.uint8)
Bytes = Callable[[], bytes]


def heic(name: str) -> bytes:
    return (FOLDER / f"{name}.heic").read_bytes()


def changed(data: bytes, *changes: tuple[bytes, bytes]) -> bytes:
    """Replace byte strings by others of equal length; each must occur exactly once."""
    for old, new in changes:
        assert (data.count(old), len(old)) == (1, len(new))
        data = data.replace(old, new)
    return data


def avif(pixels: NDArray[np.uint8] | None = None, **options: Any) -> bytes:
    file = io.BytesIO()
    shown = PICTURE[..., ::-1] if pixels is None else pixels
    Image.fromarray(shown).save(file, "AVIF", quality=90, speed=10, **options)
    return file.getvalue()


def turned_avif(orientation: int) -> bytes:
    """An AVIF with an orientation, which Pillow writes as `irot` and `imir` and as EXIF."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return avif(exif=exif)


def sequence() -> bytes:
    file, first = io.BytesIO(), Image.fromarray(PICTURE[..., ::-1])
    first.save(file, "AVIF", save_all=True, append_images=[Image.new("RGB", first.size)], speed=10)
    return file.getvalue()


def ten_bits_avif() -> bytes:
    deep = PICTURE.astype(np.uint16) * 4
    return cv2.imencode(".avif", deep, [cv2.IMWRITE_AVIF_DEPTH, 10, cv2.IMWRITE_AVIF_SPEED, 9])[1].tobytes()


def clear() -> NDArray[np.uint8]:
    """RGBA pixels in dark colours; the left half is transparent."""
    alpha = np.tile(np.where(np.arange(96) < 48, 0, 255).astype(np.uint8), (64, 1))
    return np.dstack([PICTURE[..., ::-1] // 8, alpha])


def turned(orientation: int) -> NDArray[np.uint8]:
    """The corners as displayed with an EXIF orientation, according to the standard's table."""
    rows = CORNERS.swapaxes(0, 1) if orientation > 4 else CORNERS
    flips = {2: (1, -1), 3: (-1, -1), 4: (-1, 1), 6: (1, -1), 7: (-1, -1), 8: (-1, 1)}.get(orientation, (1, 1))
    return rows[:: flips[0], :: flips[1]]


def box(kind: bytes, *content: bytes) -> bytes:
    body = b"".join(content)
    return struct.pack(">I", 8 + len(body)) + kind + body


def ispe(width: int, height: int) -> bytes:
    return b"ispe" + struct.pack(">III", 0, width, height)


SIZE = ispe(96, 64)
ON_WHITE = np.array([[(255, 255, 255), (0, 0, 31)], [(255, 255, 255), (0, 31, 0)]], np.uint8)
# A rotation by 270 degrees counterclockwise.
IROT = b"irot\x03"
# Expected: the EXIF orientation in which CORNERS are read, or other corners.
READ: dict[str, tuple[Bytes, int | NDArray[np.uint8]]] = {
    "HEIC": (lambda: heic("plain"), 1),
    "HEIC in tiles": (lambda: heic("tiles"), 1),
    "HEIC of 10 bits": (lambda: heic("ten_bits"), 1),
    "HEIC of 10 bits, 4:4:4": (lambda: heic("ten_bits_444"), 1),
    "gray HEIC": (lambda: heic("gray"), GRAYS),
    "gray HEIC of 10 bits": (lambda: heic("gray_ten_bits"), np.array([[255, 255], [128, 128]], np.uint8)),
    "transparent HEIC": (lambda: heic("clear"), ON_WHITE),
    "the second of two images": (lambda: heic("several"), 1),
    "HEIC, irot and EXIF": (lambda: heic("turned"), 6),
    "HEIC, irot 1, EXIF 6": (lambda: changed(heic("turned"), (IROT, b"irot\x01")), 8),
    "HEIC, EXIF alone": (lambda: changed(heic("turned"), (IROT, b"irot\x00")), 1),
    "HEIC, irot and imir": (lambda: heic("mirrored"), 5),
    "HEIC, imir alone": (lambda: changed(heic("mirrored"), (IROT, b"irot\x00")), 2),
    "HEIC named mif1": (lambda: changed(heic("plain"), (b"ftypheic", b"ftypmif1")), 1),
    "HEIC and other bytes": (lambda: heic("plain") + b"<html>PK\x03\x04" * 50, 1),
    **{f"AVIF, orientation {number}": (functools.partial(turned_avif, number), number) for number in range(1, 9)},
    "AVIF, 4:4:4": (lambda: avif(subsampling="4:4:4"), 1),
    "AVIF of 10 bits": (ten_bits_avif, 1),
    "gray AVIF": (lambda: avif(np.repeat(np.repeat(GRAYS, 32, 0), 48, 1)), GRAYS),
    "transparent AVIF": (lambda: avif(clear()), ON_WHITE),
    "AVIF sequence": (sequence, 1),
}


def corners_of(pixels: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The median colour of each quarter of a picture, without its borders."""
    height, width = pixels.shape[0] // 2, pixels.shape[1] // 2
    halves = [[pixels[y + 8 : y + height - 8, x + 8 : x + width - 8] for x in (0, width)] for y in (0, height)]
    return np.array([[np.median(part.reshape(-1, *part.shape[2:]), axis=0) for part in row] for row in halves], int)


@pytest.mark.parametrize("name", READ)
def test_primary_image_is_read_upright_in_8_bits(name: str) -> None:
    make, expected = READ[name]
    image = decode(make(), LIMITS, gray=False)
    corners = turned(expected) if isinstance(expected, int) else expected
    is_high = isinstance(expected, int) and expected > 4
    assert image.format == ("avif" if "AVIF" in name else "heic")
    assert image.pixels.shape[:2] == ((100, 150) if "tiles" in name else (96, 64) if is_high else (64, 96))
    assert image.pixels.flags.carray
    assert corners_of(image.pixels) == pytest.approx(corners.astype(int), abs=6)


@pytest.mark.parametrize("make", [lambda: heic("plain"), avif])
def test_colour_becomes_gray_on_request(make: Bytes) -> None:
    assert corners_of(decode(make(), LIMITS, gray=True).pixels) == pytest.approx(GRAYS.astype(int), abs=4)


def cut(make: Bytes, share: float) -> Bytes:
    return lambda: make()[: int(len(make()) * share)]


def plain(*changes: tuple[bytes, bytes]) -> Bytes:
    return lambda: changed(heic("plain"), *changes)


def large() -> bytes:
    """A black AVIF of 16,000 x 16,000 pixels in 2 kB."""
    return (FOLDER / "large.avif").read_bytes()


FTYP = box(b"ftyp", b"heic\0\0\0\0mif1heic")


def properties_of(items: bytes) -> bytes:
    """A file without pixels whose `ipma` box associates these items with properties."""
    container = box(b"ipco", box(SIZE[:4], SIZE[4:])), box(b"ipma", bytes(4), b"\xff" * 4, items)
    return FTYP + box(b"meta", bytes(4), box(b"pitm", bytes(4), b"\0\1"), box(b"iprp", *container))


BROKEN: dict[str, Bytes] = {
    **{f"{share} of a HEIC": cut(lambda: heic("plain"), share) for share in (0.02, 0.05, 0.3, 0.5, 0.99)},
    **{f"{share} of an AVIF": cut(avif, share) for share in (0.2, 0.7, 0.98)},
    "brands alone": lambda: FTYP,
    "20,000 boxes": lambda: FTYP + box(b"free") * 20_000,
    "1,000 nested boxes": lambda: (
        FTYP + functools.reduce(lambda inner, _: box(b"meta", bytes(4), inner), range(1000), b"")
    ),
    "a box shorter than its header": lambda: FTYP + b"\0\0\0\x07meta" + bytes(100),
    "a box of 2^63 bytes": lambda: FTYP + b"\0\0\0\x01meta\x7f" + b"\xff" * 100,
    "a million items with properties": lambda: properties_of(b"\0\2\0" * 1_000_000),
    "no primary item": plain((b"pitm", b"free")),
    "another primary item": plain((b"pitm\0\0\0\0\0\x01", b"pitm\0\0\0\0\0\x09")),
    "zero width": plain((SIZE, ispe(0, 64))),
    "more pixels declared than coded": plain((SIZE, ispe(192, 128))),
    "a tile larger than its size": lambda: changed(heic("tiles"), (ispe(64, 64), ispe(8, 8))),
    "fewer pixels declared than coded": lambda: changed(large(), (ispe(16_000, 16_000), SIZE)),
    "AVIF named heic": lambda: avif().replace(b"ftypavif", b"ftypheic", 1),
    "HEIC named avif": plain((b"ftypheic", b"ftypavif")),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_refused(name: str) -> None:
    with pytest.raises(BrokenImage, match=r"This (HEIC|AVIF) "):
        decode(BROKEN[name](), LIMITS, gray=False)


@pytest.mark.parametrize("make", [large, plain((SIZE, ispe(16_000, 16_000)))])
def test_too_many_pixels_are_refused_before_decoding(make: Bytes) -> None:
    with pytest.raises(ImageTooLarge, match=r"declares 16000 x 16000 = 256000000 pixels; the limit is 1000000"):
        open_encoded_image(make(), LIMITS)


@pytest.mark.parametrize("error", [DeadlineExceeded("Too late."), ClientGone("Gone.")])
def test_decoding_ends_with_the_request(error: OcrsvcError) -> None:
    def check() -> None:
        raise error

    # This takes 4 s to decode and stays below the pixel limit.
    slow = changed(large(), (ispe(16_000, 16_000), ispe(7000, 7000)))
    with pytest.raises(type(error)):
        decode_pixels(open_encoded_image(slow, PixelLimits(50_000_000)), gray=False, check=check)


def test_an_unsupported_codec_is_reported() -> None:
    with pytest.raises(UnsupportedImage, match="This HEIC has a kind of image that is not read"):
        decode(changed(heic("plain"), (b"hvc1", b"vvc1"), (b"hvcC", b"vvcC")), LIMITS, gray=False)


@pytest.mark.parametrize("make", [lambda: heic("turned"), lambda: turned_avif(6)])
def test_heif_is_accepted_as_form_file_json_and_body(client: FlaskClient, make: Bytes) -> None:
    data = make()
    assert is_image(data)
    for way in ({"data": {"file": (io.BytesIO(data), "IMG_1.HEIC")}}, {"json": {"image": as_base64(data)}}):
        answer = client.post("/v1/ocr", **way)
        assert (answer.status_code, texts(json_of(answer))[0].splitlines()[-1][:5]) == (200, "64x96")
    picture = client.post("/v1/ocr/picture", data=data)
    assert Image.open(io.BytesIO(picture.data)).size == (64, 96)
    refused = client.post("/v1/ocr", data=data[:-20])
    assert (refused.status_code, json_of(refused)["code"]) == (422, "broken_image")


def test_batch_finds_heif_by_name_and_content(tmp_path: Path) -> None:
    sources = tmp_path / "in"
    sources.mkdir()
    files = {"a.heic": heic("plain"), "b.avif": avif(), "scan": heic("turned"), "broken.HEIF": heic("plain")[:-20]}
    for name, data in files.items():
        (sources / name).write_bytes(data)
    ocrsvc("batch", sources, "--out", tmp_path / "out", "--format", "jsonl", OCRSVC_ENGINE="fake")
    lines = [
        json.loads(line) for file in (tmp_path / "out").glob("*.jsonl") for line in file.read_text("utf-8").splitlines()
    ]
    found = {Path(line["source"]).name: (line["error"] or {}).get("code", line.get("width")) for line in lines}
    assert found == {"a.heic": 96, "b.avif": 96, "scan": 64, "broken.HEIF": "broken_image"}
