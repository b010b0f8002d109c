"""The model repository: a folder NAME/VERSION/ with model.toml, the files it names, and a manifest, written last.

Changes are seen by reading it every few seconds (2 ms for twenty versions), which works on every file system, also on
a network, where the kernel reports no change that another machine makes (inotify).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ocrsvc.engines.model.description import Description
from ocrsvc.engines.model.encryption import EncryptionMissing, ModelKey
from ocrsvc.engines.model.files import MANIFEST, MOST_MANIFEST_BYTES, read_file
from ocrsvc.engines.model.version import (
    BUILT_IN,
    BUILT_IN_DESCRIPTION,
    KEY_REMEDY,
    MOST_VERSION,
    NAME,
    KeyLacking,
    ModelVersion,
    built_in_model,
    find_version,
    open_version,
    version_digest,
)
from ocrsvc.errors import BadModel, SettingsError
from ocrsvc.models.policy import Policies, read_policies

# No name of a model has a colon.
_OWN: Final = "engine:"


@dataclass(frozen=True, slots=True)
class BadVersion:
    """A version that cannot be used, and why; the number 0 is a whole model, whose folder cannot be listed.

    `digest` is that of ModelVersion, "" where the manifest cannot be read.
    """

    name: str
    number: int
    digest: str
    reason: str
    lacks_key: bool = False


@dataclass(frozen=True, slots=True)
class Scan:
    """What is in a repository now, the built-in model included; each sorted by name and number."""

    versions: tuple[ModelVersion, ...]
    bad: tuple[BadVersion, ...] = ()

    @property
    def is_unnamed(self) -> bool:
        """Whether the engine comes with its own model, the only one, which no request can name."""
        return not self.bad and [one.name for one in self.versions] == [f"{_OWN}{self.versions[0].description.engine}"]

    def find(self, name: str, number: int) -> ModelVersion | None:
        """A version; None where there is none, or a bad one."""
        return next((one for one in self.versions if (one.name, one.number) == (name, number)), None)

    def numbers(self, name: str) -> tuple[int, ...]:
        """The versions of a model that can be used, ascending."""
        return tuple(one.number for one in self.versions if one.name == name)


class ModelRepository:
    """A folder of models, which the service only reads and `key` decrypts; without a folder, the model of an engine."""

    def __init__(self, folder: Path | None, key: ModelKey | None = None, engine: str = BUILT_IN[0]) -> None:
        self.folder, self.key, self._engine = folder, key, engine

    def scan(self) -> Scan:
        """Everything that has a manifest; its files are verified when they are read. Raises BadModel: not listable."""
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
                found += [folder for folder in _versions_of(model) if not (folder / MANIFEST).exists()]
        return tuple(sorted((folder.parent.name, int(folder.name)) for folder in found))

    def open(self, name: str, number: int) -> ModelVersion:
        """One version. Raises BadModel: it is not there, or cannot be used."""
        return find_version(self.folder, name, number, self.key)

    def check_key(self) -> None:
        """Raises SettingsError: there is no folder, or a version that the policies want cannot be decrypted.

        Asked before workers start; what cannot be read otherwise is left to those who load the models.
        """
        if self.folder is None:
            return
        with suppress(OSError):
            if not self.folder.is_dir():
                raise SettingsError(
                    f"OCRSVC_MODELS is {self.folder}, and that is no folder.",
                    "Name one that is there; `ocrsvc models add` makes it with the first model.",
                )
        try:
            scan = self.scan()
        except BadModel:
            return
        lacking = [f"{one.name}/{one.number}: {one.reason}" for one in wanted_bad(scan, read_policies(self.folder))]
        if lacking:
            reasons = "\n".join(lacking)
            raise SettingsError(reasons, "" if KEY_REMEDY in reasons else KEY_REMEDY)

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


def model_of_engine(engine: str) -> ModelVersion:
    """The one model of a service without a repository: the built-in one, or what another engine comes with."""
    if engine == BUILT_IN_DESCRIPTION.engine:
        return ModelVersion(*BUILT_IN, BUILT_IN_DESCRIPTION, Path(), "")
    return ModelVersion(f"{_OWN}{engine}", 1, Description(engine=engine), Path(), "")


def wanted_bad(scan: Scan, policies: Policies) -> Iterator[BadVersion]:
    """The versions that the policies want, and that lack their key."""
    lacking = [one for one in scan.bad if one.lacks_key]
    for one in lacking:
        policy = policies.of(one.name)
        numbers = {*scan.numbers(one.name), *(other.number for other in lacking if other.name == one.name)}
        newest = sorted(numbers, reverse=True)
        if policy is not None and (one.number in newest[: policy.newest] or policy.wants(one.number)):
            yield one


def _versions_of(model: Path) -> list[Path]:
    """The folders whose names are those of versions. Raises OSError."""
    return [one for one in model.iterdir() if _is_number(one.name) and one.is_dir()]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and not text.startswith("0") and int(text[:12]) <= MOST_VERSION


def _bad_version(folder: Path, error: Exception) -> BadVersion:
    lacks_key, digest = isinstance(error, KeyLacking | EncryptionMissing), ""
    with suppress(OSError):
        manifest = read_file(folder / MANIFEST, MOST_MANIFEST_BYTES + 1)
        digest = version_digest(folder, hashlib.sha256(manifest).hexdigest())
    return BadVersion(folder.parent.name, int(folder.name), digest, _reason(error), lacks_key)


def _reason(error: Exception) -> str:
    """Without the path, because clients of the model protocols read it."""
    if isinstance(error, OSError):
        return f"{Path(error.filename or '').name} cannot be read: {error.strerror}. Let the service's user read it."
    return str(error)
