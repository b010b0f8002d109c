"""`ocrsvc models new-key`: prints a random key for models, which is stored nowhere."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from ocrsvc.engines.model.encryption import new_key
from ocrsvc.settings.settings import Settings

HELP: Final = "print a new key to encrypt models with"


def add_arguments(_parser: argparse.ArgumentParser) -> None:
    """It takes none."""


def run(_args: argparse.Namespace, _settings: Settings) -> int:
    """Print the key, and its id beside it, by which encrypted models name it."""
    key = new_key()
    print(key.expose(), flush=True)
    print(f"Its id is {key.id}. It is shown this once: without it, what it encrypts is lost.", file=sys.stderr)
    return 0
