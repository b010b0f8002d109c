"""`ocrsvc models add`, `encrypt` and `new-key`: write versions from model files, encrypt versions, create keys."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, get_args

import click

from ocrsvc.cli.models import models, named_version, repository_of, repository_option
from ocrsvc.cli.options import FILE, Number, gathered, option
from ocrsvc.engines.model.description import Tier
from ocrsvc.engines.model.encryption import ModelKey, new_key
from ocrsvc.engines.model.key_source import KEY_SETTINGS, read_model_key
from ocrsvc.engines.model.version import MAX_VERSION, NAME, ModelVersion
from ocrsvc.errors import OperatorError
from ocrsvc.models.importers.find_model import find_model
from ocrsvc.models.importers.source_files import NewModel, Wanted
from ocrsvc.models.importers.write_version import encrypt_model, write_version
from ocrsvc.models.repository import ModelRepository
from ocrsvc.settings.describe import variable_of
from ocrsvc.settings.settings import Settings

VERSION_NUMBER: Final = Number(int, 1, MAX_VERSION, "a number from 1")


def _name_of(_ctx: click.Context, _parameter: click.Parameter, text: str) -> str:
    if not NAME.fullmatch(text):
        raise click.BadParameter(f"{text!r}: accepted are up to 64 lower-case letters, digits, dots and hyphens.")
    return text


def _wanted(recognizer: Sequence[str], language: Sequence[str], **more: Any) -> Wanted:
    recognizers: dict[str, Path] = {}
    for text in recognizer:
        name, _, file = text.partition("=")
        if not name or not file:
            raise click.BadParameter(f"{text!r} is not NAME=FILE, such as ru=rec.onnx.", param_hint="--recognizer")
        if name in recognizers:
            raise OperatorError("Two recognizers have the same name.", "Give each its own name.")
        recognizers[name] = Path(file)
    return Wanted(languages=list(language), recognizers=recognizers, **more)


_WANTED: Final = gathered(
    "wanted",
    _wanted,
    click.argument(
        "sources",
        nargs=-1,
        required=True,
        type=FILE,
        metavar="SOURCE...",
        help="ONNX models with inference.yml or a dictionary; a traineddata file; a folder of Tr or with a model.toml.",
    ),
    option("--tier", type=click.Choice(get_args(Tier)), help="Model size; also selects among several in SOURCE."),
    option("--language", multiple=True, metavar="TAG", help="Language, likeliest first; by default by the dictionary."),
    option("--recognizer", multiple=True, metavar="NAME=FILE", help="Recognizer for another script; repeatable."),
    option("--dictionary", type=FILE, help="Dictionary of the first recognizer, one character per line."),
    option("--licence", metavar="NAME", help="Licence, such as Apache-2.0; by default from the source."),
    option("--reference", type=FILE, metavar="FOLDER", help="Reference pages that it must read before it serves."),
)


@models.command(
    "add",
    examples=(
        "ocrsvc models add mine det.onnx rec.onnx --dictionary characters.txt --language ru",
        "ocrsvc models add server PP-OCRv5_server_det/ PP-OCRv5_server_rec/ --tier medium",
    ),
)
@repository_option
@click.argument("name", callback=_name_of, help="Name of the model, in lower case.")
@_WANTED
@option("--version", type=VERSION_NUMBER, metavar="N", help="Version number; by default the next free one.")
def _add(settings: Settings, name: str, wanted: Wanted, version: int | None) -> None:
    """Add a model, or a version of one, from files of PaddleOCR, RapidOCR, TurboOCR, Tesseract or Tr."""
    folder = repository_of(settings)
    model = find_model(wanted)
    number = write_version(model, folder, name, version)
    print("\n".join(_report(f"{name}/{number}", model)))
    for note in model.notes:
        print(note, file=sys.stderr)


def _report(version: str, model: NewModel) -> Iterator[str]:
    description = model.description
    words = [word for word in (description.title, description.tier, description.licence) if word]
    yield f"{version}: {', '.join(words) or description.engine}"
    if (part := description.detection) is not None:
        thresholds = (("map", part.map_threshold), ("box", part.box_threshold), ("unclip", part.unclip_ratio))
        known = ", ".join(f"{name} {value:g}" for name, value in thresholds if value is not None)
        mean, std = ("/".join(f"{value:g}" for value in values) for values in (part.mean, part.std))
        yield f"  detector: mean {mean}, std {std}; {known or 'default thresholds'}"
    for recognizer in description.recognition:
        if description.engine == "tesseract":
            yield f"  recognizer {recognizer.file}; languages: {' '.join(recognizer.languages)}"
            continue
        where = recognizer.dictionary or "in the model"
        content = model.files[recognizer.dictionary] if recognizer.dictionary else None
        count = f", {content.count(chr(10).encode())} characters" if isinstance(content, bytes) else ""
        space = ", then a space" if recognizer.adds_space else ""
        languages = " ".join(recognizer.languages) or "none known"
        found = f"{recognizer.height_px} px; dictionary {where}{count}{space}; languages: {languages}"
        yield f"  recognizer {recognizer.name}: {found}"


@models.command("encrypt", examples=("ocrsvc models encrypt mine/2", "ocrsvc models encrypt ./plain/mine/3 --to 7"))
@repository_option
@click.argument("source", metavar="MODEL", help="NAME/VERSION, or a version's folder, such as ./plain/mine/3.")
@option("--to", type=VERSION_NUMBER, metavar="N", help="Number of the encrypted version; by default the next free one.")
def _encrypt(settings: Settings, source: str, to: int | None) -> None:
    """Write a new, encrypted version from an unencrypted one."""
    folder, key = repository_of(settings), read_model_key(settings)
    if key is None:
        names = " or ".join(map(variable_of, KEY_SETTINGS))
        raise OperatorError("No model key is configured.", f"Set {names}; `ocrsvc models new-key` creates a key.")
    version = _source(source, folder, key)
    number = write_version(encrypt_model(version, key), folder, version.name, to)
    print(f"{version.name}/{number} is encrypted with the key {key.id}.")
    print(f"The plain {version} is still in {version.folder}.")


def _source(text: str, repository: Path, key: ModelKey) -> ModelVersion:
    """Open NAME/VERSION in the repository, or a version's folder elsewhere. Raises OperatorError."""
    if not text.startswith((".", "/")):
        return ModelRepository(repository, key).open(*named_version(text))
    home, number = Path(text).resolve().parent, Path(text).resolve().name
    if not NAME.fullmatch(home.name) or not number.isdecimal() or not 0 < int(number[:12]) <= MAX_VERSION:
        raise OperatorError(f"{text} is not a folder NAME/VERSION.", "Write it as ./folder/NAME/VERSION.")
    return ModelRepository(home.parent, key).open(home.name, int(number))


@models.command("new-key", examples=("(umask 077; ocrsvc models new-key > models.key)",))
@repository_option
def _new_key(settings: Settings) -> None:  # noqa: ARG001  every command of models takes the option
    """Print a new key for encrypting models; it is not stored."""
    key = new_key()
    print(key.expose(), flush=True)
    print(f"Key id {key.id}. It is shown only now; models encrypted with it need it.", file=sys.stderr)
