"""Which foreign wire formats are spoken, under which name, and at which port do their clients look for a server?"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

USUAL_PORTS: Final[Mapping[str, int | None]] = MappingProxyType(
    {
        "trwebocr": 8089,
        "trwebocr_cpp": 6006,
        "kserve_v2": 8000,
        "tfserving": 8501,
        "kserve_v1": 8080,
        "rapidocr_api": 9003,
        "paddlex": 8080,
        "paddlehub": 8868,
        "paddle_serving": 9998,
        "umi_ocr": 1224,
        # Its clients are given an address, and never assume one.
        "ocr_space": None,
        "turboocr": 8000,
    }
)
"""The usual HTTP port of each dialect, by name; None where there is none."""


def names_at(port: int) -> frozenset[str]:
    """The dialects whose usual port this is."""
    return frozenset(name for name, usual in USUAL_PORTS.items() if usual == port)
