"""RapidOCR behind BentoML, in one class as in BentoML's documentation.

    bentoml serve serve_bentoml:Ocr --host 127.0.0.1 --port PORT

Runs in an environment with bentoml and rapidocr, and with benchmarks/ in PYTHONPATH. OCR_WORKERS and OCR_SETTINGS
(defaults or best) are read at the start.
"""

from __future__ import annotations

import os
from pathlib import Path

import bentoml
from bench.rapidocr_settings import open_rapidocr


# The default limit of 60 s would refuse requests that wait behind 20 clients.
@bentoml.service(workers=int(os.environ.get("OCR_WORKERS", "1")), traffic={"timeout": 600})
class Ocr:
    """POST /read with the multipart file `image`."""

    def __init__(self) -> None:
        self.engine = open_rapidocr(os.environ.get("OCR_SETTINGS", "defaults"))

    @bentoml.api
    def read(self, image: Path) -> dict[str, str]:
        """Read an image; returns only the text."""
        return {"text": "\n".join(self.engine(str(image)).txts or ())}
