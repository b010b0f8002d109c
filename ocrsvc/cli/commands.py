"""The type that a command is declared on, which argparse does not name in public."""

from __future__ import annotations

import argparse
from typing import Protocol


class Commands(Protocol):
    """Where `add_command` of each command declares itself."""

    def add_parser(self, name: str, *, help: str) -> argparse.ArgumentParser:  # noqa: A002  argparse's own name
        """A parser for one more command."""
        ...
