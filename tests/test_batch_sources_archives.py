"""Sources of a batch run that are tars and zips: their images are planned, and loaded by their places."""

from __future__ import annotations

import gzip
import io
import random
import struct
import subprocess
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from batch_sources_support import document, load, names, plan, png, write_tar
from hypothesis import given, settings
from hypothesis import strategies as st

from ocrsvc.batch.sources.load_files import SourceLoader
from ocrsvc.batch.sources.source_files import PlanningCounts
from ocrsvc.batch.sources.tar_archive import TarArchive
from ocrsvc.errors import BodyTooLarge, BrokenArchive, OcrsvcError, SourceGone

LONG = "/".join(["folder"] * 40) + "/é.png"
MEMBERS = {
    "0001.png": png(1),
    "0001.json": b"{}",
    "0002.cls": png(2),
    "deep/0003.JPG": png(3),
    LONG: png(4),
    "doc.pdf": document(2),
}
PLANNED = ["0001.png", "0002.cls", "deep/0003.JPG", LONG, "doc.pdf"]


def write_zip(path: Path, members: dict[str, bytes], packed: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", packed) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def write_empty_members(path: Path, count: int) -> None:
    """A zip with so many members, which the standard library takes long to write."""
    locals_, directory, offset = [], [], 0
    for number in range(count):
        name = b"%d.png" % number
        local = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 0, 0, 0, 0, len(name), 0) + name
        entry = struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, 0, 0, len(name), 0, 0, 0, 0, 0, offset)
        locals_.append(local)
        directory.append(entry + name)
        offset += len(local)
    size = sum(map(len, directory))
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, offset)
    place = struct.pack("<4sLQL", b"PK\6\7", 0, offset + size, 1)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, size, offset, 0)
    path.write_bytes(b"".join([*locals_, *directory, end64, place, end]))


def check_members(path: Path) -> None:
    """The images of MEMBERS are planned, with their pages, and load to what they are."""
    counts = PlanningCounts()
    files = plan(path, counts=counts)
    assert names(files, path) == PLANNED
    assert [file.total for file in files] == [1, 1, 1, 1, 2]
    assert counts.skipped == {".json": 1}
    loader = SourceLoader()
    order = list(zip(files, PLANNED, strict=True))
    random.Random(1).shuffle(order)
    assert all(loader(file) == MEMBERS[name] for file, name in order)
    loader.close()


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_tar_is_planned_by_what_its_members_are(tmp_path: Path, form: int) -> None:
    check_members(write_tar(tmp_path / "shard-0.tar", MEMBERS, form=form))


@pytest.mark.parametrize("packed", ["gz", "bz2", "xz"])
def test_a_packed_tar_is_planned_likewise(tmp_path: Path, packed: str) -> None:
    check_members(write_tar(tmp_path / f"shard-0.tar.{packed}", MEMBERS, f"w:{packed}"))


