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
from ocrsvc.model_repository.encryption import CannotDecrypt, decrypt, read_head
from ocrsvc.model_repository.model_key import ModelKey
from ocrsvc.model_repository.repository_files import read_file

NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
"""Of a model: also the name of its folder, and in the address of a request."""

MOST_VERSION: Final = 2**31 - 1

DESCRIPTION_FILE: Final = "model.toml"


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One version of a model.

    Attributes:
        name: Of the model.
        number: Of the version, from 1.
        description: From its `model.toml`.
        folder: Where its files are.
        digest: Of its manifest, name and number, in hexadecimal digits: it changes when any file does.
        digests: By file, as they are on disk; empty for the built-in model, whose wheel pip has verified.
        key: That decrypts them; None for plain ones.
    """

    name: str
    number: int
    description: Description
    folder: Path
    digest: str
    digests: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    key: ModelKey | None = field(default=None, compare=False, repr=False)

    @property
    def is_built_in(self) -> bool:
        """Whether it came in a wheel, with no manifest."""
        return not self.digests

    def __str__(self) -> str:
        return f"{self.name}/{self.number}"

    def read(self, file: str) -> bytes:
        """The content of one of its files, decrypted in memory where it is encrypted on disk.

        Raises:
            BadModel: It is missing, not what the manifest says, or not what was encrypted.
            EncryptionMissing: The package that decrypts is not installed.
        """
        content = self._read_stored(file)
        return self._decrypted(file, content) if self.description.encryption is not None else content

    def _read_stored(self, file: str) -> bytes:
        try:
            content = read_file(self.folder / file)
        except OSError as error:
            raise BadModel(f"{self}: {file} cannot be read: {error.strerror}.", "Copy the version again.") from error
        if self.digests and hashlib.sha256(content).hexdigest() != self.digests.get(file):
            raise BadModel(
                f"{self}: {file} is not the file of its manifest.", "Copy the version again, its SHA256SUMS last."
            )
        return content

    def _decrypted(self, file: str, content: bytes) -> bytes:
        """What a file of an encrypted version holds; `model.toml`, which says how, is plain."""
        encryption, head = self.description.encryption, read_head(content)
        if file == DESCRIPTION_FILE:
            return content
        try:
            if self.key is None:
                raise CannotDecrypt("is encrypted, and there is no key")
            if head is not None and encryption is not None and head.set_id != encryption.set:
                raise CannotDecrypt("was not encrypted together with the model.toml beside it")
            return decrypt(content, file, self.key)
        except CannotDecrypt as error:
            raise BadModel(f"{self}: {file} {error}.", "Run `ocrsvc models encrypt` once more.") from error
