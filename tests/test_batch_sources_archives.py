"""Sources of a batch run in tar, zip and Parquet files: planning, loading by offset or row, and isolated failures."""

import bz2
import gzip
import io
import random
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from batch_support import document, load, names, plan, png, write_tar
from hypothesis import given, settings
from hypothesis import strategies as st
from support import run_program

from ocrsvc.batch.plan import write_plan
from ocrsvc.batch.request import SourceRequest
from ocrsvc.batch.sources import archives, source_files
from ocrsvc.batch.sources.load_files import SourceLoader
from ocrsvc.batch.sources.plan_files import check_unchanged, is_below
from ocrsvc.batch.sources.source_files import PlanningCounts
from ocrsvc.errors import BodyTooLarge, BrokenArchive, OcrsvcError, SourceGone

DEEP = "d/" * 10_000 + "é.png"
MEMBERS = {
    "0001.png": png(1),
    "0001.json": b"{}",
    "inner.tar": b"",
    "0002.cls": png(2),
    "deep/0003.JPG": png(3),
    DEEP: png(4),
    "doc.pdf": document(2),
}
PLANNED = ["0001.png", "0002.cls", "deep/0003.JPG", DEEP, "doc.pdf"]
TWO = {"a.png": png(1), "b.png": png(2)}


def write_zip(path: Path, members: dict[str, bytes], packed: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", packed) as archive:
        for name, data in members.items():
            with archive.open(name, "w", force_zip64="64" in path.name) as member:
                member.write(data)
    return path


def write_any(path: Path, members: dict[str, bytes]) -> Path:
    """Write an archive in the format of its name; .cbz gets a script in front of the zip."""
    if path.suffix == ".zst":
        plain = write_tar(path, members).read_bytes()
        zstandard = pytest.importorskip("zstandard")
        path.write_bytes(zstandard.compress(plain[:9000]) + zstandard.compress(plain[9000:]))
    elif path.suffix == ".parquet":
        write_table(path, table_of(list(members.values())))
    elif path.suffix in {".zip", ".cbz"}:
        write_zip(path, members, zipfile.ZIP_STORED if "stored" in path.name else zipfile.ZIP_DEFLATED)
        path.write_bytes(b"#!/bin/sh\n" * 100 * (path.suffix == ".cbz") + path.read_bytes())
    else:
        form = tarfile.GNU_FORMAT if "gnu" in path.name else tarfile.PAX_FORMAT
        packed = path.suffix.removeprefix(".") if path.suffix != ".tar" else ""
        write_tar(path, members, f"w:{packed}", form)
    return path


def changed(path: Path, *changes: tuple[int, bytes]) -> Path:
    """Overwrite bytes of the file at these offsets."""
    data = bytearray(path.read_bytes())
    for at, new in changes:
        data[at : at + len(new)] = new
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "name",
    ["a.tar", "gnu.tar", "a.tar.gz", "a.tar.bz2", "a.tar.xz", "a.tar.zst", "a.zip", "stored.zip", "64.zip", "b.cbz"],
)
def test_members_of_an_archive_are_planned_by_content(tmp_path: Path, name: str) -> None:
    path, counts = write_any(tmp_path / name, MEMBERS), PlanningCounts()
    files = plan(tmp_path, counts=counts)
    assert (names(files, path), [file.total for file in files]) == (PLANNED, [1, 1, 1, 1, 2])
    # Archives inside archives are not opened.
    assert counts.skipped == {".json": 1, ".tar": 1}
    order = list(zip(files, PLANNED, strict=True))
    random.Random(1).shuffle(order)
    with closing(SourceLoader()) as loader:
        assert all(loader(file) == MEMBERS[name] for file, name in order)
        write_any(path, TWO)
        with pytest.raises(SourceGone, match="changed"):
            loader(files[0])


@pytest.mark.parametrize("name", ["t.tar", "t.tar.gz", "t.zip"])
def test_an_archive_with_too_many_members_fails_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("ocrsvc.batch.sources.archives.MAX_MEMBERS", 2)
    monkeypatch.setattr(source_files, "MAX_MEMBERS", 2)
    *_, broken = plan(write_any(tmp_path / name, TWO | {"c.png": png(3)}))
    with pytest.raises(BrokenArchive, match="at most 2 are read: unpack it"):
        load(broken)


