"""What the service imports when it starts: the entries and the settings, without the engine and the adapter."""

from __future__ import annotations

from typing import Final, Literal

from ocrsvc.plugins import AdapterEntry, EngineEntry
from ocrsvc.settings.group import SettingsGroup, setting


class QrSettings(SettingsGroup, title="Engine qr"):
    """How the engine reads."""

    qr_min_side_px: int = setting(0, "Smallest side of a QR code that is read.", "pixels", between=(0, 100_000))


class CsvSettings(SettingsGroup, title="Adapter csv"):
    """How the adapter answers."""

    csv_separator: Literal["comma", "semicolon", "tab"] = setting("comma", "What stands between two values of a row.")


QR: Final = EngineEntry(
    "qr",
    "ocrsvc_example.engine:open_qr",
    preload=("cv2", "ocrsvc_example.engine"),
    settings="ocrsvc_example.entries:QrSettings",
)

CSV: Final = AdapterEntry(
    "csv",
    port=None,
    http="ocrsvc_example.adapter:make_csv",
    settings="ocrsvc_example.entries:CsvSettings",
)
