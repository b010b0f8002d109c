"""benchmarks/accuracy.py over a corpus and a scorer of this test's own: halves, few pages, kept readings, bars."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import pytest
from support import run_program

# A scorer with the functions of the corpus's own, over words between blanks.
SCORER = """
from collections import Counter

def truth_of(row):
    return row.get("text")

def f1(truth, read):
    wanted, got = Counter(truth.split()), Counter(read.split())
    return sum((wanted & got).values()), sum(wanted.values()), sum(got.values())

def edits(truth, read):
    return int(truth != read), len(truth)

def spaces(truth, read):
    return {"mixed": [truth.count(" "), truth.count(" "), read.count(" "), 3, 4], "latin": [0] * 5}
"""
PAGES = {f"img/page{number}.png": f"page {number} says" for number in range(12)}


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder with twelve pages of two kinds, and a reading that has one page wrong."""
    (tmp_path / "corpus").mkdir()
    (tmp_path / "score.py").write_text(SCORER, "utf-8")
    kinds = ["photo", *["document"] * 11]
    rows = [{"file": file, "text": PAGES[file], "kind": kind} for file, kind in zip(PAGES, kinds, strict=True)]
    (tmp_path / "corpus" / "manifest.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    for name, wrong in (("before.jsonl", ""), ("after.jsonl", "img/page3.png")):
        lines = [{"file": file, "text": "page 3" if file == wrong else text} for file, text in PAGES.items()]
        (tmp_path / name).write_text("\n".join(map(json.dumps, lines)), "utf-8")
    return tmp_path


def score(shared: Path, *args: str) -> tuple[subprocess.CompletedProcess[str], dict[str, dict[str, dict[str, object]]]]:
    """The finished program and the kinds of its JSON."""
    out = shared / "out.json"
    done = run_program("benchmarks/accuracy.py", "--shared", shared, "--out", out, *args)
    assert out.exists(), done.stderr
    return done, json.loads(out.read_text("utf-8"))["kinds"]


def test_pages_count_in_the_half_of_their_name_hash_and_thresholds_apply(shared: Path) -> None:
    done, kinds = score(shared, "--score", str(shared / "before.jsonl"))
    # The half is that of the name's hash, as the documents say.
    hashes = [hashlib.sha256(file.rpartition("/")[2].encode()).digest() for file in PAGES]
    wanted = [("tuning", "reporting")[found[0] & 1] for found in hashes]
    assert kinds["all"]["ALL"]["pages"] == 12
    assert all(kinds[half]["ALL"]["pages"] == wanted.count(half) for half in ("tuning", "reporting"))
    assert (kinds["all"]["ALL"]["few"], kinds["all"]["photo"]["pages"]) == (True, 1)
    assert [line.split()[-1] for line in done.stdout.splitlines() if line.startswith("photo")] == ["few"]
    assert kinds["all"]["ALL"]["spaces_mixed"] == {"f1": 1.0, "right": 0.75, "places": 48}
    assert done.returncode == 1
    assert "MISSED of spaces beside Chinese 0.7500 are right, below 0.9500" in done.stdout


def test_scoring_one_half_equals_that_half_of_the_whole_and_differences_are_listed(shared: Path) -> None:
    after, before = ("--score", str(shared / "after.jsonl")), str(shared / "before.jsonl")
    done, whole = score(shared, *after, "--against", before, "--every", "1")
    for half in ("tuning", "reporting"):
        assert score(shared, *after, "--half", half)[1] == {"all": whole[half]}
    assert "img/page3.png (document): -1 tokens right, 1 lines gone, 1 new" in done.stdout
    assert "1 of 12 pages read differently" in done.stdout


def test_a_sample_is_not_checked_against_thresholds(shared: Path) -> None:
    done, _ = score(shared, "--score", str(shared / "before.jsonl"), "--every", "2")
    assert done.returncode == 0
    assert "no bars are held" in done.stdout
