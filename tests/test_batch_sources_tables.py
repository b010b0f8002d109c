"""Sources of a batch run that are Parquet and Arrow files: the images in a column, or the files that it names."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from batch_support import document, load, plan, png

from ocrsvc.batch.request import SourceRequest
from ocrsvc.batch.sources.load_files import SourceLoader
from ocrsvc.batch.sources.plan_files import check_unchanged, is_below
from ocrsvc.batch.sources.source_files import PlanningCounts
from ocrsvc.errors import BodyTooLarge, BrokenArchive, OcrsvcError, SourceGone

pa = pytest.importorskip("pyarrow")
from pyarrow import ipc, parquet  # noqa: E402  after it is known to be there

IMAGES = [png(shade) for shade in range(25)]
FORMS = pytest.mark.parametrize("name", ["t.parquet", "file.arrow", "stream.arrow"])


def table_of(images: Sequence[bytes | None], kind: str = "bytes") -> Any:
    """A table with ids and images, as bytes or as Hugging Face's data sets hold them."""
    ids = pa.array([f"id{number}" for number in range(len(images))])
    if kind == "bytes":
        return pa.table({"id": ids, "scan": pa.array(images, pa.binary())})
    values = [None if data is None else {"bytes": data, "path": f"{at}.png"} for at, data in enumerate(images)]
    return pa.table({"id": ids, "image": pa.array(values, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))})


def write_table(path: Path, table: Any) -> Path:
    """The table as its name says, in groups of ten rows."""
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=10)
    else:
        with (ipc.new_stream if "stream" in path.name else ipc.new_file)(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=10)
    return path


@FORMS
@pytest.mark.parametrize("kind", ["bytes", "struct"])
def test_each_row_is_an_image_that_is_loaded_in_any_order(tmp_path: Path, kind: str, name: str) -> None:
    path = write_table(tmp_path / name, table_of(IMAGES, kind))
    files = plan(path)
    assert [file.name for file in files] == [f"{path}#{row}" for row in range(25)]
    order = random.Random(3).sample(list(zip(files, IMAGES, strict=True)), 25)
    with closing(SourceLoader()) as loader:
        assert all(loader(file) == data for file, data in order)


@pytest.mark.parametrize("name", ["t.parquet", "file.feather"])
def test_documents_have_their_pages(tmp_path: Path, name: str) -> None:
    files = plan(write_table(tmp_path / name, table_of([document(3), png(), None])))
    assert [file.total for file in files] == [3, 1, 1]
    assert load(files[0])[:5] == b"%PDF-"
    with pytest.raises(BrokenArchive, match="no image"):
        load(files[2])
    # A document among images is not read as one page, nor a row that is larger than the limit.
    images = plan(write_table(tmp_path / "data.parquet", table_of([png(), document(3), bytes(100_000)])))
    assert load(images[0]) == png()
    with pytest.raises(SourceGone, match="document of 3 pages, of which 1 is planned"):
        load(images[1])
    with pytest.raises(BodyTooLarge, match="100000"):
        load(images[2], 50_000)


def test_rows_may_name_files(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(1))
    (tmp_path / "d.pdf").write_bytes(document(2))
    paths = ["a.png", str(tmp_path / "d.pdf"), "gone.png", None, "a.png"]
    path = write_table(tmp_path / "t.parquet", pa.table({"note": paths, "path": paths}))
    files = plan(path)
    assert [file.name for file in files] == [f"{path}#{row}" for row in range(5)]
    assert [file.total for file in files] == [1, 2, 0, 0, 1]
    assert (load(files[0]), load(files[4])) == (png(1), png(1))
    for number in (2, 3):
        with pytest.raises(OcrsvcError, match=rf"#{number}"):
            load(files[number])
    check_unchanged(files, SourceRequest((str(path),)), "out")


def test_the_column_can_be_named(tmp_path: Path) -> None:
    table = pa.table({"image": pa.array([png(1)]), "back": pa.array([png(2)]), "text": ["a.png"]})
    path = write_table(tmp_path / "t.parquet", table)
    assert [load(plan(path, column=column)[0]) for column in (None, "image", "back")] == [png(1), png(1), png(2)]


@pytest.mark.parametrize("column", [None, "number", "nothing"])
def test_a_table_without_such_a_column_is_a_page_that_fails(tmp_path: Path, column: str | None) -> None:
    path = write_table(tmp_path / "t.parquet", pa.table({"number": [1], "text": ["a"]}))
    (file,) = plan(path, counts=(counts := PlanningCounts()), column=column)
    with pytest.raises(BrokenArchive, match=r"its columns are number \(int64\), text \(string\)"):
        load(file)
    assert counts.to_sentences()[0].startswith(
        f"1 file: cannot be read, counted as a page that fails, such as {path}: It has no column"
    )


@FORMS
@pytest.mark.parametrize("keep", [0.1, 0.6, 0.99])
def test_a_table_that_is_cut_off_ends_as_pages_that_fail(tmp_path: Path, name: str, keep: float) -> None:
    path = write_table(tmp_path / name, table_of(IMAGES))
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    files = plan(path, counts=(counts := PlanningCounts()))
    assert counts.unreadable == 1
    with pytest.raises(BrokenArchive, match="damaged"):
        load(files[-1])


def test_many_threads_load_rows(tmp_path: Path) -> None:
    images = [png(number % 256) for number in range(300)]
    files = plan(write_table(tmp_path / "t.parquet", table_of(images)))
    with closing(SourceLoader()) as loader, ThreadPoolExecutor(8) as threads:
        assert list(threads.map(loader, files)) == images


