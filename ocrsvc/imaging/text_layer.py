"""Makes a PDF searchable: lays the recognised text over its pages as invisible text.

pdfium does it, in a child process with limits of memory and time, for the reasons that `ocrsvc.imaging.pdf` has.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from ocrsvc.errors import BrokenImage, DeadlineExceeded
from ocrsvc.records import Page
from ocrsvc.system.child_process import ChildFailed, ChildProcess, resources_exhausted
from ocrsvc.system.shared_memory import READ_ONLY, open_memory

_MEMORY_BYTES: Final = 192 << 20
_PROGRAM: Final = "ocrsvc.imaging.text_layer_child"
# A result may be so many times as large as the file, and so much more: one that unpacks without end is cut here.
_GROWTH: Final = 2
_MORE_BYTES: Final = 64 << 20


def add_text_layer(raw: bytes, pages: Sequence[Page], limit_s: float) -> bytes:
    """The PDF with the lines of these pages over its own; other pages stay as they are.

    Args:
        raw: The whole file.
        pages: What was read; their sizes are those at which the pages were drawn.
        limit_s: Seconds within which it is worth having.

    Raises:
        BrokenImage: It cannot be written on.
        DeadlineExceeded: It takes longer.
        ResourcesExhausted: There is no process or memory for it.
    """
    stop_s = time.monotonic() + limit_s

    def check() -> None:
        if time.monotonic() >= stop_s:
            raise DeadlineExceeded(
                "Laying text over this PDF takes longer than the request has.", "Ask again, with a later deadline."
            )

    page_lines = json.dumps([[page.number, page.width, page.height, _lines_of(page)] for page in pages]).encode()
    most_bytes = _GROWTH * len(raw) + _MORE_BYTES
    with ExitStack() as opened:
        files = []
        with resources_exhausted():
            for name, data, seals in (("pdf", raw, READ_ONLY), ("text", page_lines, READ_ONLY), ("result", b"", 0)):
                files.append(open_memory(name, data, seals))
                opened.callback(os.close, files[-1])
        child = ChildProcess(_PROGRAM, _MEMORY_BYTES + 4 * len(raw), most_bytes, tuple(files), check)
        opened.callback(child.close)
        try:
            answer, _ = child.ask("lay", limit_s, check)
        except ChildFailed as failure:
            raise _failed() from failure
        child.close()
        size_bytes = os.fstat(files[-1]).st_size
        if answer != "written" or size_bytes > most_bytes:
            raise _failed()
        return os.pread(files[-1], size_bytes, 0)


def _failed() -> BrokenImage:
    return BrokenImage("Text cannot be laid over this PDF.", "Ask for another form of what was read, such as txt.")


def _lines_of(page: Page) -> list[list[object]]:
    return [[line.text, *(value for corner in line.box for value in corner)] for line in page.lines]
