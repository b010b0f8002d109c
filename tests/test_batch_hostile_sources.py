"""Sources of a batch run that somebody made to do harm: planned in bounded time and memory, and failing alone."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import orjson
import pytest
from batch_sources_support import load, plan, png, write_tar

from ocrsvc.batch.plan import write_plan
from ocrsvc.batch.sources import tar_archive
from ocrsvc.batch.sources.source_files import MemberNames
from ocrsvc.batch.sources.tables import linked_address, problem_of_linked
from ocrsvc.cli.main import run
from ocrsvc.errors import BadOption, BrokenArchive, OcrsvcError


def header_of(size: int, name: str = "a.png") -> bytes:
    """A tar's header that says a size of up to 88 bits."""
    header = bytearray(tarfile.TarInfo(name).tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\x80" + size.to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def tar_with_pax(record: bytes) -> bytes:
    """A tar of an image with one pax record, such as `size=1`."""
    length = len(record) + 2
    while len(b"%d %s\n" % (length, record)) != length:
        length += 1
    body = b"%d %s\n" % (length, record)
    extension = tarfile.TarInfo("pax")
    extension.type, extension.size = tarfile.XHDTYPE, len(body)
    image = tarfile.TarInfo("a.png")
    image.size = len(png())
    blocks = (extension.tobuf(), body, image.tobuf(), png())
    return b"".join(block + bytes(-len(block) % 512) for block in blocks) + bytes(1024)


def zip_with(offset: int, size: int) -> bytes:
    """A zip whose directory says this offset and size of its two members."""
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
    "size_88_bits.tar": lambda: header_of((1 << 88) - 1) + bytes(2048),
    "size_88_bits.tar.gz": lambda: gzip.compress(header_of((1 << 88) - 1) + bytes(2048)),
    "size_5000_digits.tar": lambda: tar_with_pax(b"size=" + b"9" * 5000),
    "size_30_digits.tar": lambda: tar_with_pax(b"size=" + b"9" * 30),
    "size_20_digits.tar": lambda: tar_with_pax(b"size=" + b"9" * 20),
    "offset_64_bits.zip": lambda: zip_with((1 << 64) - 1, 1000),
    "size_64_bits.zip": lambda: zip_with(0, (1 << 64) - 1),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_sizes_and_places_that_no_file_has_cost_their_archive_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(HOSTILE[name]())
    (tmp_path / "zz.png").write_bytes(png())
    files = plan(tmp_path)
    assert write_plan(tmp_path / "plan", files, 500).files == len(files) > 1
    assert load(files[-1]) == png()
    for file in files[:-1]:
        with suppress(OcrsvcError):
            assert load(file) in (png(), b"")


def test_a_million_members_of_one_name_are_no_more_work_than_others() -> None:
    names, looked_up = MemberNames(), 0

    class Counting(dict[int, int]):
        def __contains__(self, key: object) -> bool:
            nonlocal looked_up
            looked_up += 1
            return super().__contains__(key)

    names._times = Counting()
    given = [names.name(b"a.png") for _ in range(2000)]
    assert given[:3] == ["/a.png", "/a.png#2", "/a.png#3"]
    assert len(set(given)) == 2000
    assert looked_up < 2000 * 30


def test_names_that_look_like_numbered_ones_stay_apart() -> None:
    names = MemberNames()
    given = [names.name(name) for name in (b"a#2", b"a", b"a", b"a#3", b"a", b"a#2", b"a")]
    assert len(set(given)) == len(given)


@pytest.mark.parametrize(("extension", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress)])
def test_a_packed_tar_is_not_unpacked_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extension: str, pack: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr(tar_archive, "_FREE_BYTES", 1 << 20)
    monkeypatch.setattr(tar_archive, "_MOST_RATIO", 20)
    path = tmp_path / f"bomb.tar.{extension}"
    path.write_bytes(pack(header_of(1 << 40) + bytes(8 << 20)))
    files = plan(path)
    with pytest.raises(BrokenArchive, match="20 times its size"):
        load(files[-1])


def test_a_packed_tar_of_images_is_no_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar_archive, "_FREE_BYTES", 0)
    files = plan(write_tar(tmp_path / "a.tar.gz", {f"{number}.png": png(number) for number in range(30)}, "w:gz"))
    assert [load(file) for file in files] == [png(number) for number in range(30)]


