"""Settings of process isolation: the engine's child processes, their replacement and the crash denylist."""

from __future__ import annotations

from typing import Literal

from ocrsvc.settings.group import SettingsGroup, setting
from ocrsvc.settings.types import ByteCount, MemoryAmount


class IsolationSettings(SettingsGroup):
    """The engine's child processes and the crash denylist."""

    title = "Isolation"

    isolation: Literal["thread", "process"] = setting(
        "thread",
        "Where the engine runs: in the worker's threads, or in a child process for each, so that a crash loses nothing "
        "but that child.",
    )
    child_max_images: int = setting(
        0,
        "Images after which an engine's child process is replaced, its successor first; 0 is never.",
        "images",
        ge=0,
        le=10**9,
    )
    child_memory_bytes: ByteCount | None = setting(
        None,
        "Memory of its own at which an engine's child process is replaced, its successor first; 0 is no limit; by "
        "default such that all children and one successor fill 80 % of the machine's or container's memory.",
        "bytes",
        ge=0,
        le=2**50,
    )
    child_gpu_bytes: MemoryAmount | None = setting(
        None,
        "Memory of the GPU at which an engine's child process is replaced, its successor first, where NVML tells what "
        "each process holds; 0 is no limit, a share is of the GPU; by default such that all children on one GPU and "
        "one successor would fill 80 % of it.",
        "bytes",
    )
    quarantine_size: int = setting(
        256,
        "Most images remembered that killed the engine's child process twice, and as many bodies of requests that "
        "stopped a worker; read at the start only.",
        "images",
        ge=1,
        le=65536,
    )
    quarantine_s: float = setting(
        3600.0,
        "How long such an image or body is answered 422 without being tried; read at the start only.",
        "s",
        gt=0,
        le=10**9,
    )
