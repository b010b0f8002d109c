"""Names of files that are made of documents: of those that were sent, and safe wherever they are saved."""

from __future__ import annotations

import re
import unicodedata
from typing import Final
from urllib.parse import quote

UNNAMED: Final = "document"
_MOST_BYTES: Final = 150
_READ_CHARACTERS: Final = 1000
_PATH_SIGNS: Final = re.compile(r"[/\\]")
# What Windows refuses in names; names of its devices with any ending.
_REFUSED: Final = re.compile(r'[<>:"|?*]')
_DEVICE: Final = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)", re.IGNORECASE)
# Controls, formats (which turn the direction of text round), surrogates, private and unknown signs, breaks of lines.
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def stem_of(sent: str) -> str:
    """The name of a sent file without folders and its ending, as a name for what is made of it; "document" for none."""
    name = unicodedata.normalize("NFC", _PATH_SIGNS.split(sent[-_READ_CHARACTERS:])[-1])
    seen = "".join(sign for sign in name if unicodedata.category(sign) not in _UNSEEN)
    stem, dot, ending = seen.rpartition(".")
    if not dot or not stem or " " in ending:
        stem = seen
    stem = _REFUSED.sub("_", stem).strip(" .")
    stem = stem.encode()[:_MOST_BYTES].decode(errors="ignore").strip(" .")
    return f"_{stem}" if _DEVICE.fullmatch(stem.partition(".")[0]) else stem or UNNAMED


def disposition_of(name: str) -> str:
    """The header Content-Disposition (RFC 6266) of a file to be saved under this name, which is one of `stem_of`."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().replace('"', "_").replace("\\", "_")
    if plain == name:
        return f'attachment; filename="{name}"'
    stem, _, ending = plain.rpartition(".")
    fallback = plain if stem.strip() else f"{UNNAMED}.{ending}"
    return f"attachment; filename=\"{fallback}\"; filename*=UTF-8''{quote(name, safe='')}"
