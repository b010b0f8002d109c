"""Which formats `ocrsvc read` and `ocrsvc job result` write, by --format and by the end of the name after -o."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ocrsvc.cli.read_files import standard_input
from ocrsvc.errors import BadOption
from ocrsvc.registry import output_formats

JSON, NDJSON, PDF, TEXT = "json", "ndjson", "pdf", "text"
OTHER_NAMES: Final = {"txt": TEXT}
"""Of formats."""
ZIP_ENDING: Final = ".zip"
"""Whatever is written under such a name is a zip, of one file too."""

_OTHER_ENDINGS: Final = {
    ".json": JSON,
    ".jsonl": NDJSON,
    ".ndjson": NDJSON,
    ".markdown": "md",
    ".xml": "alto",
    ".html": "hocr",
    ".htm": "hocr",
}
_FORMATS: Final[Mapping[str, str]] = {
    **{form.suffix: name for name, form in output_formats().items()},
    **_OTHER_ENDINGS,
}
"""By the end of a name, in small letters."""


def formats_for(asked: tuple[str, ...] | None, output: Path, default: str = TEXT, lines: str = JSON) -> tuple[str, ...]:
    """What is to be written.

    Args:
        asked: What --format names; None where it is left out, and then the name decides, else `default`.
        output: What -o names.
        default: What a name without a known end gets.
        lines: The format of JSON on lines.

    Raises:
        BadOption: The name ends as another format does, or as a zip without saying of what.
    """
    ending = _ending_of(output)
    formats = {end: lines if name == NDJSON else name for end, name in _FORMATS.items()}
    named = formats.get(ending)
    if asked is None:
        if ending == ZIP_ENDING:
            raise BadOption(f"{output} is a zip of formats that are not named.", "Name them, such as --format pdf,md.")
        return (named or default,)
    if named is None:
        return asked
    if len(asked) > 1:
        raise BadOption(
            f"Several formats are written as a zip, and {output} is no name of one.",
            f"Write -o {output.with_suffix(ZIP_ENDING)}, or only --format {named}.",
        )
    if asked != (named,):
        fitting = " or ".join(end for end, name in formats.items() if name == asked[0])
        raise BadOption(
            f"{output} is a name for --format {named}, and --format {asked[0]} is asked for.",
            f"Let the name end in {fitting}, or ask for --format {named}.",
        )
    return asked


def check_one_pdf(files: Sequence[Path], formats: Sequence[str], output: Path) -> None:
    """Raises BadOption where several PDFs would be written under the name of one."""
    if tuple(formats) == (PDF,) and len(files) > 1 and _ending_of(output) == ".pdf" and any(map(_is_pdf, files)):
        raise BadOption(
            "One PDF is made of several pictures, and one of each file where a PDF is among them.",
            "Read files one by one, or write a zip: -o FILE.zip.",
        )


def is_zip(output: Path) -> bool:
    """Whether the name is one of a zip."""
    return _ending_of(output) == ZIP_ENDING


def _ending_of(output: Path) -> str:
    name = output.name.lower()
    return next((ending for ending in (ZIP_ENDING, *_FORMATS) if name.endswith(ending)), "")


def _is_pdf(file: Path) -> bool:
    if str(file) == "-":
        return b"%PDF-" in standard_input()[:32]
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return b"%PDF-" in opened.read(32)
