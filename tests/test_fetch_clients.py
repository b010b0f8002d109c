"""Clients are fetched at the pinned version, and a missing one is reported in time."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import fetch_clients
import pytest
from fetch_clients import Cost, NodePackage, NotAtHandError, Program, Repository, Source, at_hand


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(fetch_clients, "FOLDER", tmp_path / "clients")
    return tmp_path / "clients"


def git(at: Path, *words: str) -> str:
    who = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    done = subprocess.run(["git", "-C", at, *who, *words], capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.strip()


@pytest.fixture
def published(tmp_path: Path) -> tuple[str, str]:
    """A repository's address, and its first commit; the second changes the file."""
    at = tmp_path / "published"
    at.mkdir()
    git(at, "init", "--quiet")
    git(at, "config", "uploadpack.allowFilter", "true")
    git(at, "config", "uploadpack.allowAnySHA1InWant", "true")
    (at / "docs").mkdir()
    (at / "other.py").write_text("never fetched")
    commits = []
    for text in ("first", "second"):
        (at / "docs" / "client.py").write_text(text)
        git(at, "add", ".")
        git(at, "commit", "--quiet", "--no-gpg-sign", "-m", text)
        commits.append(git(at, "rev-parse", "HEAD"))
    return at.as_uri(), commits[0]


def test_one_file_of_a_repository_is_fetched_at_its_commit_and_kept(folder: Path, published: tuple[str, str]) -> None:
    client = Repository(*published, "docs/client.py")
    at = at_hand(client)
    assert at.read_text() == "first"
    assert [file.name for file in folder.rglob("*.py")] == ["client.py"]
    kept = at.stat().st_mtime_ns
    assert at_hand(client).stat().st_mtime_ns == kept


def test_a_host_that_is_not_reached_is_reported_at_once() -> None:
    began_s = time.monotonic()
    with pytest.raises(NotAtHandError, match=r"^nowhere\.invalid is not reached from here$"):
        at_hand(Repository("https://nowhere.invalid/who/what", "0" * 40, "client.py"))
    assert time.monotonic() - began_s < 10.0


@pytest.mark.parametrize(
    ("source", "lack"),
    [
        (Program("no-such-program"), "no-such-program is not installed"),
        (NodePackage("ocr", "1", Cost.MINUTES), "it was not fetched before; make clients does"),
    ],
)
def test_what_is_missing_is_reported(source: Source, lack: str, folder: Path) -> None:
    with pytest.raises(NotAtHandError, match=f"^{lack}$"):
        at_hand(source)
    assert not folder.exists()


def test_a_package_of_another_version_is_not_the_pinned_one(folder: Path) -> None:
    manifest = folder / "node" / "node_modules" / "ocr" / "package.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text('{"version": "1.0.0"}')
    assert NodePackage("ocr", "1.0.0").is_here()
    assert not NodePackage("ocr", "1.0.1").is_here()
