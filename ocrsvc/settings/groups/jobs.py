"""Settings of the job store: its folder, what jobs may take of it, and how their ends are told."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr

from ocrsvc.settings.group import SettingsGroup, setting
from ocrsvc.settings.types import ByteCount


class JobSettings(SettingsGroup):
    """The folder of jobs, and its limits."""

    title = "Jobs"

    tasks_dir: Path | None = setting(
        None,
        "Folder in which jobs (POST /v1/jobs, Umi-OCR's /api/doc) are kept over restarts of the service, in a folder "
        "ocrsvc-jobs in it that one service at a time uses; without it they lie in a temporary folder, and are lost "
        "when the service ends.",
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
    job_pages: int = setting(
        10_000,
        "Most pages of one job; OCRSVC_MAX_PAGES is for documents that a client waits for.",
        ge=1,
        le=10**6,
    )
    jobs_waiting: int = setting(100, "Most jobs of one caller that are not read yet.", ge=1, le=1000)
    jobs_waiting_pages: int = setting(
        100_000, "Most pages of all jobs of one caller that are not read yet.", ge=1, le=10**9
    )
    callback_tries: int = setting(
        12,
        "How often the end of a job is told to its callback, which answers nothing or an error: the first time at "
        "once, then after 5 s, and twice as long after each further time, up to an hour.",
        ge=1,
        le=100,
    )
    # What is handed to other processes goes without it.
    callback_secret: Annotated[SecretStr | None, Field(exclude=True)] = setting(
        None,
        "From it comes the secret of each API key, which signs callbacks of the key's jobs that name none: ocrsvc keys "
        "callback-secret NAME prints it.",
        accepted="a text of at least 16 characters, also whsec_ and base64",
    )
