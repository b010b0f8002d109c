"""Makes the decoders of OpenCV and Pillow crash with SIGSEGV on a file that contains MARK.

Python imports this module at start when its folder is on PYTHONPATH.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import cv2
from PIL.GifImagePlugin import GifImageFile

MARK = b"crashes decoders"

_imdecode, _open_gif = cv2.imdecode, GifImageFile._open


def _imdecode_or_crash(raw: Any, flags: int) -> Any:
    if MARK in raw.tobytes():
        os.kill(os.getpid(), signal.SIGSEGV)
    return _imdecode(raw, flags)


def _open_gif_or_crash(image: Any) -> None:
    if MARK in image.fp.getvalue():
        os.kill(os.getpid(), signal.SIGSEGV)
    _open_gif(image)


cv2.imdecode = _imdecode_or_crash  # type: ignore[assignment]
GifImageFile._open = _open_gif_or_crash  # type: ignore[assignment,method-assign]
