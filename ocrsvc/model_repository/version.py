"""One version of a model, on disk or built in: where it is, what it is, and its files, held against the manifest."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ocrsvc.errors import BadModel
from ocrsvc.model_repository.description import Description

NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
"""Of a model: also the name of its folder, and in the address of a request."""

MOST_VERSION: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One version of a model.

    Attributes:
        name: Of the model.
        number: Of the version, from 1.
        description: From its `model.toml`.
        folder: Where its files are.
        digest: Of its manifest, in hexadecimal digits: it changes when any file does.
        digests: By file; empty for the built-in model, whose wheel pip has verified.
    """

    name: str
    number: int
    description: Description
    folder: Path
    digest: str
    digests: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_built_in(self) -> bool:
        """Whether it came in a wheel, with no manifest."""
        return not self.digests

    def __str__(self) -> str:
        return f"{self.name}/{self.number}"

    def read(self, file: str) -> bytes:
        """The content of one of its files. Raises BadModel: it is missing, or not what the manifest says."""
        try:
            content = (self.folder / file).read_bytes()
        except OSError as error:
            raise BadModel(f"{self}: {file} cannot be read: {error.strerror}.", "Copy the version again.") from error
        if self.digests and hashlib.sha256(content).hexdigest() != self.digests.get(file):
            raise BadModel(
                f"{self}: {file} is not the file of its manifest.", "Copy the version again, its SHA256SUMS last."
            )
        return content
