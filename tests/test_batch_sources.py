"""Sources of a batch run: files, folders, patterns and lists, planned and loaded, and compared with the plan."""

import io
import json
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from batch_support import document, load, names, output, plan, png, use_fake_engine, write_tar
from hypothesis import given
from hypothesis import strategies as st
from support import data_of

from ocrsvc.batch import run_file
from ocrsvc.batch.pages import SourceFile
from ocrsvc.batch.plan import Plan, write_plan
from ocrsvc.batch.sources.plan_files import find_sources
from ocrsvc.batch.sources.source_files import PlanningCounts, bytes_name
from ocrsvc.cli.main import run
from ocrsvc.errors import BadOption, BodyTooLarge, BrokenImage, OcrsvcError, SourceGone


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with images, documents and other files."""
    (tmp_path / "b" / "deep").mkdir(parents=True)
    for name, shade in {"a.png": 1, "c.jpg": 2, "b/x.png": 3, "b/deep/y.PNG": 4, "b/no_extension": 5}.items():
        (tmp_path / name).write_bytes(png(shade))
    (tmp_path / "d.pdf").write_bytes(document(3))
    (tmp_path / "e.tif").write_bytes(document(2, "TIFF"))
    (tmp_path / "README.md").write_text("# Scans")
    (tmp_path / "b" / "notes.json").write_text("{}")
    (tmp_path / ".hidden.png").write_bytes(png())
    return tmp_path


def test_a_folder_is_planned_in_name_order_with_page_counts(folder: Path) -> None:
    files = plan(folder, counts=(counts := PlanningCounts()))
    assert names(files, folder) == ["a.png", "b/deep/y.PNG", "b/no_extension", "b/x.png", "c.jpg", "d.pdf", "e.tif"]
    assert ([file.total for file in files], load(files[3])) == ([1, 1, 1, 1, 1, 3, 2], png(3))
    assert plan(folder / "e.tif", folder, is_sorted=True) == files
    # A file passed by name is planned whatever its type.
    assert names(plan(folder / "README.md"), folder) == ["README.md"]
    assert counts.skipped == {".md": 1, ".json": 1, "hidden": 1}


def test_file_types_are_detected_by_content(tmp_path: Path) -> None:
    for name, data, total in (("a.png", document(3), 3), ("a.pdf", png(), 1)):
        (tmp_path / name).write_bytes(data)
        (file,) = plan(tmp_path / name)
        assert (len(file.pages), file.total, load(file)) == (total, total, data)


def test_an_uncountable_document_is_planned_as_one_page_that_fails(tmp_path: Path) -> None:
    cut, large = document(3)[:200], document(3) + bytes(3000)
    for data, message in ((cut, "damaged"), (large, "3 pages, of which 1 is planned")):
        (tmp_path / "scan.pdf").write_bytes(data)
        (file,) = plan(tmp_path, pages="2-", max_file_bytes=3000)
        assert (list(file.pages), file.total) == ([1], 0)
        with pytest.raises((BrokenImage, SourceGone), match=message):
            load(file)


@pytest.mark.parametrize(("pattern", "expected"), data_of("batch_sources")["patterns"])
def test_a_pattern_selects_matching_files(folder: Path, pattern: str, expected: list[str]) -> None:
    assert names(plan(folder / pattern), folder) == expected


def test_relative_names_are_found_from_any_working_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (by_pattern,), (by_name,) = plan("*.jpg"), plan("c.jpg")
    monkeypatch.chdir("/")
    assert by_pattern == by_name
    assert (by_name.name, load(by_name)) == ("c.jpg", png(2))


@pytest.mark.parametrize("between", ["\n", "\r\n", "\0"])
def test_a_list_of_files_may_use_any_separator(
    folder: Path, tmp_path: Path, between: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = between.join(f"{folder}/{name}" for name in ("c.jpg", "b/x.png", "gone.png", "")).encode()
    (tmp_path / "list").write_bytes(data)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data.removesuffix(f"{folder}/".encode()))))
    files = plan("-")
    assert names(files, folder) == ["c.jpg", "b/x.png", "gone.png"]
    assert plan(f"@{tmp_path / 'list'}")[:3] == files
    with pytest.raises(OcrsvcError, match=r"gone\.png"):
        load(files[2])


def test_a_manifest_selects_pages(folder: Path, tmp_path: Path) -> None:
    entries: list[dict[str, object]] = [
        {"source": f"{folder}/d.pdf", "pages": "2-"},
        {"source": f"{folder}/e.tif", "pages": [2], "id": 7},
        {"source": f"{folder}/a.png"},
    ]
    (tmp_path / "list.jsonl").write_text("\n".join(map(json.dumps, entries)) + "\n")
    assert [list(file.pages) for file in plan(f"@{tmp_path / 'list.jsonl'}")] == [[2, 3], [2], [1]]


@pytest.mark.parametrize(
    "entry",
    ['{"pages": "1"}', '{"source": 3}', '{"source": "a", "pages": "3-1"}', '{"source": "a\\u0000b"}', "{", "x" * 2**21],
)
def test_malformed_list_entries_are_refused(tmp_path: Path, entry: str) -> None:
    (tmp_path / "list").write_text(entry)
    with pytest.raises(BadOption, match="entry 1"):
        plan(f"@{tmp_path / 'list'}")


def test_a_file_found_twice_is_planned_once_and_refused_with_different_pages(folder: Path, tmp_path: Path) -> None:
    assert len(plan(folder / "b", folder, folder / "a.png", counts=(counts := PlanningCounts()))) == 7
    assert counts.named_twice == 5
    (tmp_path / "list").write_text(json.dumps({"source": f"{folder}/d.pdf", "pages": "1"}))
    with pytest.raises(BadOption, match="twice"):
        plan(f"@{tmp_path / 'list'}", folder)


@pytest.mark.parametrize(("options", "planned", "counted"), data_of("batch_sources")["chosen"])
def test_pages_and_names_can_be_selected(
    folder: Path, options: dict[str, Any], planned: int, counted: dict[str, int]
) -> None:
    assert len(plan(folder, counts=(counts := PlanningCounts()), **options)) == planned
    assert {name: getattr(counts, name) for name in counted} == counted


def test_the_output_of_runs_is_skipped(folder: Path) -> None:
    for name in ("_ocrsvc/a.png", "out/_ocrsvc/plan", "out/b.pdf", "b/c/d/b.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png())
    assert len(plan(folder, counts=(counts := PlanningCounts()))) == 8
    assert "folders of a run's output: 1" in counts.to_sentences()[0]


@pytest.mark.parametrize(("name", "message"), [("nothing", "nothing cannot be read"), ("*.png", "No file matches")])
def test_a_missing_source_ends_planning(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(SourceGone, match=message):
        plan(tmp_path / name)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read every file")
def test_a_file_without_read_permission_is_a_page_that_fails(folder: Path) -> None:
    (folder / "README.md").chmod(0)
    (folder / "b").chmod(0)
    files = plan(folder, include=("*.md", "*.png"))
    (folder / "b").chmod(0o700)
    assert names(files, folder) == ["README.md", "a.png", "b"]
    for number in (0, 2):
        with pytest.raises(SourceGone, match="ermission"):
            load(files[number])


def test_broken_links_fail_and_links_to_folders_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a.png").symlink_to(tmp_path / "b.png")
    (tmp_path / "b.png").symlink_to(tmp_path / "a.png")
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe.png")
    files = plan(tmp_path, counts=(counts := PlanningCounts()))
    assert names(files, tmp_path) == ["a.png", "b.png"]
    assert counts.skipped == {"links to folders": 1, "devices and pipes": 1}
    with pytest.raises(SourceGone, match="symbolic links"):
        load(files[0])


def test_too_deeply_nested_folders_fail_alone(tmp_path: Path) -> None:
    (tmp_path / "z.png").write_bytes(png())
    deep = os.open(tmp_path, os.O_DIRECTORY)
    for _ in range(120):
        os.mkdir("d" * 50, dir_fd=deep)
        below = os.open("d" * 50, os.O_DIRECTORY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    broken, image = plan(tmp_path)
    assert image.name == f"{tmp_path}/z.png"
    with pytest.raises(OcrsvcError, match="cannot be listed"):
        load(broken)


def test_names_that_are_not_utf8_become_valid_text_and_are_found(tmp_path: Path) -> None:
    for name in (b"\xff.png", b"\\xff.png", "é\n.png".encode()):
        (tmp_path / os.fsdecode(name)).write_bytes(png(len(name)))
    files = plan(tmp_path)
    assert sorted(names(files, tmp_path)) == ["\\\\xff.png", "\\xff.png", "é\n.png"]
    assert {file.name: load(file) for file in files}[f"{tmp_path}/\\xff.png"] == png(5)
    for file in files:
        file.name.encode()


def test_too_large_and_changed_files_are_not_read(tmp_path: Path) -> None:
    for name, size, message in (("large.png", 1 << 40, str(1 << 40)), ("small.png", 10, "changed")):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
        (planned,) = plan(tmp_path / name)
        if name == "small.png":
            os.utime(tmp_path / name, (1, 1))
        with pytest.raises((BodyTooLarge, SourceGone), match=message):
            load(planned)


def pages_of(folder: Path, sample: str | None, seed: int = 0) -> list[tuple[str, int]]:
    return [(file.name, page) for file in plan(folder, sample=sample, seed=seed) for page in file.pages]


def test_a_sample_is_reproducible_ordered_and_of_the_requested_size(folder: Path) -> None:
    every, first, *others = pages_of(folder, None), *(pages_of(folder, "4", seed) for seed in range(1, 6))
    assert {len(pages) for pages in (first, *others)} == {4}
    assert first == pages_of(folder, "4", 1)
    # Two samples may be equal by chance.
    assert any(first != other for other in others)
    assert [page for page in every if page in first] == first
    assert pages_of(folder, "99") == pages_of(folder, "100%") == every
    for wrong in ("", "-1", "101%", "5 %", "1e3", "half"):
        with pytest.raises(BadOption):
            plan(folder, sample=wrong)
    # Whether a page is sampled depends only on the page.
    assert set(pages_of(folder / "b", "50%")) <= set(pages_of(folder, "50%"))


@given(st.sets(st.binary(max_size=12) | st.text(alphabet="\\x89af", max_size=8).map(str.encode)))
def test_no_two_names_become_the_same_text(raw: set[bytes]) -> None:
    texts = {bytes_name(name) for name in raw}
    assert len(texts) == len(raw)
    for text in texts:
        text.encode()


@given(st.binary(max_size=30).filter(lambda path: b"\0" not in path), st.text(alphabet="0123456789,", max_size=9))
def test_a_plan_keeps_paths_and_places(path: bytes, place: str) -> None:
    files = [SourceFile("a", os.fsdecode(b"/" + path), "1", 9, 1, range(1, 2), *rest) for rest in ((), ("tar", place))]
    with tempfile.TemporaryDirectory() as folder, closing(write_plan(Path(folder, "plan"), files, 500)) as written:
        assert list(written.all_files()) == files


def test_a_plan_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    files = [SourceFile("a", "/a", "1", 9, 1, range(1, 2))]
    write_plan(tmp_path / "plan", files, 500).close()
    with closing(sqlite3.connect(tmp_path / "plan")) as db:
        db.execute("UPDATE file SET kind = NULL, place = NULL")
        db.commit()
    with closing(Plan(tmp_path / "plan")) as written:
        assert list(written.all_files()) == files


# Sources that have changed since they were planned


@pytest.fixture
def scans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with images, an archive, a document and a text file."""
    use_fake_engine(monkeypatch)
    (scans := tmp_path / "scans").mkdir()
    for number in range(3):
        (scans / f"{number}.png").write_bytes(png(number))
    (scans / "d.pdf").write_bytes(document(2))
    (scans / "README.md").write_text("no image")
    write_tar(scans / "t.tar", {"a.png": png(7), "b.png": png(8)})
    return scans


