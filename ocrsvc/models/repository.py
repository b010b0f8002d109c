"""The model repository: folders NAME/VERSION/ with model.toml, the files it names, and a manifest, written last.

It is scanned every few seconds (2 ms for twenty versions), which works on every file system; inotify does not report
changes that other machines make on network file systems.
"""

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ocrsvc.engines.model.description import Description
from ocrsvc.engines.model.encryption import EncryptionMissing, ModelKey
from ocrsvc.engines.model.files import MANIFEST, MAX_MANIFEST_BYTES, read_file
from ocrsvc.engines.model.version import (
    BUILT_IN,
    BUILT_IN_DESCRIPTION,
    KEY_REMEDY,
    MAX_VERSION,
    NAME,
    KeyMissing,
    ModelVersion,
    built_in_model,
    find_version,
    open_version,
    version_digest,
)
from ocrsvc.errors import BadModel, SettingsError
from ocrsvc.models.policy import Policies, read_policies

_OWN: Final = "engine:"  # name prefix of an engine's own model; models of a repository have no colon in their names


@dataclass(frozen=True, slots=True)
class BadVersion:
    """An unusable version and the reason; number 0: the model's folder cannot be listed.

    `digest` is as in ModelVersion; "" if the manifest cannot be read.
    """

    name: str
    number: int
    digest: str
    reason: str
    lacks_key: bool = False


@dataclass(frozen=True, slots=True)
class Scan:
    """The usable and the bad versions in a repository, with the built-in model, sorted by name and number."""

    versions: tuple[ModelVersion, ...]
    bad: tuple[BadVersion, ...] = ()

    @property
    def is_unnamed(self) -> bool:
        """Whether the only model is an engine's own, which requests cannot name."""
        names = [version.name for version in self.versions]
        return not self.bad and names == [f"{_OWN}{self.versions[0].description.engine}"]

    def find(self, name: str, number: int) -> ModelVersion | None:
        """The usable version with this name and number, or None."""
        return next((version for version in self.versions if (version.name, version.number) == (name, number)), None)

    def numbers(self, name: str) -> tuple[int, ...]:
        """Numbers of a model's usable versions, ascending."""
        return tuple(version.number for version in self.versions if version.name == name)


class ModelRepository:
    """A folder of models, which is only read; `key` decrypts models. Without a folder: only the engine's own model."""

    def __init__(self, folder: Path | None, key: ModelKey | None = None, engine: str = BUILT_IN[0]) -> None:
        self.folder, self.key, self._engine = folder, key, engine

    def scan(self) -> Scan:
        """Find all versions with a manifest; files are verified when read. Raises BadModel for an unreadable folder."""
        if self.folder is None:
            return Scan((model_of_engine(self._engine),))
        versions, bad = [built_in_model()], []
        for model in self._models():
            try:
                folders = _versions_of(model)
            except OSError as error:
                bad.append(BadVersion(model.name, 0, "", _reason(error)))
                continue
            for folder in folders:
                try:
                    versions.append(open_version(folder, self.key))
                except FileNotFoundError:
                    # A version without a manifest is still being copied.
                    continue
                except (BadModel, OSError) as error:
                    bad.append(_bad_version(folder, error))
        return Scan(
            tuple(sorted(versions, key=lambda version: (version.name, version.number))),
            tuple(sorted(bad, key=lambda version: (version.name, version.number))),
        )

    def incomplete(self) -> tuple[tuple[str, int], ...]:
        """Name and number of the versions without a manifest, which are still being copied. Raises BadModel."""
        folders: list[Path] = []
        for model in self._models():
            with suppress(OSError):
                folders += [folder for folder in _versions_of(model) if not (folder / MANIFEST).exists()]
        return tuple(sorted((folder.parent.name, int(folder.name)) for folder in folders))

    def open(self, name: str, number: int) -> ModelVersion:
        """Open a version. Raises BadModel: it is missing or unusable."""
        return find_version(self.folder, name, number, key=self.key)

    def check_key(self) -> None:
        """Raises SettingsError: the folder does not exist, or a wanted version cannot be decrypted.

        Called before workers start; other faults are reported when models are loaded.
        """
        if self.folder is None:
            return
        with suppress(OSError):
            if not self.folder.is_dir():
                raise SettingsError(
                    f"OCRSVC_MODELS is {self.folder}, which is not a folder.",
                    "Name an existing folder, or create it with `ocrsvc models add`.",
                )
        try:
            scan = self.scan()
        except BadModel:
            return
        wanted = wanted_without_key(scan, read_policies(self.folder))
        if reasons := "\n".join(f"{version.name}/{version.number}: {version.reason}" for version in wanted):
            raise SettingsError(reasons, "" if KEY_REMEDY in reasons else KEY_REMEDY)

    def _models(self) -> list[Path]:
        """The folders with valid model names. Raises BadModel."""
        if self.folder is None:
            return []
        try:
            return [model for model in self.folder.iterdir() if NAME.fullmatch(model.name) and model.is_dir()]
        except OSError as error:
            raise BadModel(
                f"The model repository {self.folder} cannot be read: {error.strerror}.",
                "Check OCRSVC_MODELS; `ocrsvc models add` creates a missing folder.",
            ) from error


def model_of_engine(engine: str) -> ModelVersion:
    """The model of a service without a repository: the built-in model, or for other engines the engine's own model."""
    if engine == BUILT_IN_DESCRIPTION.engine:
        return ModelVersion(*BUILT_IN, BUILT_IN_DESCRIPTION, Path(), "")
    return ModelVersion(f"{_OWN}{engine}", 1, Description(engine=engine), Path(), "")


def wanted_without_key(scan: Scan, policies: Policies) -> Iterator[BadVersion]:
    """Versions that the policies want to load, but that cannot be decrypted because their key is missing."""
    lacking = [version for version in scan.bad if version.lacks_key]
    for version in lacking:
        policy = policies.of(version.name)
        numbers = {*scan.numbers(version.name), *(other.number for other in lacking if other.name == version.name)}
        newest = sorted(numbers, reverse=True)
        if policy is not None and (version.number in newest[: policy.newest] or policy.wants(version.number)):
            yield version


def _versions_of(model: Path) -> list[Path]:
    """The folders with valid version numbers. Raises OSError."""
    return [folder for folder in model.iterdir() if _is_number(folder.name) and folder.is_dir()]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and not text.startswith("0") and int(text[:12]) <= MAX_VERSION


def _bad_version(folder: Path, error: Exception) -> BadVersion:
    lacks_key, digest = isinstance(error, KeyMissing | EncryptionMissing), ""
    with suppress(OSError):
        manifest = read_file(folder / MANIFEST, MAX_MANIFEST_BYTES + 1)
        digest = version_digest(folder, hashlib.sha256(manifest).hexdigest())
    return BadVersion(folder.parent.name, int(folder.name), digest, _reason(error), lacks_key)


def _reason(error: Exception) -> str:
    """An error's text for clients of the model protocols, without server paths."""
    if isinstance(error, OSError):
        return f"{Path(error.filename or '').name} cannot be read: {error.strerror}. Let the service's user read it."
    return str(error)
