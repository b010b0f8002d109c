"""Makes a PDF searchable: lays the recognised text over its pages as invisible text; all else stays as it is.

It is done in a child process with limits of memory and time, for the reasons that `ocrsvc.imaging.pdf` has.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

import orjson

from ocrsvc.errors import BrokenImage, DeadlineExceeded
from ocrsvc.formats.pdf.text_lines import PageText, text_of
from ocrsvc.records import Page
from ocrsvc.system.child_process import Check, ChildFailed, ChildLate, ChildProcess, resources_exhausted
from ocrsvc.system.shared_memory import READ_ONLY, open_memory

_MEMORY_BYTES: Final = 192 << 20
_PROGRAM: Final = "ocrsvc.formats.pdf.text_layer_child"
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

    packed = b"".join(pack_page(text_of(page)) for page in pages)
    with ExitStack() as opened:
        files = []
        with resources_exhausted():
            for name, data, seals in (("pdf", raw, READ_ONLY), ("text", packed, READ_ONLY), ("result", b"", 0)):
                files.append(open_memory(name, data, seals))
                opened.callback(os.close, files[-1])
        file, text, result = files
        lay_text(file, text, result, limit_s, check)
        return os.pread(result, os.fstat(result).st_size, 0)


def pack_page(page: PageText) -> bytes:
    """A line of the file of text that `lay_text` takes."""
    return orjson.dumps([page.number, page.width, page.height, page.lines]) + b"\n"


def lay_text(file: int, text: int, result: int, limit_s: float, check: Check) -> None:
    """The same with files, so that memory holds neither: numbers of open ones.

    Args:
        file: The PDF; only read.
        text: A line of `pack_page` for each page that has text; only read.
        result: Empty; the PDF with its text.
        limit_s: Seconds that it may take.
        check: Asked meanwhile; what it raises ends it.

    Raises:
        BrokenImage: It cannot be written on, or not in time.
        ResourcesExhausted: There is no process or memory for it.
    """
    file_bytes, text_bytes = os.fstat(file).st_size, os.fstat(text).st_size
    most_bytes = _GROWTH * (file_bytes + text_bytes) + _MORE_BYTES
    child = ChildProcess(_PROGRAM, _MEMORY_BYTES + 4 * file_bytes + text_bytes, most_bytes, (file, text, result), check)
    try:
        answer, _ = child.ask("lay", limit_s, check)
    except ChildLate as late:
        raise BrokenImage(f"Laying text over this PDF takes longer than {limit_s:g} s.", _REMEDY) from late
    except ChildFailed as failure:
        raise _failed() from failure
    finally:
        child.close()
    if answer != "written" or os.fstat(result).st_size > most_bytes:
        raise _failed()


_REMEDY: Final = "Ask for another form of what was read, such as text."


def _failed() -> BrokenImage:
    return BrokenImage("Text cannot be laid over this PDF.", _REMEDY)
