"""Runs one of Open WebUI's unmodified document loaders in a separate virtual environment.

python open_webui_engines.py MODULE CLASS URL FILE
"""

from __future__ import annotations

import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

module, name, url, file = sys.argv[1:]
Loader = runpy.run_path(module)[name]
# Arguments that Open WebUI passes to each loader in addition to the file.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "PaddleOCRVLLoader": {"api_url": url, "token": "key"},
    "MinerULoader": {"api_url": url, "api_key": "key", "params": {"language": "en", "enable_ocr": True}},
    "ExternalDocumentLoader": {"url": url, "api_key": "key", "mime_type": "application/pdf"},
}


def load(path: str) -> None:
    """Print the loader's documents, or the error that it raises or reports."""
    try:
        for document in Loader(file_path=path, **ARGUMENTS[name]).load():
            print(document.page_content, document.metadata)  # noqa: T201  the test reads it
    except Exception as error:  # noqa: BLE001  the loaders raise plain Exception
        print(f"refused: {getattr(error, 'detail', error)}")  # noqa: T201


load(file)
shutil.copy(file, "第 1 页.pdf")
load("第 1 页.pdf")
Path("broken.pdf").write_bytes(b"%PDF-1.4\nnot one")
load("broken.pdf")
