"""Runs LiteLLM's unmodified Mistral OCR client in a separate virtual environment: litellm_ocr.py ADDRESS."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import litellm

write = print

URL = "data:image/png;base64," + base64.b64encode(Path("page.png").read_bytes()).decode()
TO = {"model": "mistral/mistral-ocr-latest", "api_base": f"{sys.argv[1]}/v1", "api_key": "none"}
for document in (
    {"type": "document_url", "document_url": URL},
    {"type": "image_url", "image_url": URL},
    {"type": "file", "file": Path("page.png")},
):
    answer = litellm.ocr(document=document, **TO)
    write(answer.pages[0].markdown, answer.usage_info)
try:
    litellm.ocr(document={"type": "image_url", "image_url": "data:image/png;base64,!!!!"}, **TO)
except litellm.exceptions.BadRequestError as error:
    write("refused:", error)
