"""What the service imports when it starts: the entries and the settings, without the code that they name."""

from pathlib import Path
from typing import Final, Literal

from ocrsvc.plugins import AdapterEntry, EngineEntry, OutputFormat, RecognizerEntry
from ocrsvc.settings.group import SettingsGroup, setting


class QrSettings(SettingsGroup, title="Engine qr"):
    """How the engine reads."""

    qr_min_side_px: int = setting(0, "Smallest side of a QR code that is read.", "pixels", between=(0, 100_000))


class CtcSettings(SettingsGroup, title="Line recognizer ctc"):
    """What the line recognizer reads with."""

    ctc_model: Path | None = setting(None, "ONNX file of the recognizer: lines of 48 px, CTC, dictionary inside.")


class CsvSettings(SettingsGroup, title="Adapter csv"):
    """How the adapter answers."""

    csv_separator: Literal["comma", "semicolon", "tab"] = setting("comma", "What stands between two values of a row.")


QR: Final = EngineEntry(
    "qr",
    "ocrsvc_example.engine:QrEngine",
    preload=("cv2", "ocrsvc_example.engine"),
    settings="ocrsvc_example.entries:QrSettings",
)

CTC: Final = RecognizerEntry(
    "ctc",
    "ocrsvc_example.recognizer:CtcRecognizer",
    settings="ocrsvc_example.entries:CtcSettings",
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
