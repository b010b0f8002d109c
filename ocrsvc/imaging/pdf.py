"""How does a page of a PDF become pixels, whatever the PDF does to whoever draws it?

pdfium draws it, in a child process for each open PDF: a PDF can make it crash, spin or take memory without end, and it
is not safe to use from two threads. The child has a limit of memory, and of time for each page; what it dies of is the
PDF's fault, and the next page gets a new one.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import cv2
import numpy as np

from ocrsvc.errors import BrokenImage, EncryptedDocument, ImageTooLarge, OcrsvcError
from ocrsvc.imaging.pdf_child import LEAST_DPI
from ocrsvc.imaging.picture import broken
from ocrsvc.records import Pixels

Check = Callable[[], object]
"""Raises what ends the request when nobody waits for it any more."""

PAGE_LIMIT_S: Final = 10.0
"""For opening the file, and for each page; a scan of 50 megapixels takes a second or two."""
_MEMORY_BYTES: Final = 1 << 30
_LOOK_UP_S: Final = 0.25
_BYTES_PER_PIXEL: Final = 4
_PROGRAM: Final = "ocrsvc.imaging.pdf_child"


class Pdf:
    """An open PDF; `close` it. For one thread.

    Args:
        raw: The whole file.
        most_pixels: Of a page, and of every image on it.
        check: Asked while the child works.

    Raises:
        EncryptedDocument: It needs a password.
        BrokenImage: It cannot be opened, or has no pages.
    """

    def __init__(self, raw: bytes, most_pixels: int, check: Check) -> None:
        self._most_pixels = most_pixels
        self._memory_bytes = _MEMORY_BYTES + len(raw) + 2 * _BYTES_PER_PIXEL * most_pixels
        self._file, self._canvas = os.memfd_create("pdf"), _sealed_canvas()
        self._child: subprocess.Popen[bytes] | None = None
        try:
            _write(self._file, raw)
            self.count = self._start(check)
            if self.count < 1:
                raise broken("PDF", "has no pages")
        except BaseException:
            self.close()
            raise

    def draw(self, number: int, dpi: int, longest_side: int, check: Check, *, gray: bool) -> Pixels:
        """One page on white, at a lower resolution where it has too many pixels otherwise.

        Args:
            number: From 1.
            dpi: Pixels an inch.
            longest_side: In pixels.
            check: Asked while the child works.
            gray: (H, W) instead of (H, W, 3) BGR.

        Raises:
            ImageTooLarge: The page, or an image on it, is too large.
            BrokenImage: The page cannot be drawn, or takes longer than PAGE_LIMIT_S.
        """
        if self._child is None:
            self._start(check)
        assert self._child is not None, "it was started"
        assert self._child.stdin is not None, "asked for"
        with suppress(BrokenPipeError):
            self._child.stdin.write(json.dumps([number, dpi, self._most_pixels, longest_side]).encode() + b"\n")
            self._child.stdin.flush()
        width, height = self._answer(f"page {number} of the PDF", check)
        with mmap.mmap(self._canvas, width * height * _BYTES_PER_PIXEL, access=mmap.ACCESS_READ) as canvas:
            pixels = np.frombuffer(canvas, np.uint8).reshape(height, width, _BYTES_PER_PIXEL)
            drawn = cv2.cvtColor(pixels, cv2.COLOR_BGRA2GRAY if gray else cv2.COLOR_BGRA2BGR)
            del pixels
        return np.asarray(drawn, np.uint8)

    def close(self) -> None:
        """End the child, and give everything back."""
        self._end()
        for file in (self._file, self._canvas):
            with suppress(OSError):
                os.close(file)

    def _start(self, check: Check) -> int:
        """A child that has the file open; how many pages that has."""
        arguments = [str(number) for number in (self._file, self._canvas, self._memory_bytes)]
        self._child = subprocess.Popen(  # noqa: S603  our own program
            [sys.executable, "-m", _PROGRAM, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(self._file, self._canvas),
            env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PATH": os.environ.get("PATH", "")},
        )
        return int(self._answer("the PDF", check))

    def _answer(self, what: str, check: Check) -> Any:
        """What the child says; a child that does not, or that nobody waits for, is ended."""
        try:
            line = self._line(what, check)
            answer = json.loads(line)
        except ValueError as error:
            self._end()
            raise BrokenImage(
                f"{what[0].upper()}{what[1:]} makes the program crash that draws it, or takes too much memory.",
                "Check that the file opens in a viewer; send the page as an image.",
            ) from error
        except OcrsvcError:
            self._end()
            raise
        if isinstance(answer, dict):
            raise _error_of(answer["wrong"], self._most_pixels)
        return answer

    def _line(self, what: str, check: Check) -> bytes:
        assert self._child is not None, "it was started"
        assert self._child.stdout is not None, "asked for"
        stop_s = time.monotonic() + PAGE_LIMIT_S
        poll = select.poll()
        poll.register(self._child.stdout, select.POLLIN | select.POLLHUP)
        while not poll.poll(_LOOK_UP_S * 1000):
            check()
            if time.monotonic() >= stop_s:
                raise BrokenImage(
                    f"{what[0].upper()}{what[1:]} takes longer than {PAGE_LIMIT_S:g} seconds to draw.",
                    "Send the page as an image.",
                )
        return self._child.stdout.readline()

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        # Closes both pipes and takes leave of the process; what was not sent goes nowhere.
        with suppress(BrokenPipeError), child:
            pass


def _sealed_canvas() -> int:
    """Memory that can grow and not shrink: where it is read, a child that went mad must not be able to take it away."""
    canvas = os.memfd_create("page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(canvas, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return canvas


def _write(file: int, raw: bytes) -> None:
    rest = memoryview(raw)
    while rest:
        rest = rest[os.write(file, rest) :]


def _error_of(told: list[Any], most_pixels: int) -> OcrsvcError:
    """What the child calls wrong, for people."""
    match told:
        case ["password"]:
            return EncryptedDocument("This PDF needs a password.", "Send it without one.")
        case ["damaged page", number]:
            return broken(f"PDF (page {number})", "is damaged")
        case ["no size"]:
            return broken("PDF page", "has no size")
        case ["large page", width, height]:
            return ImageTooLarge(
                f"This PDF page is {width:.0f} x {height:.0f} points: too large for {LEAST_DPI} dpi and {most_pixels} "
                "pixels (OCRSVC_MAX_PIXELS, OCRSVC_FORMAT_MAX_PIXELS).",
                "Cut it into smaller pages, or ask the operator to raise the limit.",
            )
        case ["large image", width, height]:
            return ImageTooLarge(
                f"An image on this PDF page declares {width} x {height} pixels; the limit is {most_pixels} "
                "(OCRSVC_MAX_PIXELS, OCRSVC_FORMAT_MAX_PIXELS).",
                "Send a smaller image, or ask the operator to raise the limit.",
            )
        case _:
            return broken("PDF", "is cut off or damaged")
