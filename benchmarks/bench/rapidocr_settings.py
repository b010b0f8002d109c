"""RapidOCR's settings for the comparisons: its defaults, and the quickest that read the pages as well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

DEFAULTS: Final[Mapping[str, Any]] = {}
# The lines' orientation is not classified, and a page's longer side is 960 pixels at most where the detector sees it.
QUICK: Final[Mapping[str, Any]] = {
    "Global.use_cls": False,
    "Det.limit_type": "max",
    "Det.limit_side_len": 960,
}
