"""Sources of a batch run that are Parquet and Arrow files: the images in a column, or the files that it names."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from batch_sources_support import document, load, plan, png

from ocrsvc.batch.sources.load_files import SourceLoader
from ocrsvc.batch.sources.plan_files import find_changes, find_sources
from ocrsvc.batch.sources.source_files import PlanningCounts, SourceRequest
from ocrsvc.errors import BodyTooLarge, BrokenArchive, OcrsvcError, SourceGone

pa = pytest.importorskip("pyarrow")
from pyarrow import ipc, parquet  # noqa: E402  after it is known to be there

IMAGES = [png(shade) for shade in range(25)]


def table_of(images: Sequence[bytes | None], kind: str = "bytes") -> Any:
    """A table with ids and images, as bytes or as Hugging Face's data sets hold them."""
    ids = pa.array([f"id{number}" for number in range(len(images))])
    if kind == "bytes":
        return pa.table({"id": ids, "scan": pa.array(images, pa.binary())})
    values = [None if data is None else {"bytes": data, "path": f"{at}.png"} for at, data in enumerate(images)]
    return pa.table({"id": ids, "image": pa.array(values, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))})


def write_table(path: Path, table: Any, form: str) -> Path:
    """The table as Parquet, or as an Arrow file or stream, in groups of ten rows."""
    if form == "parquet":
        parquet.write_table(table, path, row_group_size=10)
    else:
        make = ipc.new_file if form == "file" else ipc.new_stream
        with make(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=10)
    return path


@pytest.mark.parametrize("kind", ["bytes", "struct"])
@pytest.mark.parametrize(("form", "extension"), [("parquet", "parquet"), ("file", "arrow"), ("stream", "arrow")])
def test_each_row_is_an_image_that_is_loaded_in_any_order(tmp_path: Path, kind: str, form: str, extension: str) -> None:
    path = write_table(tmp_path / f"data.{extension}", table_of(IMAGES, kind), form)
    files = plan(path)
    assert [file.name for file in files] == [f"{path}#{row}" for row in range(25)]
    order = list(zip(files, IMAGES, strict=True))
    random.Random(3).shuffle(order)
    loader = SourceLoader()
    assert all(loader(file) == data for file, data in order)
    loader.close()


@pytest.mark.parametrize(("form", "extension"), [("parquet", "parquet"), ("file", "feather")])
def test_documents_have_their_pages(tmp_path: Path, form: str, extension: str) -> None:
    path = write_table(tmp_path / f"data.{extension}", table_of([document(3), png(), None]), form)
    files = plan(path)
    assert [file.total for file in files] == [3, 1, 1]
    assert load(files[0])[:5] == b"%PDF-"
    with pytest.raises(BrokenArchive, match="no image"):
        load(files[2])


def test_a_document_among_images_is_not_read_as_one_page(tmp_path: Path) -> None:
    files = plan(write_table(tmp_path / "data.parquet", table_of([png(), document(3)]), "parquet"))
    assert load(files[0]) == png()
    with pytest.raises(SourceGone, match="document of 3 pages, of which 1 is planned"):
        load(files[1])


def test_rows_may_name_files(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(1))
    (tmp_path / "d.pdf").write_bytes(document(2))
    paths = ["a.png", str(tmp_path / "d.pdf"), "gone.png", None, "a.png"]
    path = write_table(tmp_path / "t.parquet", pa.table({"note": paths, "path": paths}), "parquet")
    files = plan(path)
    assert [file.name for file in files] == [f"{path}#{row}" for row in range(5)]
    assert [file.total for file in files] == [1, 2, 0, 0, 1]
    assert (load(files[0]), load(files[4])) == (png(1), png(1))
    for number in (2, 3):
        with pytest.raises(OcrsvcError, match=rf"#{number}"):
            load(files[number])
    assert find_changes(files, SourceRequest((str(path),))).examples == []


def test_the_column_can_be_named(tmp_path: Path) -> None:
    table = pa.table({"image": pa.array([png(1)]), "back": pa.array([png(2)]), "text": ["a.png"]})
    path = write_table(tmp_path / "t.parquet", table, "parquet")
    assert [load(plan(path, column=column)[0]) for column in (None, "image", "back")] == [png(1), png(1), png(2)]


@pytest.mark.parametrize("column", [None, "number", "nothing"])
def test_a_table_without_such_a_column_is_a_page_that_fails(tmp_path: Path, column: str | None) -> None:
    path = write_table(tmp_path / "t.parquet", pa.table({"number": [1], "text": ["a"]}), "parquet")
    counts = PlanningCounts()
    (file,) = find_sources(SourceRequest((str(path),), column=column), counts)
    with pytest.raises(BrokenArchive, match=r"its columns are number \(int64\), text \(string\)"):
        load(file)
    (sentence,) = counts.to_sentences()
    assert sentence.startswith(
        f"1 file: cannot be read, counted as a page that fails, such as {path}: It has no column"
    )


@pytest.mark.parametrize("keep", [0.1, 0.6, 0.99])
@pytest.mark.parametrize(("form", "extension"), [("parquet", "parquet"), ("file", "arrow"), ("stream", "arrow")])
def test_a_table_that_is_cut_off_ends_as_pages_that_fail(
    tmp_path: Path, form: str, extension: str, keep: float
) -> None:
    path = write_table(tmp_path / f"t.{extension}", table_of(IMAGES), form)
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    counts = PlanningCounts()
    files = plan(path, counts=counts)
    assert counts.unreadable == 1
    with pytest.raises(BrokenArchive, match="damaged"):
        load(files[-1])


def test_a_row_that_is_larger_than_the_limit_fails(tmp_path: Path) -> None:
    (file,) = plan(write_table(tmp_path / "t.parquet", table_of([bytes(100_000)]), "parquet"))
    with pytest.raises(BodyTooLarge, match="100000"):
        load(file, 50_000)


def test_many_threads_load_rows(tmp_path: Path) -> None:
    images = [png(number % 256) for number in range(300)]
    files = plan(write_table(tmp_path / "t.parquet", table_of(images), "parquet"))
    loader = SourceLoader()
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(loader, files)) == images
    loader.close()
