"""Settings of the engine `tr`: the library libtr.so with its models."""

from __future__ import annotations

from pathlib import Path

from ocrsvc.settings.group import SettingsGroup, setting


class TrEngineSettings(SettingsGroup):
    """Where tr is, and how its sessions are shared."""

    title = "Engine tr"

    tr_home: Path | None = setting(None, "Folder with libtr.so, ctpn.bin and crnn.bin, for the engine tr.")
    tr_shared_sessions: bool = setting(
        False, "Let all engine threads of a worker share one pair of Tr sessions instead of one pair each."
    )
