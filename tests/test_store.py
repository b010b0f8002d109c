"""Optimised models are kept for the next start, and whatever is wrong with them is as good as absent."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ocrsvc.engines.ppocr.store import Store, default_folder, key_of

MODEL = b"a model" * 1000


def keep(store: Store, data: bytes = MODEL, key: str = "key") -> None:
    with store.place("model", key, len(data)) as file:
        assert file is not None
        file.write_bytes(data)


def test_what_was_kept_is_found_by_its_key_alone(tmp_path: Path) -> None:
    store = Store(tmp_path / "new" / "folder")
    keep(store)
    assert store.find("model", "key") == MODEL
    assert store.find("model", "other") is None
    assert store.find("other", "key") is None


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:100])


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[50] ^= 1
    file.write_bytes(data)


def empty(file: Path) -> None:
    file.write_bytes(b"")


def open_to_all(file: Path) -> None:
    file.chmod(0o666)


def replace_by_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("harm", [cut, flip, empty, open_to_all, replace_by_folder])
def test_what_is_damaged_or_could_be_anybodys_is_not_found(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    store = Store(tmp_path)
    keep(store)
    (file,) = tmp_path.iterdir()
    harm(file)
    assert store.find("model", "key") is None


@pytest.mark.parametrize("harm", [cut, flip, empty, open_to_all])
def test_what_is_damaged_is_made_again(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    store = Store(tmp_path)
    keep(store)
    (file,) = tmp_path.iterdir()
    harm(file)
    keep(store)
    assert store.find("model", "key") == MODEL


def test_a_folder_that_cannot_be_made_keeps_nothing_and_harms_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    store = Store(tmp_path / "file")
    with store.place("model", "key", 1) as file:
        assert file is None
    assert store.find("model", "key") is None


def test_too_little_room_keeps_nothing(tmp_path: Path) -> None:
    with Store(tmp_path).place("model", "key", 2**62) as file:
        assert file is None


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def write_half() -> None:
        with store.place("model", "key", 1) as file:
            assert file is not None
            file.write_bytes(b"half")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        write_half()
    assert list(tmp_path.iterdir()) == []


def test_a_few_of_each_model_are_kept_the_newest(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in range(6):
        keep(store, key=f"{number}")
        os.utime(tmp_path / f"model-{number}", (number, number))
    keep(store, key="last")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model-3", "model-4", "model-5", "model-last"]


def test_a_folder_is_had_while_another_process_tidies_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "engine-old").mkdir()
    is_dir = Path.is_dir

    def is_dir_for_the_last_time(path: Path) -> bool:
        was = is_dir(path)
        if path.name == "engine-old":
            path.rmdir()
        return was

    monkeypatch.setattr(Path, "is_dir", is_dir_for_the_last_time)
    assert Store(tmp_path).folder("engine", "new") == tmp_path / "engine-new"


def test_the_key_tells_its_parts_apart() -> None:
    assert key_of(b"a", b"bc") != key_of(b"ab", b"c")
    assert key_of(b"a", b"bc") == key_of(b"a", b"bc")


def test_the_folder_is_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "ocrsvc"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "ocrsvc"
