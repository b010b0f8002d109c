"""The API key with which a command asks a service: from a file or the environment, never from the command line."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

from ocrsvc.errors import OperatorError
from ocrsvc.settings.api_key import API_KEY_VARIABLE

_MOST_LETTERS: Final = 1000


def add_argument(parser: argparse._ActionsContainer) -> None:
    """Declare the option that names the file."""
    parser.add_argument(
        "--key-file",
        type=Path,
        metavar="FILE",
        help=f"file that holds the API key of the service; by default the variable {API_KEY_VARIABLE} does, if any",
    )


def read_key(file: Path | None) -> str:
    """The key in the file, or else in the environment; empty where there is none. Raises OperatorError."""
    if file is None:
        return os.environ.get(API_KEY_VARIABLE, "").strip()
    try:
        key = file.read_text(encoding="ascii").strip()
    except OSError as error:
        raise OperatorError(
            f"The key file {file} cannot be read: {error.strerror}.", "Check its name and permissions."
        ) from error
    except UnicodeDecodeError:
        key = ""
    if not key or len(key) > _MOST_LETTERS or len(key.split()) != 1:
        raise OperatorError(f"{file} does not hold one key.", "Put the key into it as `ocrsvc keys add` printed it.")
    return key
