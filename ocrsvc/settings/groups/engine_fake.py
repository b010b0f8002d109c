"""Settings of the engine `fake`, which takes as long and misbehaves as told, for tests and load generators."""

from __future__ import annotations

from typing import Literal

from ocrsvc.settings.group import SettingsGroup, setting
from ocrsvc.settings.types import ByteCount, Names


class FakeEngineSettings(SettingsGroup):
    """How long the fake engine takes, and what it does wrong."""

    title = "Engine fake, for tests"

    fake_latency_s: float = setting(0.0, "How long the fake engine waits over an image.", "s", ge=0, le=3600)
    fake_burn_s: float = setting(0.0, "How long the fake engine keeps a core busy over an image.", "s", ge=0, le=3600)
    fake_leak_bytes: ByteCount = setting(
        0, "Memory that the fake engine keeps for ever per image.", "bytes", ge=0, le=2**40
    )
    fake_fault: Literal["none", "fail", "hang", "crash", "abort", "segfault", "nonsense"] = setting(
        "none",
        "What the fake engine does wrong: fail the image, never return, end its process (by SIGKILL, SIGABRT or "
        "SIGSEGV), or answer what no page can be.",
    )
    fake_fault_on: Names = setting(
        (), "Texts of the images, as the fake engine reads them, that its misbehaviour is for; none named is all."
    )
    fake_warm_up_s: float = setting(0.0, "How long the fake engine takes to warm up.", "s", ge=0, le=3600)
    fake_model_bytes: ByteCount = setting(
        0, "Memory that the fake engine holds while it is open.", "bytes", ge=0, le=2**40
    )
    fake_text: str = setting("", "A line that the fake engine reads on every image, after the others.")
    fake_confidence: float = setting(1.0, "How sure the fake engine is of that line.", ge=0, le=1)