# What somebody made to do harm


LOCAL, REMOTE = "/data", "s3://bucket/data"
WITHIN = [
    *((LOCAL, path) for path in ("deep/../a.png", "/data/deep/a.png")),
    *(("", "a.png"), (REMOTE, "a.png"), (REMOTE, "s3://bucket/data/b.png")),
]
OUTSIDE = [
    *((LOCAL, path) for path in ("../a.png", "/etc/passwd", "/data/../etc/passwd", "/database/a.png")),
    *((LOCAL, path) for path in ("file:///etc/passwd", "http://169.254.169.254/latest/a.png", "s3://private/a.png")),
    *((REMOTE, path) for path in ("../../private/a.png", "/etc/passwd", "s3://bucket/private/a.png")),
]


@pytest.mark.parametrize(("folder", "path"), WITHIN + OUTSIDE)
def test_a_table_names_files_of_its_own_folder_alone_unless_its_column_is_named(folder: str, path: str) -> None:
    address = path if "://" in path or path.startswith("/") else f"{folder}/{path}"
    assert is_below(folder, address) is ((folder, path) in WITHIN)


def test_rows_that_name_what_cannot_be_named_fail_alone(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "secret.png").write_bytes(png(1))
    (tmp_path / "data/ok.png").write_bytes(png(2))
    paths = ["../secret.png", "foo://x/y.png", "http://user:dragon@host/x.png", "a\0b.png", "", "ok.png"]
    path = write_table(tmp_path / "data/t.parquet", pa.table({"path": paths}))
    for column in (None, "path"):
        files = plan(path, column=column)
        assert len(files) == len(paths)
        for file in files[1:-1] if column else files[:-1]:
            with pytest.raises(OcrsvcError, match=r"t\.parquet#") as failure:
                load(file)
            assert "dragon" not in failure.value.detail
        assert load(files[-1]) == png(2)
    assert load(files[0]) == png(1)


def test_links_do_not_lead_a_table_out_of_its_folder(tmp_path: Path) -> None:
    (data := tmp_path / "real" / "data").mkdir(parents=True)
    (other := tmp_path / "other").mkdir()
    for path in (data / "own.png", other / "secret.png"):
        path.write_bytes(png())
    (data / "linked").symlink_to(other)
    (data / "linked.png").symlink_to(other / "secret.png")
    (data / "within.png").symlink_to("own.png")
    write_table(data / "t.parquet", pa.table({"path": ["own.png", "linked/secret.png", "linked.png", "within.png"]}))
    # That the table's own folder is reached through a link is no fault of the table's.
    (tmp_path / "way").symlink_to(tmp_path / "real")
    table = tmp_path / "way" / "data" / "t.parquet"
    own, *outside, within = plan(table)
    assert load(own) == load(within) == png()
    for file in outside:
        with pytest.raises(OcrsvcError, match="outside"):
            load(file)
    assert [load(file) for file in plan(table, column="path")] == [png()] * 4


def test_an_arrow_file_whose_offsets_lead_out_of_it_is_not_followed(tmp_path: Path) -> None:
    size = len(png())
    path = write_table(tmp_path / "t.arrow", pa.table({"image": pa.array([png()] * 3, pa.binary())}))
    good = struct.pack("<4i", *range(0, 4 * size, size))
    path.write_bytes(path.read_bytes().replace(good, struct.pack("<4i", 0, 1 << 30, (1 << 30) + size, 1 << 30)))
    (file,) = plan(path)
    with pytest.raises(BrokenArchive, match="damaged"):
        load(file)


def test_a_parquet_file_of_empty_rows_is_one_page_that_fails(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"image": pa.nulls(1_100_000, pa.binary())}), tmp_path / "t.parquet")
    (file,) = plan(tmp_path / "t.parquet")
    with pytest.raises(BrokenArchive, match="1100000 rows"):
        load(file)


BOMB = """
import sys, pyarrow as pa
from pyarrow import parquet
path, size, rows = sys.argv[1], int(sys.argv[2]) << 20, int(sys.argv[3])
column = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([bytes(size)]))
how = {"compression": "zstd", "store_schema": False, "dictionary_pagesize_limit": 1 << 30}
parquet.write_table(pa.table({"image": column}), path, **how)
"""
PEAK = """
import os, subprocess, sys
run = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(run.pid, 0)
print(usage.ru_maxrss, os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize(("value_mb", "rows"), [(4, 1500), (200, 1)])
def test_a_parquet_file_that_unpacks_to_gigabytes_takes_bounded_memory(
    tmp_path: Path, value_mb: int, rows: int
) -> None:
    path, out = tmp_path / "bomb.parquet", tmp_path / "out"
    subprocess.run([sys.executable, "-c", BOMB, path, str(value_mb), str(rows)], check=True)
    assert path.stat().st_size < 100_000
    command = [sys.executable, "-m", "ocrsvc", "batch", str(path), "--out", str(out), "--limit", "40", "--no-report"]
    # A process begins with the peak of the one that starts it, so a small one starts the run.
    measured = subprocess.run(
        [sys.executable, "-c", PEAK, *command],
        env=os.environ | {"OCRSVC_ENGINE": "fake", "OCRSVC_ISOLATION": "thread"},
        capture_output=True,
        text=True,
        check=True,
    )
    peak_kb, status = map(int, measured.stdout.split())
    # The largest of its processes, those that it has started among them.
    assert peak_kb * 1024 < 500e6
    assert status == (75 if rows > 40 else 1)
