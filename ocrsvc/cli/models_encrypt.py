"""`ocrsvc models encrypt`: writes an encrypted version beside a plain one, or of a folder with one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from ocrsvc.cli.models_add import number_argument
from ocrsvc.cli.models_repository import repository_of
from ocrsvc.engines.model.encryption import ModelKey
from ocrsvc.engines.model.key_source import KEY_SETTINGS, read_model_key
from ocrsvc.engines.model.version import MOST_VERSION, NAME, ModelVersion
from ocrsvc.errors import OperatorError
from ocrsvc.models.importers.write_version import encrypt_model, write_version
from ocrsvc.models.model_name import parse_wanted_model
from ocrsvc.models.repository import ModelRepository
from ocrsvc.settings.describe import variable_of
from ocrsvc.settings.settings import Settings

HELP: Final = "write an encrypted version of a plain one"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `ocrsvc models encrypt`."""
    parser.add_argument(
        "source",
        metavar="MODEL",
        help="NAME/VERSION of the repository, or the path of a folder NAME/VERSION elsewhere, such as ./plain/mine/3",
    )
    parser.add_argument(
        "--to", type=number_argument, metavar="N", help="number of the encrypted version; the next one by default"
    )


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Encrypt it, and say so. Raises OperatorError."""
    folder, key = repository_of(settings), read_model_key(settings)
    if key is None:
        raise OperatorError(
            "There is no key to encrypt with.",
            f"Give one by {' or '.join(map(variable_of, KEY_SETTINGS))}; `ocrsvc models new-key` makes one.",
        )
    version = _source(args.source, folder, key)
    number = write_version(encrypt_model(version, key), folder, version.name, args.to)
    print(f"{version.name}/{number} is encrypted with the key {key.id}.")
    print(f"The plain {version} is where it was, in {version.folder}.")
    return 0


def _source(text: str, repository: Path, key: ModelKey) -> ModelVersion:
    """A version of the repository, or of another folder. Raises OperatorError."""
    if text.startswith((".", "/")):
        home, number = Path(text).resolve().parent, Path(text).resolve().name
        if not NAME.fullmatch(home.name) or not number.isdecimal() or not 0 < int(number[:12]) <= MOST_VERSION:
            raise OperatorError(f"{text} is no folder NAME/VERSION.", "Name the model's folder, and the version's.")
        return ModelRepository(home.parent, key).open(home.name, int(number))
    try:
        wanted = parse_wanted_model(text)
    except ValueError:
        wanted = None
    if wanted is None or wanted.number is None:
        raise OperatorError(f"{text} is no NAME/VERSION.", "`ocrsvc models list` says what there is.")
    return ModelRepository(repository, key).open(wanted.name, wanted.number)
