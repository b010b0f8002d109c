"""Generated parts of Markdown files, between a begin and an end mark."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

END: Final = "<!-- to here -->"


def write_between(file: Path, program: str, text: str) -> None:
    """Put the text between the program's begin mark and the next END; exits unless the file has both marks once."""
    begin = f"<!-- made by benchmarks/{program} -->"
    between = re.compile(f"{re.escape(begin)}.*?{re.escape(END)}", re.DOTALL)
    written, count = between.subn(lambda _: f"{begin}\n{text}\n{END}", file.read_text("utf-8"))
    if count != 1:
        sys.exit(f"{file.name} must contain {begin} and {END} once")
    file.write_text(written, "utf-8")
