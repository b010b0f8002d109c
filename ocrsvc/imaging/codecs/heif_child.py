"""The child process that decodes the primary image of one HEIC or AVIF file.

    python -m ocrsvc.imaging.codecs.heif_child PARENT MEMORY FILE_BYTES FILE CANVAS

FILE and CANVAS are file descriptors. The requests `heic` and `avif` are answered `decoded WIDTH HEIGHT CHANNELS`: the
pixels lie on the canvas without gaps, as gray, BGR, or BGRA with 8 bits a sample; or `damaged`, or `unsupported`.
"""

import io
import mmap
import os
from collections.abc import Callable
from functools import partial
from typing import Final

from ocrsvc.system.child_program import RequestFailed, apply_limits, pack, serve

# What the libraries raise for a damaged file, or one that takes more memory than there is.
_WRONG: Final = (ArithmeticError, EOFError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError)
_BAND_PIXELS: Final = 1 << 18

Size = tuple[int, int, int]  # width, height and channels


def _answer(decode: Callable[[bytes, mmap.mmap], Size], file: int, canvas: int) -> str:
    """Decode the file onto the canvas."""
    with mmap.mmap(file, 0, access=mmap.ACCESS_READ) as shared:
        raw = bytes(shared)
    try:
        with mmap.mmap(canvas, 0) as pixels:
            return pack("decoded", *decode(raw, pixels))
    except SyntaxError as error:
        # Of libheif, for a codec or a derived image that it does not know; of Pillow, for any damage.
        raise RequestFailed("unsupported" if decode is _decode_heic else "damaged") from error
    except _WRONG as error:
        raise RequestFailed("damaged") from error


def _decode_heic(raw: bytes, pixels: mmap.mmap) -> Size:
    import pi_heif

    # Its data are valid as long as the image is.
    image = pi_heif.open_heif(raw, bgr_mode=True)
    data = image.data
    (width, height), mode = image.size, image.mode
    if mode.startswith(("L", "I")):
        # Of gray samples of more than 8 bits the upper byte.
        pixels.write(data if mode == "L" else data[1::2].tobytes())
        return width, height, 1
    pixels.write(data)
    return width, height, len(mode)


def _decode_avif(raw: bytes, pixels: mmap.mmap) -> Size:
    from PIL.AvifImagePlugin import AvifImageFile

    image = AvifImageFile(io.BytesIO(raw))
    image.load()
    (width, height), rows = image.size, max(1, _BAND_PIXELS // image.width)
    order = {"L": "L", "RGB": "BGR", "RGBA": "BGRA"}[image.mode]
    for top in range(0, height, rows):
        pixels.write(image.crop((0, top, width, min(top + rows, height))).tobytes("raw", order))
    return width, height, len(order)


def main() -> None:
    """Answer one request of the parent."""
    file, canvas = apply_limits()
    import pi_heif.options
    from PIL import AvifImagePlugin, TiffImagePlugin  # noqa: F401  nothing can be imported later; EXIF needs TIFF's

    # One thread decodes, and what lies beside the image is not opened.
    AvifImagePlugin.DEFAULT_MAX_THREADS = pi_heif.options.DECODE_THREADS = 1
    pi_heif.options.THUMBNAILS = pi_heif.options.DEPTH_IMAGES = pi_heif.options.AUX_IMAGES = False
    ways = {"heic": _decode_heic, "avif": _decode_avif}
    serve({word: partial(_answer, way, file, canvas) for word, way in ways.items()}, ())


if __name__ == "__main__":
    main()
    # Skips the clean-up of Python and the libraries: the system frees everything.
    os._exit(0)
