"""RapidOCR's settings for the comparisons: its defaults, the fastest without loss of accuracy, and the fastest."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

DEFAULTS: Final[Mapping[str, Any]] = {}
# All models under OpenVINO (bf16 on processors with AMX), one thread per run. Needs the package openvino.
BEST: Final[Mapping[str, Any]] = {
    "Det.engine_type": "openvino",
    "Cls.engine_type": "openvino",
    "Rec.engine_type": "openvino",
    "EngineConfig.openvino.inference_num_threads": 1,
}
# As BEST, without the classifier that turns lines upright and with detection at most 960 pixels wide or high. Rotated
# pages and large photographs read worse.
QUICK: Final[Mapping[str, Any]] = {
    **BEST,
    "Global.use_cls": False,
    "Det.limit_type": "max",
    "Det.limit_side_len": 960,
}
CHOICES: Final = {"defaults": DEFAULTS, "best": BEST, "quick": QUICK}


def open_rapidocr(choice: str) -> Any:
    """A RapidOCR engine with one of CHOICES."""
    from rapidocr import EngineType, RapidOCR

    logging.disable(logging.WARNING)
    settings = CHOICES[choice].items()
    return RapidOCR(
        params={name: EngineType(value) if name.endswith("engine_type") else value for name, value in settings}
    )
