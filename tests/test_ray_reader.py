"""`ocrsvc batch --on ray`: the actors of a real cluster of two nodes read the same as this process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
import pytest
from ray_support import TwoNodes, two_nodes
from support import clean_environment, wait_until

from ocrsvc.cli.main import run

_SOON_S = 60.0
_PAGES = 120


@pytest.fixture(scope="module")
def cluster() -> Iterator[TwoNodes]:
    if find_spec("ray") is None:
        pytest.skip("ray is not installed")
    # A socket's path may have 107 characters: pytest's own folders are too deep.
    with tempfile.TemporaryDirectory(prefix="ray") as folder, two_nodes(Path(folder)) as nodes:
        yield nodes


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """A folder with images that differ."""
    folder = tmp_path / "pages"
    folder.mkdir()
    for number in range(_PAGES):
        cv2.imwrite(str(folder / f"{number:03}.png"), np.full((20 + number, 40, 3), number, np.uint8))
    return folder


def batch(
    cluster: TwoNodes, sources: list[str], out: Path, *more: str, fds: tuple[int, ...] = ()
) -> subprocess.Popen[str]:
    """The command, begun."""
    environment = clean_environment(
        {
            "PYTHONPATH": os.pathsep.join(sys.path),
            "RAY_ADDRESS": cluster.address,
            "OCRSVC_ENGINE": "fake",
            "OCRSVC_ISOLATION": "thread",
            "OCRSVC_FAKE_LATENCY_S": "0.05",
        }
    )
    command = [sys.executable, "-m", "ocrsvc", "batch", *sources, "--out", str(out), "--on", "ray", *more]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, pass_fds=fds)


def written(out: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in out.glob("*.jsonl")}


def test_actors_that_no_node_has_room_for_are_named_with_what_there_is(cluster: TwoNodes, tmp_path: Path) -> None:
    process = batch(cluster, [str(tmp_path)], tmp_path / "out", "--gpus-per-actor", "0.5", "--actor-wait", "1")
    said = process.communicate(timeout=_SOON_S)[1]
    assert process.returncode == 69, said
    assert "Each needs 1 CPU, 0.5 GPU; the cluster has" in said
    assert "No node is large enough." in said


def test_a_node_that_dies_costs_nothing_and_the_output_is_as_of_one_process(
    cluster: TwoNodes, pages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCRSVC_ENGINE", "fake")
    monkeypatch.setenv("OCRSVC_ISOLATION", "thread")
    with (pages / "000.png").open("rb") as file:
        # Every process has files of its own by this name: no actor reads this one but from what it is sent.
        sources = [str(pages), f"/proc/self/fd/{file.fileno()}"]
        process = batch(cluster, sources, tmp_path / "ray", "--part-pages", "20", fds=(file.fileno(),))
        wait_until(lambda: list((tmp_path / "ray").glob("*.jsonl")), "a part that is written", _SOON_S)
        cluster.kill_second()
        said = process.communicate(timeout=_SOON_S)[1]
        assert process.returncode == 0, said
        assert run(["batch", *sources, "--out", str(tmp_path / "local"), "--part-pages", "20"]) == 0
    assert written(tmp_path / "ray") == written(tmp_path / "local")
    assert f"{_PAGES + 1} pages read, 0 failed" in said
    assert "has ended; its" in said
