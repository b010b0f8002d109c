"""The model cache stores optimised models for the next start; a damaged entry counts as absent."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from ocrsvc.engines.model.encryption import ModelKey
from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache, default_folder

MODEL = b"a model" * 1000
KEY = ModelKey(bytes(range(32)))


def keep(cache: ModelCache, data: bytes = MODEL, key: str = "key") -> None:
    cache.store("model", key, data)


def test_entry_is_found_by_its_key_only(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path / "new" / "folder")
    keep(cache)
    assert cache.find("model", "key") == MODEL
    assert cache.find("model", "other") is None
    assert cache.find("other", "key") is None
    mapped = cache.map("model", "key")
    assert mapped is not None
    mapped.release_memory()
    assert mapped[: mapped.length] == MODEL


DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:100]),
    "changed": lambda file: file.write_bytes((data := file.read_bytes())[:50] + bytes([data[50] ^ 1]) + data[51:]),
    "empty": lambda file: file.write_bytes(b""),
    "writable by all": lambda file: file.chmod(0o666),
    "a folder": lambda file: file.rename(f"{file}.away").with_name(file.name).mkdir(),
}


@pytest.mark.parametrize("own_key", [None, KEY], ids=["plain", "encrypted"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_or_untrusted_entry_is_made_again(
    tmp_path: Path, damage: Callable[[Path], object], own_key: ModelKey | None
) -> None:
    cache = ModelCache(tmp_path, own_key)
    keep(cache)
    (file,) = tmp_path.iterdir()
    damage(file)
    assert cache.find("model", "key") is None
    assert cache.map("model", "key") is None
    keep(cache)
    assert cache.find("model", "key") == (None if file.is_dir() else MODEL)


def test_unwritable_cache_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    keep(ModelCache(tmp_path / "file"))
    assert ModelCache(tmp_path / "file").find("model", "key") is None
    monkeypatch.setattr(Path, "replace", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    keep(ModelCache(tmp_path / "new"))
    assert list((tmp_path / "new").iterdir()) == []


def test_files_of_a_failed_library_are_not_cached(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)

    def fail() -> None:
        with cache.cached_folder("engine", "key") as folder:
            assert folder is not None
            (folder / "sm90.engine").write_bytes(b"half")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        fail()
    assert [one for one in tmp_path.rglob("*") if one.is_file()] == []
    assert build(cache) == []


def test_newest_entries_and_last_used_folders_are_kept(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    for number in range(26):
        keep(cache, key=f"{number:02}")
        build(cache, f"{number:02}")
        for name in ("model", "engine"):
            os.utime(tmp_path / f"{name}-{number:02}", (number, number))
    keep(cache, key="last")
    build(cache, "last")
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        *(f"engine-{number:02}" for number in range(3, 26)),
        "engine-last",
        *(f"model-{number:02}" for number in range(23, 26)),
        "model-last",
    ]


ENGINE = b"an engine" * 1000


def build(cache: ModelCache, key: str = "key", data: bytes = ENGINE) -> list[str]:
    """Act like a library that caches its engine in a folder; returns the names of the files found there."""
    with cache.cached_folder("engine", key) as folder:
        assert folder is not None
        found = sorted(file.name for file in folder.iterdir())
        if not found:
            (folder / "sm90.engine").write_bytes(data)
        assert (folder / "sm90.engine").read_bytes() == data
    return found


def test_library_files_are_found_by_their_key_only(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path / "new" / "folder")
    assert [build(cache) for _ in range(2)] == [[], ["sm90.engine"]]
    assert build(cache, "other") == []
    assert sorted(file.name for file in (tmp_path / "new" / "folder").iterdir()) == ["engine-key", "engine-other"]


@pytest.mark.parametrize("damage", [*DAMAGES.values()][:-1], ids=[*DAMAGES][:-1])
def test_incomplete_engine_file_is_built_again(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    cache = ModelCache(tmp_path)
    build(cache)
    damage(tmp_path / "engine-key" / "sm90.engine")
    assert [build(cache) for _ in range(2)] == [[], ["sm90.engine"]]


def test_rebuilt_engine_file_replaces_the_old_one_only(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    build(cache)
    with cache.cached_folder("engine", "key") as folder:
        assert folder is not None
        (folder / "sm80.engine").write_bytes(b"for another GPU")
        (folder / "sm90.engine").write_bytes(b"newer")
    with cache.cached_folder("engine", "key") as folder:
        assert folder is not None
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == {
            "sm80.engine": b"for another GPU",
            "sm90.engine": b"newer",
        }


def test_folder_writable_by_others_is_not_used(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    build(cache)
    (tmp_path / "engine-key").chmod(0o777)
    with cache.cached_folder("engine", "key") as folder:
        assert folder is None


def test_unfinished_file_of_a_killed_process_is_ignored_and_removed_after_a_day(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    file, folder = tmp_path / "model-key-x.making", tmp_path / "engine-key-x.making"
    file.write_bytes(b"half")
    folder.mkdir()
    keep(cache, key="other")
    assert cache.find("model", "key") is None
    assert build(cache) == []
    assert file.exists()
    assert folder.exists()
    for left in (file, folder):
        os.utime(left, (0, 0))
    keep(cache, key="another")
    assert not file.exists()
    assert not folder.exists()


def test_default_folder_is_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "ocrsvc"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "ocrsvc"


def test_encrypted_cache_writes_no_plain_data_and_needs_the_same_key(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path, KEY)
    keep(cache)
    [entry] = [one for one in tmp_path.rglob("*") if one.is_file()]
    assert MODEL[:16] not in entry.read_bytes()
    assert cache.find("model", "key") == MODEL
    assert ModelCache(tmp_path, ModelKey(bytes(32))).find("model", "key") is None
    assert ModelCache(tmp_path).find("model", "key") is None


def test_swapped_entries_of_an_encrypted_cache_are_refused(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path, KEY)
    keep(cache, key="one")
    [first] = [one for one in tmp_path.rglob("*") if one.is_file()]
    keep(cache, b"another model", key="two")
    [second] = [one for one in tmp_path.rglob("*") if one.is_file() and one != first]
    first.replace(second)
    assert cache.find("model", "two") is None


def test_encrypted_cache_gives_libraries_no_folder(tmp_path: Path) -> None:
    with ModelCache(tmp_path, KEY).cached_folder("tensorrt", "key") as folder:
        assert folder is None
    assert not list(tmp_path.iterdir())
