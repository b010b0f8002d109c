"""A folder of models: NAME/VERSION/ with model.toml, the files it names, and a manifest, which is written last."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ocrsvc.errors import BadModel
from ocrsvc.model_repository.builtin import NAME as BUILT_IN
from ocrsvc.model_repository.builtin import NUMBER as BUILT_IN_NUMBER
from ocrsvc.model_repository.builtin import built_in_model
from ocrsvc.model_repository.description import MOST_BYTES as MOST_DESCRIPTION_BYTES
from ocrsvc.model_repository.description import Description, parse_description
from ocrsvc.model_repository.encryption import EncryptionMissing, check_installed
from ocrsvc.model_repository.manifest import FILE, MOST_BYTES, read_manifest
from ocrsvc.model_repository.model_key import ModelKey
from ocrsvc.model_repository.repository_files import read_file
from ocrsvc.model_repository.version import DESCRIPTION_FILE, MOST_VERSION, NAME, ModelVersion

KEY_REMEDY: Final = "Give that key by OCRSVC_MODELS_KEY, OCRSVC_MODELS_KEY_FD or OCRSVC_MODELS_KEY_COMMAND."


@dataclass(frozen=True, slots=True)
class BadVersion:
    """A version that cannot be used, and why.

    Attributes:
        name, number: Which; the number 0 stands for all of a model, whose folder cannot be listed.
        digest: Of its manifest, name and number; "" where that cannot be read.
        reason: For people.
        lacks_key: It is encrypted, and the key that it wants, or the package that decrypts it, is not there.
    """

    name: str
    number: int
    digest: str
    reason: str
    lacks_key: bool = False


class KeyLacking(BadModel):
    """A version is encrypted, and the key that it wants is not there."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What is in a repository now, the built-in model included; each sorted by name and number."""

    versions: tuple[ModelVersion, ...]
    bad: tuple[BadVersion, ...]

    def find(self, name: str, number: int) -> ModelVersion | None:
        """A version; None where there is none, or a bad one."""
        return next((one for one in self.versions if (one.name, one.number) == (name, number)), None)

    def numbers(self, name: str) -> tuple[int, ...]:
        """The versions of a model that can be used, ascending."""
        return tuple(one.number for one in self.versions if one.name == name)


class ModelRepository:
    """A folder of models, which the service only reads.

    Args:
        folder: It; None is a repository of the built-in model alone.
        key: Decrypts what is encrypted.
    """

    def __init__(self, folder: Path | None, key: ModelKey | None = None) -> None:
        self.folder = folder
        self.key = key

    def scan(self) -> Scan:
        """Everything that has a manifest. The files themselves are verified when they are read.

        Raises:
            BadModel: The folder cannot be listed.
        """
        versions, bad = [built_in_model()], []
        for model in self._models():
            try:
                folders = _versions_of(model)
            except OSError as error:
                bad.append(BadVersion(model.name, 0, "", _reason(error)))
                continue
            for folder in folders:
                try:
                    versions.append(_open_version(folder, self.key))
                except FileNotFoundError:
                    # No manifest yet: it is still being copied.
                    continue
                except (BadModel, OSError) as error:
                    bad.append(_bad_version(folder, error))
        return Scan(
            tuple(sorted(versions, key=lambda one: (one.name, one.number))),
            tuple(sorted(bad, key=lambda one: (one.name, one.number))),
        )

    def incomplete(self) -> tuple[tuple[str, int], ...]:
        """Name and number of the versions without a manifest: they are still being copied. Raises BadModel."""
        found: list[Path] = []
        for model in self._models():
            with suppress(OSError):
                found += [folder for folder in _versions_of(model) if _lacks_manifest(folder)]
        return tuple(sorted((folder.parent.name, int(folder.name)) for folder in found))

    def open(self, name: str, number: int) -> ModelVersion:
        """One version. Raises BadModel: it is not there, or cannot be used."""
        if (name, number) == (BUILT_IN, BUILT_IN_NUMBER):
            return built_in_model()
        if self.folder is None:
            raise BadModel(f"There is no {name}/{number} without OCRSVC_MODELS.", "Name the folder with it.")
        try:
            return _open_version(self.folder / name / str(number), self.key)
        except OSError as error:
            raise BadModel(
                f"{name}/{number} cannot be read in {self.folder}: {error.strerror}.", "Copy the version there again."
            ) from error

    def _models(self) -> list[Path]:
        """The folders whose names are those of models. Raises BadModel."""
        if self.folder is None:
            return []
        try:
            return [one for one in self.folder.iterdir() if NAME.fullmatch(one.name) and one.is_dir()]
        except OSError as error:
            raise BadModel(
                f"The model repository {self.folder} cannot be read: {error.strerror}.",
                "Check OCRSVC_MODELS; `ocrsvc models add` makes a folder that is not there yet.",
            ) from error


