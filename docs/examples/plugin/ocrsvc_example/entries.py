"""What the service imports when it starts: the entries and the settings, without the code that they name."""

from typing import Final, Literal

from ocrsvc.plugins import AdapterEntry, EngineEntry, OutputFormat
from ocrsvc.settings.group import SettingsGroup, setting


class QrSettings(SettingsGroup, title="Engine qr"):
    """How the engine reads."""

    qr_min_side_px: int = setting(0, "Smallest side of a QR code that is read.", "pixels", between=(0, 100_000))


class CsvSettings(SettingsGroup, title="Adapter csv"):
    """How the adapter answers."""

    csv_separator: Literal["comma", "semicolon", "tab"] = setting("comma", "What stands between two values of a row.")


QR: Final = EngineEntry(
    "qr",
    "ocrsvc_example.engine:QrEngine",
    preload=("cv2", "ocrsvc_example.engine"),
    settings="ocrsvc_example.entries:QrSettings",
)

CSV: Final = AdapterEntry(
    "csv",
    port=None,
    http="ocrsvc_example.adapter:make_csv",
    settings="ocrsvc_example.entries:CsvSettings",
)

ANNOTATIONS: Final = OutputFormat(
    "annotations",
    media_type="text/x-ppocrlabel",
    suffix=".label",
    label="PPOCRLabel",
    help="lines and corners for PPOCRLabel",
    text="ocrsvc_example.annotations:annotation_parts",
)
