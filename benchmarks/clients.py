"""Fetches the clients of every wire format, runs their tests, and writes docs/clients.md.

    python benchmarks/clients.py [--record] [--out docs/clients.md]

With --record the clients' requests are recorded anew. Exit code 1 if a client failed. Needs network access for the
first run, which takes minutes and 2 GB in the folder OCRSVC_CLIENTS (default ~/.cache/ocrsvc-clients).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from bench.machine import versions
from bench.service import ROOT

LIMIT_S: Final = 3_600
TEXT: Final = """\
# Clients

Real clients of each wire format, run unmodified against a real server with the fake engine. Written by `make clients`
(`python benchmarks/clients.py`), which also fetches them: {when}, Python {python}, gunicorn {gunicorn}.
{sum}

| format | client | version or commit | result |
|---|---|---|---|
{rows}

- **passed**: the client ran, exited without error, and printed what the engine reads.
- **recorded**: the client was not available; its recorded request (`tests/clients/recorded/`, with our image) was sent
  again byte for byte, and the answer contains what the client needs.
- **skipped**: neither was possible; the reason is given.

No client is part of this repository. They are kept in `OCRSVC_CLIENTS`, by default `~/.cache/ocrsvc-clients`: one
file at one commit of a public repository, a Python environment for each client of the package index (their pins
exclude ours), or a package of npm. What is present is not fetched again.

- `make test` fetches what takes seconds, uses what is present, and omits paddleocr_mcp and paddle-serving-server, which
  are large and start slowly.
- `make clients` fetches and runs everything.
- `python tests/fetch_clients.py` only fetches.
- `python benchmarks/clients.py --record` records again what the clients send.

`tests/clients/sources.yaml` has addresses, commits and versions, `tests/client_rows.py` how each client is run.

- Some clients have hard-wired ports: 1224, 6006, 9003, 9998, 18091. If one is in use, the recording is used instead.
- paddle-serving-server requires libraries of 2020. It runs here with current ones, and with an empty module instead of
  `paddle_serving_client`, which it imports but does not use for this, and which supports Python up to 3.9.
- perf_analyzer is in the tritonclient wheels up to 2.40.0. It needs `libb64-0d`, which is unpacked from Debian's
  package, and CUDA's runtime from the package index, but no GPU. It measures a few windows of 0.2 s, which shows that
  it works, but is no performance figure.
"""


def main() -> int:
    """Fetch and run the clients and write the page; return pytest's exit code."""
    args = _arguments()
    subprocess.run([sys.executable, "tests/fetch_clients.py"], cwd=ROOT, check=True, timeout=LIMIT_S)
    environment = os.environ | {"OCRSVC_CLIENTS_ALL": "1", "PYTHONPATH": str(ROOT)}
    if args.record:
        environment["OCRSVC_CLIENTS_RECORD"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "tests/test_clients.py", f"--junitxml={report}"]
        command += ["-o", "junit_family=xunit1", "-k", "or_its_recording_is_served"]
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False, timeout=LIMIT_S)
        cases = list(ET.parse(report).iter("testcase"))
    args.out.write_text(_page(cases), "utf-8")
    print(f"{args.out.read_text('utf-8')}\nwritten to {args.out}")
    return done.returncode


def _page(cases: list[ET.Element]) -> str:
    clients = [_row(case) for case in cases]
    found, when = versions(), datetime.now(UTC).strftime("%Y-%m-%d")
    counted = Counter(result.partition(":")[0] for result in (row["result"] for row in clients))
    total = ", ".join(f"{count} {name}" for name, count in sorted(counted.items()))
    rows = "\n".join(f"| {row['format']} | {row['client']} | {row['version']} | {row['result']} |" for row in clients)
    head = {"when": when, "python": found["python"], "gunicorn": found["gunicorn"]}
    return TEXT.format(**head, sum=f"{len(clients)} clients: {total}.", rows=rows)


def _row(case: ET.Element) -> Mapping[str, str]:
    """What the test reported about its client: format, client, version, result."""
    properties = {item.get("name", ""): item.get("value", "") for item in case.iter("property")}
    result = properties.get("result", "failed")
    if case.find("failure") is not None or case.find("error") is not None:
        result = "failed"
    elif (skipped := case.find("skipped")) is not None:
        result = f"skipped: {skipped.get('message', '')}"
    elif result == "recorded":
        result = f"recorded: {properties['lack']}"
    return properties | {"result": result}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--record", action="store_true", help="record the clients' requests anew")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "clients.md")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
