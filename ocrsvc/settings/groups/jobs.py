"""Settings of the job store: the folder of documents that nobody waits for, their bytes and their lifetime."""

from __future__ import annotations

from pathlib import Path

from ocrsvc.settings.group import SettingsGroup, setting
from ocrsvc.settings.types import ByteCount


class JobSettings(SettingsGroup):
    """The folder of jobs, and its limits."""

    title = "Jobs"

    tasks_dir: Path | None = setting(
        None,
        "Folder in which the service makes one for documents that are read while nobody is connected (Umi-OCR's "
        "/api/doc), and removes it when it ends; by default the system's for temporary files.",
    )
    tasks_bytes: ByteCount = setting(
        2**30,
        "Most bytes of such documents and their results, all workers together; callers share them, and finished "
        "documents make room for new ones; 0 takes none.",
        "bytes",
        ge=0,
        le=2**50,
    )
    tasks_s: float = setting(86_400.0, "How long such a document and its results are kept.", "s", gt=0, le=10**9)
