"""What the logs of a ledger say: the kinds of their frames, and the entry of a page."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np


class FrameKind(IntEnum):
    """What a frame says.

    OWNER: who writes the log, as JSON; its first frame. LEASE: the owner reads a part until then (`LEASE`). BEGUN: it
    begins to read these pages (`PAGE`). BEGUN_ALONE: it begins to read this page, and nothing beside it. PAGES: what
    became of pages: the number of the owner's results log, and an `ENTRY` for each. NAMES: texts that later entries
    name by number, as JSON. CONTENTS: files and the digests of their content (`CONTENT`). FINISHED: a part is in the
    output, as compressed JSON. ENDED: the owner has ended in order.
    """

    OWNER = 1
    LEASE = 2
    PAGES = 3
    NAMES = 4
    FINISHED = 5
    ENDED = 6
    BEGUN = 7
    BEGUN_ALONE = 8
    CONTENTS = 9


class PageState(IntEnum):
    """How far a page is."""

    PLANNED = 0
    DONE = 1
    FAILED = 2


LEASE: Final = np.dtype([("part", "<u4"), ("since", "<f8"), ("until", "<f8")])
"""From when until when (Unix time) a part is the owner's; until = since gives it back."""

PAGE: Final = np.dtype("<u4")
"""The number of a page in the plan."""

CONTENT: Final = np.dtype([("page", "<u4"), ("digest", "V16")])
"""The number in the plan of a file's first page, and the BLAKE2b digest of the file's content."""

CONFIDENCE_SCALE: Final = 65535
"""What a confidence of 1 is in an entry."""

ENTRY: Final = np.dtype(
    [
        ("page", "<u4"),
        ("state", "u1"),
        ("attempts", "u1"),
        ("confidence", "<u2"),
        ("lines", "<u4"),
        ("seconds", "<f4"),
        ("offset", "<u4"),
        ("size", "<u4"),
        ("since", "<f4"),
        ("worker", "<u2"),
        ("reason", "<u2"),
    ]
)
"""What became of a page, in 32 bytes.

page: its number in the plan. state: DONE or FAILED. confidence: of CONFIDENCE_SCALE. offset, size: of its record in the
results log. since: seconds since the owner began. worker, reason: numbers of names, 0 for none.
"""
