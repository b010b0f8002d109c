"""RapidOCR behind BentoML, as BentoML's documentation writes a service: one class, its defaults kept.

bentoml serve serve_bentoml:Ocr --host 127.0.0.1 --port PORT    (in an environment with bentoml and rapidocr)
"""

from __future__ import annotations

from pathlib import Path

import bentoml
from rapidocr import RapidOCR


# The default limit of 60 s would refuse what waits behind 20 clients.
@bentoml.service(traffic={"timeout": 600})
class Ocr:
    """POST /read with the multipart file `image`."""

    def __init__(self) -> None:
        self.engine = RapidOCR()

    @bentoml.api
    def read(self, image: Path) -> dict[str, str]:
        """The text alone."""
        return {"text": "\n".join(self.engine(str(image)).txts or ())}
