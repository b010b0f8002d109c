"""What OCR.space calls languages, and what models do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ocrsvc.engines.model.languages import AUTO

LANGUAGES: Final[Mapping[str, str]] = {
    "ara": "ar",
    "auto": AUTO,
    "bul": "bg",
    "chs": "zh",
    "cht": "zh-hant",
    "cze": "cs",
    "dan": "da",
    "dut": "nl",
    "eng": "en",
    "fin": "fi",
    "fre": "fr",
    "ger": "de",
    "gre": "el",
    "hrv": "hr",
    "hun": "hu",
    "ita": "it",
    "jpn": "ja",
    "kor": "ko",
    "nor": "nb",
    "pol": "pl",
    "por": "pt",
    "rus": "ru",
    "slv": "sl",
    "spa": "es",
    "swe": "sv",
    "tha": "th",
    "tur": "tr",
    "ukr": "uk",
    "vnm": "vi",
}
