"""Benchmarks: accuracy.py with a small corpus and scorer made here, and the percentiles of peers.py."""

import hashlib
import json
from importlib import import_module
from pathlib import Path

import pytest
from support import ROOT, run_program

# A scorer with the functions of the corpus's score.py; it splits words at spaces.
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
    """A folder with a corpus of twelve pages of two kinds, and a file with the text read on each."""
    (tmp_path / "corpus").mkdir()
    (tmp_path / "score.py").write_text(SCORER, "utf-8")
    kinds = ["photo", *["document"] * 11]
    rows = [{"file": file, "text": PAGES[file], "kind": kind} for file, kind in zip(PAGES, kinds, strict=True)]
    (tmp_path / "corpus" / "manifest.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    lines = [{"file": file, "text": text} for file, text in PAGES.items()]
    (tmp_path / "read.jsonl").write_text("\n".join(map(json.dumps, lines)), "utf-8")
    return tmp_path


def test_pages_count_in_the_half_of_their_name_hash_and_thresholds_apply(shared: Path) -> None:
    out = shared / "out.json"
    done = run_program("benchmarks/accuracy.py", "--shared", shared, "--out", out, "--score", shared / "read.jsonl")
    kinds = json.loads(out.read_text("utf-8"))["kinds"]
    # The docs say that the hash of a file's name selects its half.
    hashes = [hashlib.sha256(file.rpartition("/")[2].encode()).digest() for file in PAGES]
    wanted = [("tuning", "reporting")[found[0] & 1] for found in hashes]
    assert kinds["all"]["ALL"]["pages"] == 12
    assert all(kinds[half]["ALL"]["pages"] == wanted.count(half) for half in ("tuning", "reporting"))
    assert (kinds["all"]["ALL"]["few"], kinds["all"]["photo"]["pages"]) == (True, 1)
    assert [line.split()[-1] for line in done.stdout.splitlines() if line.startswith("photo")] == ["few"]
    assert kinds["all"]["ALL"]["spaces_mixed"] == {"f1": 1.0, "right": 0.75, "places": 48}
    assert done.returncode == 1
    assert "MISSED of spaces beside Chinese 0.7500 are right, below 0.9500" in done.stdout


@pytest.mark.parametrize(
    ("share", "counts", "expected"),
    [(0.5, (1, 2, 24), [None, 1, 12]), (0.95, (19, 20, 24), [None, 19, 22]), (0.99, (24, 99, 100), [None, None, 99])],
)
def test_a_percentile_is_reported_only_with_requests_beyond_it(
    monkeypatch: pytest.MonkeyPatch, share: float, counts: tuple[int, ...], expected: list[int | None]
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    quantile = import_module("bench.peer_load").quantile
    assert [quantile(range(count), share) for count in counts] == expected