def test_a_tar_packed_with_zstandard_is_planned_likewise(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    plain = write_tar(tmp_path / "plain", MEMBERS).read_bytes()
    (tmp_path / "shard-0.tar.zst").write_bytes(zstandard.compress(plain[:9000]) + zstandard.compress(plain[9000:]))
    check_members(tmp_path / "shard-0.tar.zst")


@pytest.mark.parametrize("packed", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip_is_planned_likewise(tmp_path: Path, packed: int) -> None:
    check_members(write_zip(tmp_path / "scans.zip", MEMBERS, packed))


def test_a_zip_with_something_before_it_is_read(tmp_path: Path) -> None:
    data = write_zip(tmp_path / "plain", MEMBERS).read_bytes()
    (tmp_path / "scans.cbz").write_bytes(b"#!/bin/sh\n" * 100 + data)
    check_members(tmp_path / "scans.cbz")


def test_a_zip_with_sizes_of_64_bits_is_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "scans.zip", "w") as archive:
        for name, data in MEMBERS.items():
            with archive.open(name, "w", force_zip64=True) as member:
                member.write(data)
    check_members(tmp_path / "scans.zip")


def test_a_zip_of_more_members_than_16_bits_count_is_read_in_pieces(tmp_path: Path) -> None:
    write_empty_members(tmp_path / "scans.zip", 66_000)
    with zipfile.ZipFile(tmp_path / "scans.zip") as archive:
        assert len(archive.namelist()) == 66_000
    files = plan(tmp_path / "scans.zip")
    assert [file.name.rpartition("/")[2] for file in files] == [f"{number}.png" for number in range(66_000)]


def test_archives_in_a_folder_are_opened_and_those_in_archives_are_not(tmp_path: Path) -> None:
    inner = write_tar(tmp_path / "a.tar", {"x.png": png(1)})
    write_zip(tmp_path / "b.zip", {"y.png": png(2), "inner.tar": inner.read_bytes()})
    counts = PlanningCounts()
    assert names(plan(tmp_path, counts=counts), tmp_path) == ["a.tar/x.png", "b.zip/y.png"]
    assert counts.skipped == {".tar": 1}


def test_names_lead_nowhere_else_and_are_each_once(tmp_path: Path) -> None:
    entries = ["../../etc/a.png", "/etc/a.png", "./b.png", "b.png", "b.png", "b.png#2", "c//d.png"]
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        for shade, name in enumerate(entries):
            info = tarfile.TarInfo(name)
            info.size = len(png(shade))
            tar.addfile(info, io.BytesIO(png(shade)))
    files = plan(tmp_path / "t.tar")
    expected = ["__/__/etc/a.png", "etc/a.png", "b.png", "b.png#2", "b.png#3", "b.png#2#2", "c/d.png"]
    assert names(files, tmp_path / "t.tar") == expected
    assert [load(file) for file in files] == [png(shade) for shade in range(7)]


def test_a_member_10000_levels_deep_is_a_name_like_others(tmp_path: Path) -> None:
    deep = "d/" * 10_000 + "a.png"
    (by_tar,), (by_zip,) = (
        plan(write_tar(tmp_path / "t.tar", {deep: png(1)})),
        plan(write_zip(tmp_path / "t.zip", {deep: png(2)})),
    )
    assert (by_tar.name.endswith(f"/t.tar/{deep}"), load(by_tar)) == (True, png(1))
    assert (by_zip.name.endswith(f"/t.zip/{deep}"), load(by_zip)) == (True, png(2))


def test_a_member_with_a_header_of_many_megabytes_ends_the_tar(tmp_path: Path) -> None:
    (file,) = plan(write_tar(tmp_path / "t.tar", {"x" * 2_000_000 + ".png": png(1)}))
    with pytest.raises(BrokenArchive, match=r"has \d+ bytes"):
        load(file)


def test_names_that_are_no_utf8_become_valid_text(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "t.tar", "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as tar:
        info = tarfile.TarInfo("ä.png")
        info.size = len(png())
        tar.addfile(info, io.BytesIO(png()))
    (file,) = plan(tmp_path / "t.tar")
    assert file.name.endswith("/\\xe4.png")
    assert load(file) == png()


def test_what_is_no_plain_file_in_a_tar_is_left_out_or_fails(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        for name, kind in {"d": tarfile.DIRTYPE, "l.png": tarfile.SYMTYPE, "p": tarfile.FIFOTYPE}.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "../../secret.png"
            tar.addfile(info)
    (file,) = plan(tmp_path / "t.tar")
    with pytest.raises(BrokenArchive, match=r"l\.png: It is no plain file \(links\)"):
        load(file)


def test_a_tar_with_a_sparse_file_of_many_pieces_is_read_beyond_it(tmp_path: Path) -> None:
    with (tmp_path / "sparse.png").open("wb") as file:
        for number in range(60):
            file.seek(number * 1_000_000)
            file.write(b"x" * 4096)
    (tmp_path / "a.png").write_bytes(png(1))
    subprocess.run(["tar", "-cSf", "t.tar", "--format=gnu", "sparse.png", "a.png"], cwd=tmp_path, check=True)
    sparse, image = plan(tmp_path / "t.tar")
    assert load(image) == png(1)
    with pytest.raises(BrokenArchive, match="sparse"):
        load(sparse)


@pytest.mark.parametrize("cut", [700, 100, 1])
def test_a_tar_that_is_cut_off_gives_what_is_whole_and_pages_that_fail(tmp_path: Path, cut: int) -> None:
    data = write_tar(tmp_path / "t.tar", {"a.png": png(1), "b.png": bytes(3000) + png(2)}).read_bytes()
    second = 512 + 512 + 512
    (tmp_path / "t.tar").write_bytes(data[: second + cut])
    first, *broken = plan(tmp_path / "t.tar")
    assert load(first) == png(1)
    for file in broken:
        with pytest.raises(BrokenArchive, match="cut off"):
            load(file)


def test_a_damaged_header_ends_a_tar_with_a_page_that_fails(tmp_path: Path) -> None:
    data = bytearray(write_tar(tmp_path / "t.tar", {"a.png": png(1), "b.png": png(2)}).read_bytes())
    data[1024 + 3] ^= 1
    (tmp_path / "t.tar").write_bytes(data)
    first, broken = plan(tmp_path / "t.tar")
    assert (load(first), broken.name) == (png(1), str(tmp_path / "t.tar"))
    with pytest.raises(BrokenArchive, match="no header at byte 1024"):
        load(broken)


@pytest.mark.parametrize("keep", [0.3, 0.9])
@pytest.mark.parametrize("packed", ["gz", "bz2", "xz"])
def test_a_packed_tar_that_is_cut_off_is_a_page_that_fails(tmp_path: Path, packed: str, keep: float) -> None:
    noise = random.Random(1).randbytes(400_000)
    path = write_tar(tmp_path / f"t.tar.{packed}", {"a.png": png(1), "b.png": noise}, f"w:{packed}")
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    files = plan(path)
    with pytest.raises(BrokenArchive, match="cut off"):
        load(files[-1])


def test_a_file_that_is_no_archive_is_a_page_that_fails(tmp_path: Path) -> None:
    for name in ("a.tar", "b.tar.gz", "c.tar.xz", "d.zip"):
        (tmp_path / name).write_bytes(b"This is no archive, and has text. " * 40)
    files = plan(tmp_path)
    assert names(files, tmp_path) == ["a.tar", "b.tar.gz", "c.tar.xz", "d.zip"]
    for file in files:
        with pytest.raises(BrokenArchive, match="damaged"):
            load(file)


def test_an_encrypted_member_fails_and_its_neighbours_do_not(tmp_path: Path) -> None:
    data = bytearray(write_zip(tmp_path / "s.zip", {"a.png": png(1), "b.png": png(2)}).read_bytes())
    for begin in (data.find(b"PK\3\4") + 6, data.find(b"PK\1\2") + 8):
        data[begin] |= 1
    (tmp_path / "s.zip").write_bytes(data)
    first, second = plan(tmp_path / "s.zip")
    with pytest.raises(OcrsvcError, match=r"a\.png: It is encrypted in the zip"):
        load(first)
    assert load(second) == png(2)


def test_a_member_packed_otherwise_fails(tmp_path: Path) -> None:
    (file,) = plan(write_zip(tmp_path / "s.zip", {"a.png": png(1)}, zipfile.ZIP_LZMA))
    with pytest.raises(BrokenArchive, match="method 14"):
        load(file)


def test_a_member_that_unpacks_to_more_than_the_limit_is_not_unpacked(tmp_path: Path) -> None:
    (file,) = plan(write_zip(tmp_path / "s.zip", {"a.png": bytes(10_000_000)}))
    with pytest.raises(BodyTooLarge, match="10000000 bytes"):
        load(file, 1_000_000)


@pytest.mark.parametrize("said", [10, 2_000_000])
def test_a_zip_that_lies_about_a_size_is_unpacked_no_further(tmp_path: Path, said: int) -> None:
    data = bytearray(write_zip(tmp_path / "s.zip", {"a.png": bytes(1_000_000)}).read_bytes())
    at = data.find(b"PK\1\2") + 24
    data[at : at + 4] = struct.pack("<I", said)
    (tmp_path / "s.zip").write_bytes(data)
    (file,) = plan(tmp_path / "s.zip")
    with pytest.raises(BrokenArchive, match="another size"):
        load(file)


def test_a_damaged_member_fails_and_its_neighbours_do_not(tmp_path: Path) -> None:
    data = bytearray(write_zip(tmp_path / "s.zip", {"a.png": png(1), "b.png": png(2)}, 0).read_bytes())
    data[data.find(png(1)) + 70] ^= 1
    (tmp_path / "s.zip").write_bytes(data)
    first, second = plan(tmp_path / "s.zip")
    with pytest.raises(BrokenArchive, match="checksum"):
        load(first)
    assert load(second) == png(2)


def test_an_archive_that_has_changed_is_not_read(tmp_path: Path) -> None:
    (file,) = plan(write_tar(tmp_path / "t.tar", {"a.png": png(1)}))
    loader = SourceLoader()
    assert loader(file) == png(1)
    write_tar(tmp_path / "t.tar", {"b.png": png(1) + png(2)})
    with pytest.raises(SourceGone, match="changed"):
        loader(file)
    loader.close()


@pytest.mark.parametrize("name", ["t.tar", "t.tar.gz", "t.zip"])
def test_many_threads_load_from_one_archive(tmp_path: Path, name: str) -> None:
    members = {f"{number:03}.png": png(number) for number in range(200)}
    path = tmp_path / name
    if name.endswith("zip"):
        write_zip(path, members)
    else:
        write_tar(path, members, "w:gz" if name.endswith("gz") else "w")
    files, loader = plan(path), SourceLoader()
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(loader, files)) == list(members.values())
    loader.close()


def test_few_archives_stay_open(tmp_path: Path) -> None:
    for number in range(30):
        write_tar(tmp_path / f"{number:02}.tar", {"a.png": png(number)})
    loader, opened = SourceLoader(), set[int]()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for file in plan(tmp_path):
        loader(file)
        opened.add(len(list(Path("/proc/self/fd").iterdir())) - before)
    loader.close()
    assert max(opened) == 8
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@settings(max_examples=20, deadline=None)
@given(st.dictionaries(st.from_regex(r"[a-zé]{1,150}(/[a-z]{1,60}){0,3}", fullmatch=True), st.binary(max_size=1500)))
def test_members_are_read_as_the_standard_library_writes_them(
    tmp_path_factory: pytest.TempPathFactory, members: dict[str, bytes]
) -> None:
    folder = tmp_path_factory.mktemp("tar")
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        with tarfile.open(folder / "t.tar", mode="w", format=form) as tar:
            for name, content in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        archive = TarArchive(str(folder / "t.tar"))
        assert {one.name[1:]: archive.load(one.place, 1 << 20) for one in archive.members()} == members
        archive.close()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_is_in_an_archive_ends_as_pages_or_failures(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("hostile")
    name = data.draw(st.sampled_from(["t.tar", "t.zip", "t.tar.gz"]))
    plain = {"a.png": png(1), "b/c.png": png(2) * 5}
    path = write_zip(folder / name, plain) if name == "t.zip" else write_tar(folder / name, plain)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(gzip.compress(content, 1) if name == "t.tar.gz" else content)
    for file in plan(path):
        try:
            load(file)
        except (SourceGone, BodyTooLarge):
            continue