@pytest.mark.parametrize(
    ("table", "path", "is_read"),
    [
        ("/data/t.parquet", "a.png", True),
        ("/data/t.parquet", "deep/a.png", True),
        ("/data/t.parquet", "deep/../a.png", True),
        ("/data/t.parquet", "/data/deep/a.png", True),
        ("/t.parquet", "a.png", True),
        ("/data/t.parquet", "../a.png", False),
        ("/data/t.parquet", "/etc/passwd", False),
        ("/data/t.parquet", "/data/../etc/passwd", False),
        ("/data/t.parquet", "/database/a.png", False),
        ("/data/t.parquet", "file:///etc/passwd", False),
        ("/data/t.parquet", "http://169.254.169.254/latest/meta-data/a.png", False),
        ("/data/t.parquet", "s3://private/a.png", False),
        ("s3://bucket/data/t.parquet", "a.png", True),
        ("s3://bucket/data/t.parquet", "s3://bucket/data/b.png", True),
        ("s3://bucket/data/t.parquet", "../../private/a.png", False),
        ("s3://bucket/data/t.parquet", "/etc/passwd", False),
        ("s3://bucket/data/t.parquet", "s3://bucket/private/a.png", False),
    ],
)
def test_a_table_names_files_of_its_own_folder_alone_unless_its_column_is_named(
    table: str, path: str, *, is_read: bool
) -> None:
    address = linked_address(table, path)
    assert (problem_of_linked(table, address, may_lead_away=False) == "") is is_read
    assert problem_of_linked(table, address, may_lead_away=True) == ""


def test_rows_that_name_what_cannot_be_named_fail_alone(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    (tmp_path / "data").mkdir()
    (tmp_path / "secret.png").write_bytes(png(1))
    (tmp_path / "data/ok.png").write_bytes(png(2))
    paths = ["../secret.png", "foo://x/y.png", "http://user:dragon@host/x.png", "a\0b.png", "", "ok.png"]
    path = tmp_path / "data/t.parquet"
    parquet.write_table(pa.table({"path": paths}), path)
    for column in (None, "path"):
        files = plan(path, column=column)
        assert len(files) == len(paths)
        for file in files[1:-1] if column else files[:-1]:
            with pytest.raises(OcrsvcError, match=r"t\.parquet#") as failure:
                load(file)
            assert "dragon" not in failure.value.detail
        assert load(files[-1]) == png(2)
    assert load(files[0]) == png(1)


def test_an_arrow_file_whose_offsets_lead_out_of_it_is_not_followed(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import ipc

    size = len(png())
    table = pa.table({"image": pa.array([png()] * 3, pa.binary())})
    path = tmp_path / "t.arrow"
    with ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)
    good = struct.pack("<4i", *range(0, 4 * size, size))
    path.write_bytes(path.read_bytes().replace(good, struct.pack("<4i", 0, 1 << 30, (1 << 30) + size, 1 << 30)))
    (file,) = plan(path)
    with pytest.raises(BrokenArchive, match="damaged"):
        load(file)


def test_a_parquet_file_of_empty_rows_is_one_page_that_fails(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table({"image": pa.nulls(1_100_000, pa.binary())}), tmp_path / "t.parquet")
    (file,) = plan(tmp_path / "t.parquet")
    with pytest.raises(BrokenArchive, match="1100000 rows"):
        load(file)


def test_a_list_with_a_nul_in_a_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_bytes(orjson.dumps({"source": "a\0b.png"}) + b"\n")
    with pytest.raises(BadOption, match="entry 1"):
        plan(f"@{tmp_path / 'list.txt'}")


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
    pytest.importorskip("pyarrow")
    path, out = tmp_path / "bomb.parquet", tmp_path / "out"
    subprocess.run([sys.executable, "-c", BOMB, path, str(value_mb), str(rows)], check=True)
    assert path.stat().st_size < 100_000
    command = [sys.executable, "-m", "ocrsvc", "batch", str(path), "--out", str(out), "--limit", "40", "--no-report"]
    # A process begins with the peak of the one that starts it, so a small one starts the run.
    measured = subprocess.run(
        [sys.executable, "-c", PEAK, *command],
        env=os.environ | {"OCRSVC_ENGINE": "fake"},
        capture_output=True,
        text=True,
        check=True,
    )
    peak_kb, status = map(int, measured.stdout.split())
    # The largest of its processes, those that it has started among them.
    assert peak_kb * 1024 < 500e6
    assert status == (75 if rows > 40 else 1)


def test_links_do_not_lead_a_table_out_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    monkeypatch.setenv("OCRSVC_ENGINE", "fake")
    monkeypatch.setenv("OCRSVC_ISOLATION", "thread")
    data, other = tmp_path / "real" / "data", tmp_path / "other"
    data.mkdir(parents=True)
    other.mkdir()
    for path in (data / "own.png", other / "secret.png"):
        path.write_bytes(png())
    (data / "linked").symlink_to(other)
    (data / "linked.png").symlink_to(other / "secret.png")
    (data / "within.png").symlink_to("own.png")
    parquet.write_table(
        pa.table({"path": ["own.png", "linked/secret.png", "linked.png", "within.png"]}), data / "t.parquet"
    )
    # That the table's own folder is reached through a link is no fault of the table's.
    (tmp_path / "way").symlink_to(tmp_path / "real")
    command = ["batch", str(tmp_path / "way" / "data" / "t.parquet"), "--no-report"]
    assert run([*command, "--out", str(tmp_path / "out")]) == 1
    pages = [orjson.loads(line) for line in (tmp_path / "out" / "pages-00000.jsonl").read_bytes().splitlines()]
    assert ["outside" in str(page["error"]) for page in pages] == [False, True, True, False]
    assert run([*command, "--column", "path", "--out", str(tmp_path / "trusted")]) == 0
