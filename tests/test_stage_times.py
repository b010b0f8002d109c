"""benchmarks/stage_times.py finds the functions whose time it takes."""

from __future__ import annotations

import subprocess
import sys

from support import ROOT, clean_environment


def test_every_stage_is_a_function_of_the_service() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import stage_times; stage_times.Stopwatch().install()"],
        cwd=ROOT / "benchmarks",
        env=clean_environment({}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