def test_changed_sources_are_refused_unless_as_planned(scans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, sampled = (["batch", str(scans), "--limit", "2", "--out", str(scans.parent / out)] for out in ("a", "b"))
    # A file that is unreadable both times counts as unchanged.
    (scans / "gone.png").symlink_to(scans / "nothing")
    assert run(command) == run([*sampled, "--sample", "4"]) == 75
    assert "Skipped 1 file that is not an image or PDF (.md: 1)." in capsys.readouterr().err
    shutil.copy(scans / "0.png", scans / "9.png")
    (scans / "other.txt").write_text("no image")
    assert run([*sampled, "--sample", "4"]) != 65
    (scans / "1.png").unlink()
    os.utime(scans / "2.png", (1, 1))
    write_tar(scans / "t.tar", {"a.png": png(7)})
    assert run(command) == 65
    assert "1 new, 2 changed, 1 missing, such as" in capsys.readouterr().err
    assert run([*command, "--update"]) == 65
    assert run([*command, "--as-planned"]) == 75


def test_update_appends_new_files(scans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = scans.parent / "out"
    command = ["batch", str(scans), "--out", str(out), "--part-pages", "3"]
    assert run(command) == 0
    before = sources_in(out)
    for name in ("0a.png", "t2.tar"):
        shutil.copy(scans / name.replace("0a", "0").replace("t2", "t"), scans / name)
    assert run(command) == 65
    assert "--update" in capsys.readouterr().err
    assert run([*command, "--update"]) == 0
    added = [f"{scans}/{name}" for name in ("0a.png", "t2.tar/a.png", "t2.tar/b.png")]
    assert sources_in(out) == before + added
    assert run(command) == run([*command, "--update"]) == run(["batch", "--verify", "--out", str(out)]) == 0
    assert sources_in(out) == before + added


def test_one_of_two_concurrent_updates_wins(scans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = scans.parent / "out"
    command = ["batch", str(scans), "--out", str(out), "--part-pages", "3", "--no-report"]
    # Two machines run one shard each.
    first, second = ([*command, "--shard", f"{shard}/2", "--work", f"{out}{shard}"] for shard in range(2))
    assert run(first) == run(second) == 0
    before = sources_in(out)
    shutil.copy(scans / "0.png", scans / "0a.png")
    find, codes = find_sources, list[int]()

    def find_while_another_updates(*arguments: Any) -> Iterator[SourceFile]:
        monkeypatch.setattr(run_file, "find_sources", find)
        files = list(find(*arguments))
        shutil.copy(scans / "0.png", scans / "0b.png")
        codes.append(run([*second, "--update"]))
        yield from files

    monkeypatch.setattr(run_file, "find_sources", find_while_another_updates)
    assert run([*first, "--update"]) == 65
    assert codes == [0]
    assert run(first) == run(["batch", "--verify", "--out", str(out)]) == 0
    assert sources_in(out) == [*before, f"{scans}/0a.png", f"{scans}/0b.png"]


def sources_in(out: Path) -> list[str]:
    """Return the source of every line of the output, in order."""
    return [line["source"] for line in output(out)]
