"""`ocrsvc batch` as a process: killed, interrupted, and with pages that crash, hang or leak."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import cv2
import numpy as np
import pytest
from support import ROOT, wait_until

from ocrsvc.cli.main import run

SOON_S = 60.0


def draw_pages(folder: Path, count: int) -> list[str]:
    """A folder with so many images, each of another size; gives their texts, as the fake engine reads them."""
    folder.mkdir()
    digests = []
    for number in range(count):
        image = np.full((20 + number, 40, 3), 255, np.uint8)
        cv2.imwrite(str(folder / f"{number:03d}.png"), image)
        digests.append(f"{zlib.crc32(image.data):08x}")
    return digests


@contextmanager
def started(pages: Path, out: Path, *more: str, **settings: str) -> Iterator[subprocess.Popen[str]]:
    """`ocrsvc batch` with the fake engine, in a process group of its own, which is killed at the end."""
    environment = os.environ | {"OCRSVC_ENGINE": "fake"} | {f"OCRSVC_{key}": value for key, value in settings.items()}
    command = [sys.executable, "-m", "ocrsvc", "batch", str(pages), "--out", str(out), "--part-pages", "20", *more]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def known_pages(out: Path) -> int:
    """Pages with a result: in parts of the output, and in the work file."""
    known = 20 * len(list(out.glob("_ocrsvc/parts/*.json")))
    for work in out.glob("_ocrsvc/work/*.sqlite"):
        with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{work}?mode=ro", uri=True)) as db:
            known += db.execute("SELECT count(*) FROM page").fetchone()[0]
    return known


def wait_for_growth(out: Path, by_pages: int) -> None:
    """Return once so many more pages are known."""
    before = known_pages(out)
    wait_until(lambda: known_pages(out) >= before + by_pages, "more pages", SOON_S)


def records(out: Path) -> list[dict[str, object]]:
    """All lines of the output, in the order of its files."""
    return [json.loads(line) for file in sorted(out.glob("*.jsonl")) for line in file.read_bytes().splitlines()]


def test_a_run_that_is_killed_and_then_interrupted_goes_on_with_the_same_command(tmp_path: Path) -> None:
    pages, out = tmp_path / "pages", tmp_path / "out"
    draw_pages(pages, 120)
    with started(pages, out, FAKE_LATENCY_S="0.05"):
        wait_for_growth(out, 25)
    with started(pages, out, FAKE_LATENCY_S="0.05") as interrupted:
        wait_for_growth(out, 25)
        interrupted.send_signal(signal.SIGINT)
        _, messages = interrupted.communicate(timeout=SOON_S)
    assert interrupted.returncode == 75
    assert "give the same command again" in messages
    with started(pages, out) as last:
        _, messages = last.communicate(timeout=SOON_S)
    assert last.returncode == 0, messages
    assert [record["source"] for record in records(out)] == sorted(map(str, pages.iterdir()))
    assert run(["batch", "--verify", "--out", str(out)]) == 0


def test_a_second_signal_ends_the_run_at_once(tmp_path: Path) -> None:
    pages, out = tmp_path / "pages", tmp_path / "out"
    draw_pages(pages, 9)
    with started(pages, out, FAKE_FAULT="hang") as hanging:
        wait_until(lambda: list(out.glob("_ocrsvc/begun/*")), "a page that is being read", SOON_S)
        hanging.send_signal(signal.SIGINT)
        assert hanging.stderr is not None
        assert "SIGINT: finishing" in hanging.stderr.readline() + hanging.stderr.readline()
        hanging.send_signal(signal.SIGINT)
        assert hanging.wait(SOON_S) == -signal.SIGINT


@pytest.mark.parametrize(("fault", "code"), [("crash", "image_crashes_engine"), ("hang", "deadline_exceeded")])
def test_a_page_that_crashes_or_hangs_the_engine_costs_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, code: str
) -> None:
    settings = {"ENGINE": "fake", "FAKE_FAULT": fault, "DEADLINE_S": "5"}
    settings["FAKE_FAULT_ON"] = draw_pages(tmp_path / "pages", 12)[5]
    for key, value in settings.items():
        monkeypatch.setenv(f"OCRSVC_{key}", value)
    out = tmp_path / "out"
    assert run(["batch", str(tmp_path / "pages"), "--out", str(out), "--attempts", "1"]) == 1
    failed = [(record["source"], record["error"]["code"]) for record in records(out) if record["error"]]  # type: ignore[index]
    assert (len(records(out)), failed) == (12, [(str(tmp_path / "pages" / "005.png"), code)])


def test_engine_processes_that_leak_are_replaced_while_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"ENGINE": "fake", "FAKE_LEAK_BYTES": "20MB", "CHILD_MEMORY_BYTES": "200MB", "ENGINE_THREADS": "1"}
    for key, value in settings.items():
        monkeypatch.setenv(f"OCRSVC_{key}", value)
    draw_pages(tmp_path / "pages", 30)
    with caplog.at_level("INFO", "ocrsvc.isolation"):
        assert run(["batch", str(tmp_path / "pages"), "--out", str(tmp_path / "out")]) == 0
    assert len(records(tmp_path / "out")) == 30
    assert "RECYCLED: memory" in caplog.text


def test_another_engine_or_other_settings_that_change_results_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OCRSVC_ENGINE", "fake")
    monkeypatch.setenv("OCRSVC_ISOLATION", "thread")
    draw_pages(tmp_path / "pages", 3)
    command = ["batch", str(tmp_path / "pages"), "--out", str(tmp_path / "out")]
    assert run([*command, "--limit", "1"]) == 75
    monkeypatch.setenv("OCRSVC_FAKE_TEXT", "more")
    assert run(command) == 65
    assert "fake_text=more" in capsys.readouterr().err
    monkeypatch.delenv("OCRSVC_FAKE_TEXT")
    monkeypatch.setenv("OCRSVC_LOG_LEVEL", "error")
    assert run(command) == 0
