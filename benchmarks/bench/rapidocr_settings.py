"""RapidOCR's settings for the comparisons: its defaults, the quickest that read as well, and the quickest."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

DEFAULTS: Final[Mapping[str, Any]] = {}
# All models under OpenVINO (in bf16 on processors with AMX), one thread a run. It needs openvino beside rapidocr.
BEST: Final[Mapping[str, Any]] = {
    "Det.engine_type": "openvino",
    "Cls.engine_type": "openvino",
    "Rec.engine_type": "openvino",
    "EngineConfig.openvino.inference_num_threads": 1,
}
# The same without the classifier that turns lines upright, and with pages of at most 960 pixels for the detector.
# Turned pages and large photographs are read worse.
QUICK: Final[Mapping[str, Any]] = {
    **BEST,
    "Global.use_cls": False,
    "Det.limit_type": "max",
    "Det.limit_side_len": 960,
}
CHOICES: Final = {"defaults": DEFAULTS, "best": BEST, "quick": QUICK}


def open_rapidocr(choice: str) -> Any:
    """An engine of RapidOCR with one of CHOICES."""
    from rapidocr import EngineType, RapidOCR

    logging.disable(logging.WARNING)
    settings = CHOICES[choice].items()
    return RapidOCR(
        params={name: EngineType(value) if name.endswith("engine_type") else value for name, value in settings}
    )