def test_member_names_are_sanitized_and_unique(tmp_path: Path) -> None:
    entries = ["../../etc/a.png", "/etc/a.png", "./b.png", "b.png", "b.png", "b.png#2", "c//d.png", "ä.png"]
    with tarfile.open(tmp_path / "t.tar", "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as tar:
        for shade, name in enumerate(entries):
            info = tarfile.TarInfo(name)
            info.size = len(png(shade))
            tar.addfile(info, io.BytesIO(png(shade)))
    files = plan(tmp_path / "t.tar")
    expected = ["__/__/etc/a.png", "etc/a.png", "b.png", "b.png#2", "b.png#3", "b.png#2#2", "c/d.png", "\\xe4.png"]
    assert names(files, tmp_path / "t.tar") == expected
    assert [load(file) for file in files] == [png(shade) for shade in range(len(entries))]


def test_special_files_in_a_tar_are_skipped_or_fail(tmp_path: Path) -> None:
    with (tmp_path / "sparse.png").open("wb") as written:
        for number in range(60):
            written.seek(number * 1_000_000)
            written.write(b"x" * 4096)
    (tmp_path / "d").mkdir()
    (tmp_path / "l.png").symlink_to("../../secret.png")
    (tmp_path / "z.png").write_bytes(png(1))
    subprocess.run(["mkfifo", "p"], cwd=tmp_path, check=True)
    members = ["sparse.png", "d", "l.png", "p", "z.png"]
    subprocess.run(["tar", "-cSf", "t.tar", "--format=gnu", *members], cwd=tmp_path, check=True)
    sparse, link, image = plan(tmp_path / "t.tar")
    for file in (sparse, link):
        with pytest.raises(BrokenArchive, match=f"{file.name}: It is no plain file"):
            load(file)
    assert load(image) == png(1)


@pytest.mark.parametrize("cut", [700, 100, 1])
def test_a_truncated_tar_gives_its_complete_members(tmp_path: Path, cut: int) -> None:
    data = write_tar(tmp_path / "t.tar", {"a.png": png(1), "b.png": bytes(3000) + png(2)}).read_bytes()
    (tmp_path / "t.tar").write_bytes(data[: 3 * 512 + cut])
    first, *broken = plan(tmp_path / "t.tar")
    assert load(first) == png(1)
    for file in broken:
        with pytest.raises(BrokenArchive, match="cut off"):
            load(file)


@pytest.mark.parametrize(
    ("name", "keep"),
    [(f"t.{kind}", keep) for kind in ("tar.gz", "tar.bz2", "tar.xz", "zip", "parquet") for keep in (0.3, 0.9)],
)
def test_a_truncated_or_invalid_archive_is_a_page_that_fails(tmp_path: Path, name: str, keep: float) -> None:
    path = write_any(tmp_path / name, {"a.png": png(1), "b.png": random.Random(1).randbytes(400_000)})
    for data in (path.read_bytes()[: int(keep * path.stat().st_size)], b"This is no archive, and has text. " * 40):
        path.write_bytes(data)
        with pytest.raises(BrokenArchive, match=r"cut off|damaged"):
            load(plan(path)[-1])


def test_a_damaged_zip_member_fails_alone(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "s.zip", TWO, zipfile.ZIP_STORED)
    plain = path.read_bytes()
    local, entry, content = plain.find(b"PK\3\4"), plain.find(b"PK\1\2"), plain.find(png(1))
    for changes, message in (
        ([(local + 6, b"\1"), (entry + 8, b"\1")], r"a\.png: It is encrypted in the zip"),
        ([(local + 8, b"\16"), (entry + 10, b"\16")], r"a\.png: .*method 14"),
        ([(content + 70, b"\0\1\2\3")], r"a\.png: .*Bad CRC-32"),
        ([(entry + 24, struct.pack("<I", 10))], r"a\.png: .*Bad CRC-32"),
        ([(entry + 24, struct.pack("<I", 2_000_000))], r"a\.png: .*"),
    ):
        path.write_bytes(plain)
        first, second = plan(changed(path, *changes))
        with pytest.raises(BrokenArchive, match=message):
            load(first)
        assert load(second) == png(2)


@pytest.mark.parametrize("name", ["s.zip", "s.tar.gz"])
def test_a_member_that_unpacks_to_more_than_the_limit_is_not_unpacked(tmp_path: Path, name: str) -> None:
    (file,) = plan(write_any(tmp_path / name, {"a.png": bytes(10_000_000)}))
    with pytest.raises(BodyTooLarge, match="10000000 bytes"):
        load(file, 1_000_000)


@pytest.mark.parametrize("name", ["t.tar", "t.tar.gz", "t.zip", "t.parquet"])
def test_many_threads_load_from_one_archive(tmp_path: Path, name: str) -> None:
    members = {f"{number:03}.png": png(number) for number in range(200)}
    files = plan(write_any(tmp_path / name, members))
    with closing(SourceLoader()) as loader, ThreadPoolExecutor(8) as threads:
        assert list(threads.map(loader, files)) == list(members.values())


def test_a_compressed_tar_is_reopened_for_earlier_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_HISTORY_BYTES", 1000)
    monkeypatch.setattr(archives, "_PIECE_BYTES", 500)
    members = {f"{number:03}.png": random.Random(number).randbytes(900) for number in range(40)}
    files = plan(write_any(tmp_path / "t.tar.gz", members))
    order = random.Random(2).sample(list(zip(files, members.values(), strict=True)), 40)
    with closing(SourceLoader()) as loader:
        assert all(loader(file) == data for file, data in order)


def test_few_archives_stay_open(tmp_path: Path) -> None:
    for number in range(30):
        write_any(tmp_path / f"{number:02}.{'tar' if number % 2 else 'zip'}", {"a.png": png(number)})
    before, opened = len(list(Path("/proc/self/fd").iterdir())), set[int]()
    with closing(SourceLoader()) as loader:
        for file in plan(tmp_path):
            loader(file)
            opened.add(len(list(Path("/proc/self/fd").iterdir())) - before)
    assert max(opened) == 8
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_corrupted_archives_end_as_pages_or_failures(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(["t.tar", "t.zip", "t.tar.gz"]))
    path = write_any(tmp_path_factory.mktemp("hostile") / name.removesuffix(".gz"), TWO)
    places = data.draw(st.lists(st.integers(0, path.stat().st_size - 1), min_size=1, max_size=6))
    changed(path, *((at, data.draw(st.binary(min_size=1, max_size=1))) for at in places))
    if name.endswith("gz"):
        path = path.with_name(name)
        path.write_bytes(gzip.compress(path.with_suffix("").read_bytes(), 1))
    for file in plan(path):
        with suppress(SourceGone, BodyTooLarge):
            load(file)


# Hostile archives


def header_of(size: int, name: str = "a.png") -> bytes:
    """Return a tar header that declares a size of up to 88 bits."""
    header = bytearray(tarfile.TarInfo(name).tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\x80" + size.to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def tar_with_pax(size: str) -> bytes:
    """Return a tar of an image whose pax header declares another size."""
    out, image = io.BytesIO(), tarfile.TarInfo("a.png")
    image.pax_headers, image.size = {"size": size}, len(png())
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.addfile(image, io.BytesIO(png()))
    return out.getvalue()


def zip_with(offset: int, size: int) -> bytes:
    """Return a zip of two members whose directory declares this offset and size."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a.png", png())
    data = out.getvalue()
    begin, end = data.find(b"PK\1\2"), data.find(b"PK\5\6")
    extra = struct.pack("<2H3Q", 1, 24, size, size, offset)
    entry = bytearray(data[begin:end] + extra)
    struct.pack_into("<2L", entry, 20, 0xFFFFFFFF, 0xFFFFFFFF)
    struct.pack_into("<H", entry, 30, len(extra))
    struct.pack_into("<L", entry, 42, 0xFFFFFFFF)
    tail = bytearray(data[end:])
    struct.pack_into("<L", tail, 12, 2 * len(entry))
    return data[:begin] + 2 * bytes(entry) + bytes(tail)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "size_88_bits.tar.gz": lambda: gzip.compress(header_of((1 << 88) - 1) + bytes(2048)),
    "size_5000_digits.tar": lambda: tar_with_pax("9" * 5000),
    "offset_64_bits.zip": lambda: zip_with((1 << 64) - 1, 1000),
    "size_64_bits.zip": lambda: zip_with(0, (1 << 64) - 1),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_impossible_sizes_and_offsets_fail_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(HOSTILE[name]())
    (tmp_path / "zz.png").write_bytes(png())
    files = plan(tmp_path)
    assert write_plan(tmp_path / "plan", files, 500).files == len(files) > 1
    assert load(files[-1]) == png()
    for file in files[:-1]:
        with suppress(OcrsvcError):
            assert load(file) in (png(), b"")


def test_a_member_with_a_header_of_many_megabytes_ends_the_tar(tmp_path: Path) -> None:
    (file,) = plan(write_tar(tmp_path / "t.tar", {"x" * 2_000_000 + ".png": png(1)}))
    with pytest.raises(BrokenArchive, match=r"has \d+ bytes"):
        load(file)


@pytest.mark.parametrize(("extension", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress)])
def test_a_tar_bomb_is_not_unpacked_but_a_tar_of_images_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extension: str, pack: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr(archives, "_FREE_BYTES", 1 << 20)
    monkeypatch.setattr(archives, "_MAX_RATIO", 20)
    (path := tmp_path / f"bomb.tar.{extension}").write_bytes(pack(header_of(1 << 40) + bytes(8 << 20)))
    with pytest.raises(BrokenArchive, match="20 times its size"):
        load(plan(path)[-1])
    monkeypatch.setattr(archives, "_FREE_BYTES", 0)
    monkeypatch.setattr(archives, "_MAX_RATIO", 1000)
    files = plan(write_any(tmp_path / f"a.tar.{extension}", {f"{number}.png": png(number) for number in range(30)}))
    assert [load(file) for file in files] == [png(number) for number in range(30)]


pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402  after importorskip

IMAGES = [png(shade) for shade in range(25)]


def table_of(images: Sequence[bytes | None], kind: str = "bytes") -> Any:
    """Return a table of IDs and images, as bytes or as the structs of Hugging Face data sets."""
    ids = pa.array([f"id{number}" for number in range(len(images))])
    if kind == "bytes":
        return pa.table({"id": ids, "scan": pa.array(images, pa.binary())})
    values = [None if data is None else {"bytes": data, "path": f"{at}.png"} for at, data in enumerate(images)]
    return pa.table({"id": ids, "image": pa.array(values, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))})


def write_table(path: Path, table: Any) -> Path:
    """Write the table in row groups of ten."""
    parquet.write_table(table, path, row_group_size=10)
    return path


@pytest.mark.parametrize("kind", ["bytes", "struct"])
def test_rows_can_be_loaded_in_any_order(tmp_path: Path, kind: str) -> None:
    path = write_table(tmp_path / "t.parquet", table_of(IMAGES, kind))
    files = plan(path)
    assert [file.name for file in files] == [f"{path}#{row}" for row in range(25)]
    order = random.Random(3).sample(list(zip(files, IMAGES, strict=True)), 25)
    with closing(SourceLoader()) as loader:
        assert all(loader(file) == data for file, data in order)


def test_documents_in_rows_have_page_counts(tmp_path: Path) -> None:
    files = plan(write_table(tmp_path / "t.parquet", table_of([document(3), png(), None])))
    assert ([file.total for file in files], load(files[0])[:5]) == ([3, 1, 1], b"%PDF-")
    with pytest.raises(BrokenArchive, match="no image"):
        load(files[2])
    # A document among images fails, and so does a row above the size limit.
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
def test_a_table_without_the_column_is_a_page_that_fails(tmp_path: Path, column: str | None) -> None:
    path = write_table(tmp_path / "t.parquet", pa.table({"number": [1], "text": ["a"]}))
    (file,) = plan(path, counts=(counts := PlanningCounts()), column=column)
    with pytest.raises(BrokenArchive, match=r"its columns are number \(int64\), text \(string\)"):
        load(file)
    assert counts.to_sentences()[0].startswith(
        f"1 file: cannot be read, counted as a page that fails, such as {path}: It has no column"
    )


# Hostile tables


LOCAL, REMOTE = "/data", "s3://bucket/data"
WITHIN = [("", "a.png"), (LOCAL, "deep/../a.png"), (REMOTE, "a.png"), (REMOTE, "s3://bucket/data/b.png")]
OUTSIDE = [
    *((LOCAL, path) for path in ("/data/../etc/passwd", "/database/a.png", "file:///etc/passwd", "s3://private/a.png")),
    *((REMOTE, path) for path in ("../../private/a.png", "/etc/passwd", "s3://bucket/private/a.png")),
]


@pytest.mark.parametrize(("folder", "path"), WITHIN + OUTSIDE)
def test_paths_in_a_table_must_be_below_its_folder(folder: str, path: str) -> None:
    address = path if "://" in path or path.startswith("/") else f"{folder}/{path}"
    assert is_below(folder, address) is ((folder, path) in WITHIN)


def test_rows_with_forbidden_paths_fail_alone(tmp_path: Path) -> None:
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


def test_links_do_not_escape_the_folder_of_a_table(tmp_path: Path) -> None:
    (data := tmp_path / "real" / "data").mkdir(parents=True)
    (other := tmp_path / "other").mkdir()
    for path in (data / "own.png", other / "secret.png"):
        path.write_bytes(png())
    (data / "linked").symlink_to(other)
    (data / "linked.png").symlink_to(other / "secret.png")
    (data / "within.png").symlink_to("own.png")
    write_table(data / "t.parquet", pa.table({"path": ["own.png", "linked/secret.png", "linked.png", "within.png"]}))
    # A link in the path of the table itself is allowed.
    (tmp_path / "way").symlink_to(tmp_path / "real")
    table = tmp_path / "way" / "data" / "t.parquet"
    own, *outside, within = plan(table)
    assert load(own) == load(within) == png()
    for file in outside:
        with pytest.raises(OcrsvcError, match="outside"):
            load(file)
    assert [load(file) for file in plan(table, column="path")] == [png()] * 4


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
    command = [sys.executable, "-m", "ocrsvc", "batch", path, "--out", out, "--limit", "40", "--no-report"]
    # A child's peak starts at the memory of its parent, so a small process starts the run.
    measured = run_program("-c", PEAK, *command, env={"OCRSVC_ISOLATION": "thread"})
    peak_kb, status = map(int, measured.stdout.split())
    # The peak of the largest process of the run.
    assert peak_kb * 1024 < 500e6
    assert status == (75 if rows > 40 else 1)
