"""Runs paperless-ngx's unmodified remote parser with its azureai engine, in a separate environment.

python paperless_remote.py PARSER_FILE ADDRESS
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

# The test checks this output.
write = print


def stub_module(name: str, **members: Any) -> None:
    """Register a stub for a paperless-ngx or Django module that the parser imports."""
    package = name.partition(".")[0]
    sys.modules.setdefault(package, ModuleType(package))
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(members)


stub_module("documents.parsers", ParseError=RuntimeError)
stub_module("paperless.version", __full_version_str__="3")
stub_module(
    "django.conf",
    settings=SimpleNamespace(
        REMOTE_OCR_ENGINE="azureai",
        REMOTE_OCR_API_KEY="none",
        REMOTE_OCR_ENDPOINT=sys.argv[2],
        SCRATCH_DIR=Path("scratch").absolute(),
    ),
)
Parser = runpy.run_path(sys.argv[1])["RemoteDocumentParser"]
for name, kind in (("page.png", "image/png"), ("document.pdf", "application/pdf")):
    assert Parser.score(kind, name) == 20
    with Parser() as parser:
        parser.parse(Path(name), kind)
        write(parser.get_text(), parser.get_archive_path().read_bytes()[:5])
