"""Model names in requests: `NAME`, `NAME/VERSION` or `NAME:LABEL`; and removal of server paths from messages."""

import re
from dataclasses import dataclass
from typing import Final

from ocrsvc.engines.model.version import MAX_VERSION, NAME

LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
ACCEPTED: Final = "NAME, NAME/VERSION or NAME:LABEL"
# For API descriptions; simplified: version numbers of at most nine digits, although MAX_VERSION has ten.
PATTERN: Final = rf"{NAME.pattern}(?:/[1-9][0-9]{{0,8}}|:{LABEL.pattern})?"
_WANTED: Final = re.compile(rf"({NAME.pattern})(?:/([1-9][0-9]{{0,9}})|:({LABEL.pattern}))?")
_PATH: Final = re.compile(r"(?<![\w.:/])(?:/[\w.+@,=~-]{1,255}){1,64}(/[\w.+@,=~-]{1,255})")


@dataclass(frozen=True, slots=True)
class WantedModel:
    """A model name in a request, with a version number, a label, or neither."""

    name: str
    number: int | None = None
    label: str | None = None

    def __str__(self) -> str:
        if self.number is not None:
            return f"{self.name}/{self.number}"
        return f"{self.name}:{self.label}" if self.label is not None else self.name


def parse_wanted_model(text: str) -> WantedModel:
    """Parse a model name in one of the forms of ACCEPTED. Raises ValueError."""
    match = _WANTED.fullmatch(text)
    if match is None or int(match[2] or 1) > MAX_VERSION:
        raise ValueError(text)
    return WantedModel(match[1], int(match[2]) if match[2] else None, match[3])


def without_paths(text: str) -> str:
    """Replace paths on the server by file names, in a message for clients."""
    return _PATH.sub(lambda match: match[1].removeprefix("/"), text)
