"""What clients are told of why a model does not serve: the sentence without the paths of the server."""

from __future__ import annotations

import re
from typing import Final

_PATH: Final = re.compile(r"(?<![\w.:/])(?:/[\w.+@,=~-]{1,255}){1,64}(/[\w.+@,=~-]{1,255})")


def without_paths(text: str) -> str:
    """The text with the names of files in the place of their paths."""
    return _PATH.sub(lambda match: match[1].removeprefix("/"), text)
