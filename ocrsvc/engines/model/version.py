"""A version of a model, as an engine opens it: from a folder NAME/NUMBER/, or built in."""

import hashlib
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final

from ocrsvc.engines.model.description import MAX_BYTES, Description, Detection, Recognition, parse_description
from ocrsvc.engines.model.encryption import CannotDecrypt, ModelKey, check_installed, decrypt, read_head
from ocrsvc.engines.model.files import MANIFEST, read_file, read_manifest
from ocrsvc.errors import BadModel, EngineUnavailable

NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")  # a model's name, also its folder's, and part of request URLs
MAX_VERSION: Final = 2**31 - 1
DESCRIPTION_FILE: Final = "model.toml"
KEY_REMEDY: Final = "Set OCRSVC_MODELS_KEY, OCRSVC_MODELS_KEY_FD or OCRSVC_MODELS_KEY_COMMAND to that key."
Named = tuple[str, int, str]  # a model's name, version number and digest
BUILT_IN: Final = ("ppocr", 1)
TITLE: Final = "PP-OCRv6 small"
DETECTION: Final = "PP-OCRv6_det_small.onnx"
RECOGNITION: Final = "PP-OCRv6_rec_small.onnx"
# Languages that the built-in dictionary of 18,708 characters covers. Slovak, Azerbaijani and Esperanto are not listed:
# in ordinary sentences 75 %, 53 % and none of their special letters are read (docs/design/recognition.md).
LANGUAGES: Final = (
    *("zh", "zh-hant", "ja", "en", "de", "fr", "es", "pt", "it", "nl", "sv", "da", "nb", "fi", "is", "et", "lv", "lt"),
    *("pl", "cs", "sl", "hr", "sr-latn", "hu", "ro", "tr", "id", "ms", "tl", "sw", "af", "sq", "eu", "ca", "gl", "ga"),
    *("mt",),
)
BUILT_IN_DESCRIPTION: Final = Description(
    engine="ppocr",
    title=TITLE,
    tier="small",
    licence="Apache-2.0",
    source="the wheel rapidocr",
    detection=Detection(file=DETECTION),
    recognition=(Recognition(file=RECOGNITION, languages=LANGUAGES),),
)


class KeyMissing(BadModel):
    """A version is encrypted, and its key is missing."""


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One version of a model."""

    name: str
    number: int
    description: Description
    folder: Path
    digest: str  # SHA-256 of manifest, name and number, in hexadecimal digits; changes if any file changes
    # SHA-256 of each file; empty for the built-in model, whose files pip verified when it installed the wheel
    digests: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    key: ModelKey | None = field(default=None, compare=False, repr=False)  # decrypts the files; None if not encrypted

    @property
    def is_built_in(self) -> bool:
        """Whether the model was installed with its engine, and so has no manifest."""
        return not self.digests

    @property
    def reference(self) -> Named:
        """Name, number and digest, with which another process opens the same version (`find_version`)."""
        return self.name, self.number, self.digest

    def __str__(self) -> str:
        return f"{self.name}/{self.number}"

    def read(self, file: str) -> bytes:
        """Read one of the version's files, decrypting it in memory. Raises BadModel, EncryptionMissing."""
        try:
            content = read_file(self.folder / file)
        except OSError as error:
            raise BadModel(f"{self}: {file} cannot be read: {error.strerror}.", "Copy the version again.") from error
        if self.digests and hashlib.sha256(content).hexdigest() != self.digests.get(file):
            raise BadModel(f"{self}: {file} does not match the manifest.", "Copy the version again, SHA256SUMS last.")
        # The description is never encrypted, because it names the key.
        is_plain = self.description.encryption is None or file == DESCRIPTION_FILE
        return content if is_plain else self._decrypted(file, content)

    def _decrypted(self, file: str, content: bytes) -> bytes:
        encryption, head = self.description.encryption, read_head(content)
        try:
            if self.key is None:
                raise CannotDecrypt("is encrypted, and no key was given")
            if head is not None and encryption is not None and head[1] != encryption.set:
                raise CannotDecrypt("was not encrypted together with the model.toml beside it")
            return decrypt(content, file, self.key)
        except CannotDecrypt as error:
            raise BadModel(f"{self}: {file} {error}.", "Run `ocrsvc models encrypt` again.") from error