def _versions_of(model: Path) -> list[Path]:
    """The folders whose names are those of versions. Raises OSError."""
    return [one for one in model.iterdir() if _is_number(one.name) and one.is_dir()]


def _lacks_manifest(folder: Path) -> bool:
    """Whether it is still being copied; what cannot be read is bad, and no copy that goes on."""
    try:
        return not (folder / FILE).exists()
    except OSError:
        return False


def _open_version(folder: Path, key: ModelKey | None) -> ModelVersion:
    """Raises FileNotFoundError without a manifest, BadModel."""
    manifest, name, number = read_manifest(folder), folder.parent.name, int(folder.name)
    digests = manifest.digests
    if (name, number) == (BUILT_IN, BUILT_IN_NUMBER):
        raise BadModel(f"{name}/{number} is the built-in model.", "Give it another number.")
    if DESCRIPTION_FILE not in digests:
        raise BadModel(f"{FILE} names no {DESCRIPTION_FILE}.", "Run `ocrsvc models add` once more.")
    content = read_file(folder / DESCRIPTION_FILE, MOST_DESCRIPTION_BYTES + 1)
    if len(content) > MOST_DESCRIPTION_BYTES:
        raise BadModel(
            f"{DESCRIPTION_FILE} has more than {MOST_DESCRIPTION_BYTES} bytes.", "Leave out what is not needed."
        )
    if hashlib.sha256(content).hexdigest() != digests[DESCRIPTION_FILE]:
        raise BadModel(f"{DESCRIPTION_FILE} is not the file of the manifest.", "Copy the version again.")
    description = parse_description(content.decode("utf-8", "replace"))
    missing = [file for file in description.files if file not in digests]
    if missing:
        raise BadModel(f"{FILE} names no {', '.join(missing)}.", "Copy what is missing, then write the manifest again.")
    digest = _own_digest(folder, manifest.digest)
    return ModelVersion(name, number, description, folder, digest, digests, _check_key(description, key))


def _check_key(description: Description, key: ModelKey | None) -> ModelKey | None:
    """The key that a version's files are decrypted with; None for plain ones. Raises BadModel."""
    encryption = description.encryption
    if encryption is None:
        return None
    if key is None:
        raise KeyLacking(f"It is encrypted with the key {encryption.key}, and none is given.", KEY_REMEDY)
    if key.id != encryption.key:
        raise KeyLacking(
            f"It is encrypted with the key {encryption.key}, and the one that is given is {key.id}.", KEY_REMEDY
        )
    check_installed()
    if paths := description.paths:
        raise BadModel(
            f"It is encrypted, and the engine {description.engine} opens files by their path ({', '.join(paths)}).",
            "Leave models of this engine plain.",
        )
    return key


def _bad_version(folder: Path, error: Exception) -> BadVersion:
    lacks_key = isinstance(error, KeyLacking | EncryptionMissing)
    return BadVersion(folder.parent.name, int(folder.name), _digest(folder), _reason(error), lacks_key)


def _digest(folder: Path) -> str:
    try:
        manifest = read_file(folder / FILE, MOST_BYTES + 1)
    except OSError:
        return ""
    return _own_digest(folder, hashlib.sha256(manifest).hexdigest())


def _own_digest(folder: Path, manifest_digest: str) -> str:
    """Of the manifest and of what it is the manifest of: a copy under another number may have been damaged."""
    return hashlib.sha256(f"{folder.parent.name}/{folder.name} {manifest_digest}".encode()).hexdigest()


def _reason(error: Exception) -> str:
    """Without the path, which clients of the model protocols are told."""
    if isinstance(error, OSError):
        return f"{Path(error.filename or '').name} cannot be read: {error.strerror}. Let the service's user read it."
    return str(error) if isinstance(error, BadModel) else f"It cannot be read: {error}."


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and not text.startswith("0") and int(text[:12]) <= MOST_VERSION
