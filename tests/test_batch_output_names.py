"""Names of the files that belong to one source each: inside the destination, different for different sources."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ocrsvc.batch.outputs.source_files import ENDINGS, source_path

ODD = st.sampled_from(
    [
        *("/", "..", ".", "@", "@root", "@up", "%2E", "~0123456789abcdef", "a.txt", ".pdf", "://"),
        *("_ocrsvc", "_files", "Unfinished"),
    ]
)
NAMES = st.lists(st.one_of(ODD, st.text(string.ascii_letters + "/.%@~ _#:\\é中\ud800\n", max_size=12)), min_size=1).map(
    "".join
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("scans/a.pdf", "scans/a.pdf.txt"),
        ("/data/scans/a.pdf", "@root/data/scans/a.pdf.txt"),
        ("../x/a.pdf", "@up/x/a.pdf.txt"),
        ("s3://bucket/k/a.png", "@s3/bucket/k/a.png.txt"),
        ("shards/00.tar/17.jpg", "shards/00.tar/17.jpg.txt"),
        ("宋体 扫描/第1页.jpg", "宋体 扫描/第1页.jpg.txt"),
        ("a.txt/b.png", "a%2Etxt/b.png.txt"),
        ("pages-00000.jsonl/b.png", "pages-00000%2Ejsonl/b.png.txt"),
        ("_ocrsvc/run.json", "%5Focrsvc/run.json.txt"),
        ("_files/text.png", "%5Ffiles/text.png.txt"),
        ("unfinished/a.png", "%75nfinished/a.png.txt"),
        ("C:\\scans\\a.png", "C%3A%5Cscans%5Ca.png.txt"),
        ("100%.png", "100%25.png.txt"),
    ],
)
def test_a_file_is_called_like_its_source(name: str, expected: str) -> None:
    assert source_path(name, ".txt") == expected


@given(NAMES, st.sampled_from(ENDINGS))
def test_no_name_leads_out_of_the_destination(name: str, ending: str) -> None:
    path = source_path(name, ending)
    parts = path.split("/")
    assert not {"", "_ocrsvc", "_files", "unfinished"} & {part.lower() for part in parts}
    assert not any(part.startswith(".") for part in parts)
    assert all(len(part.encode()) <= 210 for part in parts)
    assert len(path.encode()) <= 820
    assert path.endswith(ending)


@given(NAMES, NAMES, st.sampled_from(ENDINGS), st.sampled_from(ENDINGS))
def test_two_sources_have_two_files_and_neither_is_in_the_other(one: str, two: str, first: str, second: str) -> None:
    if (one, first) == (two, second):
        return
    path, other = source_path(one, first), source_path(two, second)
    assert path != other
    assert not other.startswith(f"{path}/")


@pytest.mark.parametrize("name", ["x" * 300, "/".join(["folder"] * 300), "中" * 200 + "/" + "文" * 300])
def test_a_name_that_is_too_long_is_cut_and_stays_its_own(name: str) -> None:
    path = source_path(name, ".hocr")
    assert max(len(part.encode()) for part in path.split("/")) <= 210
    assert path != source_path(f"{name}x", ".hocr")