@cache
def built_in_model() -> ModelVersion:
    """PP-OCRv6 small of PaddlePaddle (Apache-2.0), from the installed wheel `rapidocr`. Raises EngineUnavailable."""
    spec = importlib.util.find_spec("rapidocr")
    if spec is None or not spec.submodule_search_locations:
        raise EngineUnavailable(
            "The package `rapidocr`, whose wheel contains the PP-OCRv6 models, is not installed.",
            "Install it with `pip install 'rapidocr>=3.10,<4'`, or choose another OCRSVC_ENGINE.",
        )
    folder = Path(spec.submodule_search_locations[0]) / "models"
    if not (folder / DETECTION).is_file():
        raise EngineUnavailable(
            f"The installed `rapidocr` does not contain {DETECTION}.",
            "Install a version with the PP-OCRv6 small models (>=3.10,<4).",
        )
    return ModelVersion(*BUILT_IN, BUILT_IN_DESCRIPTION, folder, f"rapidocr {metadata.version('rapidocr')}")


def open_version(folder: Path, key: ModelKey | None = None) -> ModelVersion:
    """Open the version in a folder NAME/NUMBER. Raises FileNotFoundError without a manifest, OSError, BadModel."""
    name, number = folder.parent.name, int(folder.name)
    manifest_digest, digests = read_manifest(folder)
    if (name, number) == BUILT_IN:
        raise BadModel(f"{name}/{number} is the built-in model.", "Give it another number.")
    description = _read_description(folder, digests)
    if missing := [file for file in description.files if file not in digests]:
        raise BadModel(
            f"{MANIFEST} does not list {', '.join(missing)}.", "Copy the missing files, then write the manifest again."
        )
    digest = version_digest(folder, manifest_digest)
    return ModelVersion(name, number, description, folder, digest, digests, _check_key(description, key))


def find_version(
    repository: Path | None, name: str, number: int, digest: str = "", key: ModelKey | None = None
) -> ModelVersion:
    """Open a repository's version or the built-in one. Raises BadModel if it is unusable or has another digest."""
    try:
        if (name, number) == BUILT_IN:
            version = built_in_model()
        elif repository is not None:
            version = open_version(repository / name / str(number), key)
        else:
            raise BadModel(f"There is no {name}/{number}: OCRSVC_MODELS is not set.", "Set it to the models' folder.")
    except OSError as error:
        raise BadModel(
            f"{name}/{number} cannot be read in {repository}: {error.strerror}.", "Copy the version there again."
        ) from error
    if digest and version.digest != digest:
        raise BadModel(f"{version} has changed since the worker chose it.", "Publish changes under a new number.")
    return version


def version_digest(folder: Path, manifest_digest: str) -> str:
    """Digest of the manifest, the model's name and its number; so a copy under another number has another digest."""
    return hashlib.sha256(f"{folder.parent.name}/{folder.name} {manifest_digest}".encode()).hexdigest()


def _read_description(folder: Path, digests: Mapping[str, str]) -> Description:
    if DESCRIPTION_FILE not in digests:
        raise BadModel(f"{MANIFEST} does not list {DESCRIPTION_FILE}.", "Run `ocrsvc models add` again.")
    content = read_file(folder / DESCRIPTION_FILE, MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise BadModel(f"{DESCRIPTION_FILE} has more than {MAX_BYTES} bytes.", "Shorten it.")
    if hashlib.sha256(content).hexdigest() != digests[DESCRIPTION_FILE]:
        raise BadModel(f"{DESCRIPTION_FILE} does not match the manifest.", "Copy the version again.")
    return parse_description(content.decode("utf-8", "replace"))


def _check_key(description: Description, key: ModelKey | None) -> ModelKey | None:
    """Return `key` if it fits a version's files, None if they are plain. Raises BadModel if they cannot be read."""
    encryption = description.encryption
    if encryption is None:
        return None
    if key is None or key.id != encryption.key:
        given = "no key was given" if key is None else f"the given key is {key.id}"
        raise KeyMissing(f"It is encrypted with the key {encryption.key}, but {given}.", KEY_REMEDY)
    check_installed()
    if paths := description.paths:
        raise BadModel(
            f"It is encrypted, but the engine {description.engine} opens files by path ({', '.join(paths)}).",
            "Do not encrypt models of this engine.",
        )
    return key
