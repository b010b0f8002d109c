"""Helpers of the tests of batch sources: small images and documents, and what is planned and loaded of sources."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image

from ocrsvc.batch.pages import SourceFile
from ocrsvc.batch.request import SourceRequest
from ocrsvc.batch.sources.load_files import SourceLoader
from ocrsvc.batch.sources.plan_files import find_sources
from ocrsvc.batch.sources.source_files import PlanningCounts


def png(shade: int = 255) -> bytes:
    """A small image; each shade has bytes of its own."""
    return bytes(cv2.imencode(".png", np.full((20, 40), shade, np.uint8))[1])


def document(pages: int, form: str = "PDF") -> bytes:
    """A PDF or TIFF with so many pages."""
    images = [Image.new("L", (40, 20), 200 + number) for number in range(pages)]
    out = io.BytesIO()
    images[0].save(out, form, save_all=True, append_images=images[1:])
    return out.getvalue()


def plan(*sources: str | Path, counts: PlanningCounts | None = None, **options: Any) -> list[SourceFile]:
    """What is planned of these sources."""
    request = SourceRequest(tuple(map(str, sources)), **options)
    return list(find_sources(request, PlanningCounts() if counts is None else counts))


def names(files: list[SourceFile], below: Path) -> list[str]:
    """The names of planned files, seen from a folder."""
    return [file.name.removeprefix(f"{below}/") for file in files]


def load(file: SourceFile, most_bytes: int = 1 << 26) -> bytes:
    """The bytes of a planned file, loaded as another process does it."""
    loader = SourceLoader(most_bytes)
    try:
        return loader(file)
    finally:
        loader.close()


def write_tar(path: Path, members: dict[str, bytes], mode: str = "w", form: int = tarfile.PAX_FORMAT) -> Path:
    """A tar with these members, by the standard library."""
    with tarfile.open(path, mode, format=form) as tar:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path
