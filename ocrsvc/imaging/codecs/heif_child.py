"""The child process that decodes the primary image of one HEIC or AVIF file.

    python -m ocrsvc.imaging.codecs.heif_child PARENT MEMORY FILE_BYTES FILE CANVAS

FILE and CANVAS are file descriptors. Requests are `heic` and `avif`, answers `decoded WIDTH HEIGHT CHANNELS` (CANVAS
then holds the rows without padding, as 8-bit gray, BGR or BGRA), `damaged` and `unsupported`.
"""

import io
import mmap
import os
from collections.abc import Callable
from functools import partial
from typing import Final

from ocrsvc.system.child_program import RequestFailed, apply_limits, pack, serve

# The decoders raise these for damaged files, and for files that need more memory than the limit.
_WRONG: Final = (ArithmeticError, EOFError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError)
_BAND_PIXELS: Final = 1 << 18


def _answer(decode: Callable[[bytes, mmap.mmap], tuple[int, int, int]], file: int, canvas: int) -> str:
    """Decode the file onto the canvas; returns the answer line. `decode` returns width, height and channels."""
    with mmap.mmap(file, 0, access=mmap.ACCESS_READ) as shared:
        raw = bytes(shared)
    try:
        with mmap.mmap(canvas, 0) as pixels:
            return pack("decoded", *decode(raw, pixels))
    except SyntaxError as error:
        # SyntaxError means an unknown codec or a derived image in libheif, but a damaged file in Pillow.
        raise RequestFailed("unsupported" if decode is _decode_heic else "damaged") from error
    except _WRONG as error:
        raise RequestFailed("damaged") from error


def _decode_heic(raw: bytes, pixels: mmap.mmap) -> tuple[int, int, int]:
    import pi_heif

    # Keep `image` alive, because it owns the memory of `data`.
    image = pi_heif.open_heif(raw, bgr_mode=True)
    data, (width, height), mode = image.data, image.size, image.mode
    is_gray = mode.startswith(("L", "I"))
    # Gray samples of more than 8 bits keep their upper byte.
    pixels.write(data[1::2].tobytes() if is_gray and mode != "L" else data)
    return width, height, 1 if is_gray else len(mode)


def _decode_avif(raw: bytes, pixels: mmap.mmap) -> tuple[int, int, int]:
    from PIL.AvifImagePlugin import AvifImageFile

    image = AvifImageFile(io.BytesIO(raw))
    image.load()
    (width, height), rows = image.size, max(1, _BAND_PIXELS // image.width)
    order = {"L": "L", "RGB": "BGR", "RGBA": "BGRA"}[image.mode]
    for top in range(0, height, rows):
        pixels.write(image.crop((0, top, width, min(top + rows, height))).tobytes("raw", order))
    return width, height, len(order)


def main() -> None:
    """Serve the parent until it closes the connection."""
    file, canvas = apply_limits()
    import pi_heif.options
    from PIL import AvifImagePlugin, TiffImagePlugin  # noqa: F401  `serve` ends imports, and Pillow reads EXIF as TIFF

    # Decode in one thread, and skip thumbnails, depth maps and auxiliary images.
    AvifImagePlugin.DEFAULT_MAX_THREADS = pi_heif.options.DECODE_THREADS = 1
    pi_heif.options.THUMBNAILS = pi_heif.options.DEPTH_IMAGES = pi_heif.options.AUX_IMAGES = False
    decoders = {"heic": _decode_heic, "avif": _decode_avif}
    serve({word: partial(_answer, decode, file, canvas) for word, decode in decoders.items()}, ())


if __name__ == "__main__":
    main()
    # Exit without the slow clean-up of Python and the libraries; the system frees everything.
    os._exit(0)
