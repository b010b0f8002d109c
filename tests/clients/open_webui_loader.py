"""Loads a file with the class DoclingLoader of Open WebUI and prints the documents that it returns.

python open_webui_loader.py MODULE URL FILE

Only the class is compiled, because the rest of its module imports all of Open WebUI.
"""

from __future__ import annotations

import ast
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import requests


def main() -> None:
    """Load the file with Open WebUI's default options, then with options that a user sets."""
    module, url, file = sys.argv[1:]
    tree = ast.parse(Path(module).read_text(encoding="utf-8"))
    wanted: list[ast.stmt] = [
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "DoclingLoader"
    ]
    names: dict[str, Any] = {
        "requests": requests,
        "os": os,
        "log": logging.getLogger("loader"),
        "AIOHTTP_CLIENT_SESSION_SSL": True,
        "Document": SimpleNamespace,
    }
    exec(compile(ast.Module(wanted, []), module, "exec"), names)
    for params in ({}, {"do_ocr": True, "ocr_lang": ["en"], "pipeline": "standard", "to_formats": ["md"]}):
        for document in names["DoclingLoader"](url, "key", file, "application/pdf", params).load():
            print(document.page_content, document.metadata)  # noqa: T201  the test reads it
    try:
        names["DoclingLoader"](url, None, file, None, {"pipeline": "vlm"}).load()
    except Exception as error:  # noqa: BLE001  the class raises plain Exception
        print(f"refused: {error}")  # noqa: T201


main()
