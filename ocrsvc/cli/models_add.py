"""`ocrsvc models add`: makes a version of PaddleOCR's, RapidOCR's, TurboOCR's or Tr's files; says what is missing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, get_args

from ocrsvc.cli.models_repository import repository_of
from ocrsvc.engines.model.description import Description, Recognition, Tier
from ocrsvc.engines.model.version import MOST_VERSION, NAME
from ocrsvc.errors import OperatorError
from ocrsvc.models.importers.source_files import NewModel, Wanted
from ocrsvc.models.importers.write_version import write_version
from ocrsvc.settings.settings import Settings

HELP: Final = "add a model, or a version of one"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `ocrsvc models add`."""
    parser.add_argument("name", type=_name, metavar="NAME", help="of the model, in small letters")
    parser.add_argument(
        "sources",
        nargs="+",
        type=Path,
        metavar="SOURCE",
        help="files or folders: ONNX models with inference.yml or a dictionary, Tr's folder, or one with a model.toml",
    )
    parser.add_argument(
        "--version", type=number_argument, metavar="N", help="its number; the next one that is free by default"
    )
    parser.add_argument("--tier", choices=get_args(Tier), help="how large it is; also chooses among several")
    parser.add_argument(
        "--language",
        action="append",
        default=[],
        metavar="TAG",
        help="that it reads, the likeliest first, such as zh; may be given several times; by default those that its "
        "dictionary can write",
    )
    parser.add_argument(
        "--recognizer",
        action="append",
        default=[],
        type=_recognizer,
        metavar="NAME=FILE",
        help="one more recognizer, for lines of another script; may be given several times",
    )
    parser.add_argument("--dictionary", type=Path, metavar="FILE", help="of the first recognizer, a character a line")
    parser.add_argument("--licence", metavar="NAME", help="such as Apache-2.0; by default what lies beside it says")
    parser.add_argument("--reference", type=Path, metavar="FOLDER", help="pages that it must read before it serves")


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Find the parts, write the version, and say what it is. Raises OperatorError, BadModel."""
    from ocrsvc.models.importers.find_model import find_model

    folder = repository_of(settings)
    model = find_model(_wanted(args))
    number = write_version(model, folder, args.name, args.version)
    for line in _report(f"{args.name}/{number}", model):
        print(line)
    for note in model.notes:
        print(note, file=sys.stderr)
    return 0


def _wanted(args: argparse.Namespace) -> Wanted:
    recognizers: Sequence[tuple[str, Path]] = args.recognizer
    more: Mapping[str, Path] = dict(recognizers)
    if len(more) < len(recognizers):
        raise OperatorError("Two recognizers have the same name.", "Give each a name of its own.")
    return Wanted(args.sources, args.tier, args.language, more, args.dictionary, args.licence, args.reference)


def _report(version: str, model: NewModel) -> list[str]:
    description = model.description
    said = [word for word in (description.title, description.tier, description.licence) if word]
    lines = [f"{version}: {', '.join(said) or description.engine}"]
    lines += _detector(description)
    for part in description.recognition:
        lines.append(f"  recognizer {part.name}: {_recognizer_in_words(part, model)}")
    return lines


def _detector(description: Description) -> list[str]:
    part = description.detection
    if part is None:
        return []
    thresholds = (
        ("map", part.map_threshold),
        ("box", part.box_threshold),
        ("unclip", part.unclip_ratio),
    )
    said = ", ".join(f"{name} {value:g}" for name, value in thresholds if value is not None)
    return [f"  detector: mean {_triple(part.mean)}, std {_triple(part.std)}; {said or 'the usual thresholds'}"]


def _recognizer_in_words(part: Recognition, model: NewModel) -> str:
    where = "in the model" if part.dictionary is None else part.dictionary
    content = None if part.dictionary is None else model.files[part.dictionary]
    count = f", {content.count(chr(10).encode())} characters" if isinstance(content, bytes) else ""
    space = ", then a space" if part.adds_space else ""
    languages = " ".join(part.languages) or "none known"
    return f"{part.height_px} px; dictionary {where}{count}{space}; languages: {languages}"


def _triple(values: Sequence[float]) -> str:
    return "/".join(f"{value:g}" for value in values)


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r}: accepted are small letters, digits, dots, hyphens, up to 64")
    return text


def number_argument(text: str) -> int:
    """The number of a version, for argparse."""
    if not text.isascii() or not text.isdecimal() or not 0 < int(text[:12]) <= MOST_VERSION:
        raise argparse.ArgumentTypeError(f"{text!r}: accepted is a number from 1")
    return int(text)


def _recognizer(text: str) -> tuple[str, Path]:
    name, sign, file = text.partition("=")
    if not sign or not name or not file:
        raise argparse.ArgumentTypeError(f"{text!r}: accepted is NAME=FILE, such as cyrillic=eslav_rec.onnx")
    return name, Path(file)
