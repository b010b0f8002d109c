"""Runs TurboOCR's own pytest suite (tests/integration, tests/regression) against this service with its real engine.

    python benchmarks/turboocr_suite.py [--suite FOLDER] [-k EXPRESSION]

The suite is fetched at the commit in benchmarks/data/turboocr_suite.json, or taken from the checkout --suite. Prints
the numbers of tests passed, failed and skipped, and the tests that unexpectedly did not pass. Exit code 1 if there are
any. Takes ten minutes on two idle cores; the first run needs network access.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

from bench.service import ROOT, free_port, started

EXPECTED: Final = ROOT / "benchmarks" / "data" / "turboocr_suite.json"
REPOSITORY: Final = "https://github.com/aiptimizer/TurboOCR"
REQUIREMENTS: Final = ("pytest", "requests", "grpcio", "grpcio-tools", "Pillow", "numpy", "reportlab")
FOLDER: Final = Path(os.environ.get("OCRSVC_CLIENTS") or Path.home() / ".cache" / "ocrsvc-clients").absolute()
LIMIT_S: Final = 7_200


def main() -> None:
    """Run the suite and print the results; exits with 1 if a test unexpectedly did not pass."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--suite", type=Path, help="a checkout of the suite; fetched by default")
    parser.add_argument("-k", default="", help="pytest's expression for the tests to run")
    args = parser.parse_args()
    expected = json.loads(EXPECTED.read_text("utf-8"))
    # The service would refuse it as an unknown setting.
    os.environ.pop("OCRSVC_CLIENTS", None)
    suite = args.suite or fetched_suite(expected["commit"])
    results = run_suite(suite.absolute(), environment(), args.k)
    print(dict(Counter(results.values())))
    surprises = [name for name in results if results[name] != "passed" and not is_expected(name, expected)]
    for name in surprises:
        print(f"{results[name]}: {name}")
    sys.exit(1 if surprises or not results else 0)


def is_expected(name: str, expected: dict[str, Any]) -> bool:
    """Whether the test is listed as not passing."""
    return any(name.startswith(known) for known in expected["not_passed"])


def fetched_suite(commit: str) -> Path:
    """The checkout of this commit, fetched on first use."""
    at = FOLDER / f"TurboOCR-{commit}"
    if not (at / "tests").is_dir():
        subprocess.run(["git", "clone", "--quiet", "--depth=1", "--branch", commit, REPOSITORY, at], check=True)
    return at


def environment() -> Path:
    """The Python of an environment with the suite's requirements, made on first use."""
    python = FOLDER / "turboocr_suite" / "bin" / "python"
    if not python.is_file():
        subprocess.run([sys.executable, "-m", "venv", FOLDER / "turboocr_suite"], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS], check=True)
    return python


def run_suite(suite: Path, python: Path, expression: str) -> dict[str, str]:
    """passed, failed or skipped, by test name."""
    rpc = f"127.0.0.1:{free_port()}"
    env = {
        "OCRSVC_ENGINE": "ppocr",
        "OCRSVC_ADAPTERS": "turboocr",
        "OCRSVC_GRPC_BIND": rpc,
        # TurboOCR's limits of pages and time.
        "OCRSVC_MAX_PAGES": "2000",
        "OCRSVC_DEADLINE_S": "300",
    }
    with started(env) as service, tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        # The suite uses a mark that is not in its own pytest configuration.
        command: list[str | Path] = [
            python,
            "-m",
            "pytest",
            "-q",
            "-o",
            "addopts=",
            "-p",
            "no:cacheprovider",
            f"--junitxml={report}",
        ]
        command += ["-k", expression, "--server-url", service.url, "--grpc-target", rpc, "integration", "regression"]
        # Run its tests for CPU servers against the same service.
        more = {**os.environ, "CPU_SERVER_URL": service.url, "PYTHONPATH": ""}
        subprocess.run(command, cwd=suite / "tests", env=more, timeout=LIMIT_S, check=False)
        return results_in(report)


def results_in(report: Path) -> dict[str, str]:
    """Results by test name from pytest's JUnit report."""
    found: dict[str, str] = {}
    for case in ET.parse(report).iter("testcase"):
        module, _, name = case.get("classname", "").rpartition(".")
        file, of_class = (f"{module}.{name}", "") if name.startswith("test_") else (module, f"::{name}")
        outcome = next((kind.tag for kind in case if kind.tag in {"failure", "error", "skipped"}), "passed")
        test = f"{file.replace('.', '/')}.py{of_class}::{case.get('name')}"
        found[test] = {"failure": "failed", "error": "failed"}.get(outcome, outcome)
    return found


if __name__ == "__main__":
    main()
