"""How does a PDF become searchable? What was read is laid over its pages as text that nobody sees.

pdfium does it, in a child process with limits of memory and time, for the reasons that `ocrsvc.imaging.pdf` has.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from ocrsvc.errors import BrokenImage
from ocrsvc.records import Page

_MEMORY_BYTES: Final = 1 << 30
_PROGRAM: Final = "ocrsvc.imaging.text_layer_child"


def lay_text(raw: bytes, pages: Sequence[Page], limit_s: float) -> bytes:
    """The PDF with the lines of these pages over its own; other pages stay as they are.

    Args:
        raw: The whole file.
        pages: What was read; their sizes are those at which the pages were drawn.
        limit_s: Seconds that it may take.

    Raises:
        BrokenImage: It cannot be written on, or takes too long.
    """
    told = json.dumps([[page.number, page.width, page.height, _lines_of(page)] for page in pages])
    file, result = os.memfd_create("pdf"), os.memfd_create("result")
    try:
        with open(file, "wb", closefd=False) as whole:
            whole.write(raw)
        _run([str(number) for number in (file, result, _MEMORY_BYTES + 4 * len(raw))], (file, result), told, limit_s)
        with open(result, "rb", closefd=False) as written:
            written.seek(0)
            return written.read()
    finally:
        os.close(file)
        os.close(result)


def _run(arguments: Sequence[str], files: tuple[int, ...], told: str, limit_s: float) -> None:
    try:
        subprocess.run(  # noqa: S603  our own program
            [sys.executable, "-m", _PROGRAM, *arguments],
            input=told.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=files,
            env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PATH": os.environ.get("PATH", "")},
            timeout=limit_s,
            check=True,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise BrokenImage(
            "Text cannot be laid over this PDF.", "Ask for another form of what was read, such as txt."
        ) from error


def _lines_of(page: Page) -> list[list[object]]:
    return [[line.text, *(value for corner in line.box for value in corner)] for line in page.lines]
