"""Which clients of which formats were run, and passed? Runs tests/test_clients.py and writes docs/clients.md.

    python benchmarks/clients.py [--clients ../shared/clients] [--out docs/clients.md]

Exit code 1 if a client failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree as ET

from bench.machine import versions
from bench.service import ROOT

TEXT = """\
# Clients

Made by `python benchmarks/clients.py`, which runs each format's own clients, unmodified, against a real server over the
fake engine (`tests/test_clients.py`): {when}, Python {python}, gunicorn {gunicorn}.

| format | client | result |
|---|---|---|
{rows}

`pip install ocrspace` brings the one from PyPI. Clients that public repositories hold are no part of this one: they are
read from the folder that `OCRSVC_CLIENTS` names, by default `../shared/clients`, and skipped where that lacks them.

```sh
mkdir -p ../shared/clients && cd ../shared/clients
git clone --depth 1 https://github.com/RapidAI/RapidOCRAPI
git clone --depth 1 https://github.com/SamuraiBUPT/TrWebOCR.cpp
git clone --depth 1 https://github.com/alisen39/TrWebOCR
git clone --depth 1 https://github.com/hiroi-sora/Umi-OCR
git clone --depth 1 https://github.com/PaddlePaddle/PaddleOCR   # at a commit that has deploy/pdserving
npm install ocr-space-api-wrapper
```

Umi-OCR's `api_doc_demo.py` is not run: it sends documents to `/api/doc`, which is not served.
"""


def main() -> int:
    """Run, write, tell; pytest's exit code."""
    asked = _arguments()
    environment = os.environ | {"OCRSVC_CLIENTS": str(asked.clients.resolve()), "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "tests/test_clients.py", f"--junitxml={report}"]
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False, timeout=600)
        rows = "\n".join(_rows(ET.parse(report)))
    when = datetime.now(UTC).strftime("%Y-%m-%d")
    found = versions()
    asked.out.write_text(TEXT.format(when=when, python=found["python"], gunicorn=found["gunicorn"], rows=rows), "utf-8")
    print(f"{rows}\nwritten to {asked.out}")
    return done.returncode


def _rows(report: ET.ElementTree[ET.Element]) -> Iterator[str]:
    """One row a client, from names such as test_umi_ocr__python_snippets_of_its_api_ocr_md."""
    for case in report.iter("testcase"):
        dialect, _, client = case.get("name", "").removeprefix("test_").partition("__")
        yield f"| {dialect} | {client.replace('_', ' ')} | {_result(case)} |"


def _result(case: ET.Element) -> str:
    skipped = case.find("skipped")
    if skipped is not None:
        return "not run: " + skipped.get("message", "").partition(" under ")[0]
    failed = case.find("failure") is not None or case.find("error") is not None
    return "failed" if failed else "passed"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clients", type=Path, default=ROOT.parent / "shared" / "clients")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "clients.md")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
