"""What a worker says to its children of the model that they open: its name, number and digest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ocrsvc.engines.model.encryption import ModelKey
from ocrsvc.engines.model.version import ModelVersion, find_version
from ocrsvc.errors import BadModel


@dataclass(frozen=True, slots=True)
class ModelName:
    """One version of a model, by what every process knows it by."""

    name: str
    number: int
    digest: str

    @classmethod
    def of(cls, model: ModelVersion) -> ModelName:
        """That of a version."""
        return cls(model.name, model.number, model.digest)

    def open(self, folder: Path | None, key: ModelKey | None = None) -> ModelVersion:
        """The version as it lies in the repository. In the child.

        Args:
            folder: What OCRSVC_MODELS names.
            key: Decrypts it, if it is encrypted.

        Raises:
            BadModel: It is not there any more, cannot be used, or is not the one that the worker means.
        """
        found = find_version(folder, self.name, self.number, key)
        if found.digest != self.digest:
            raise BadModel(
                f"{found} has changed since the worker chose it.", "Give what changes another number, and leave it be."
            )
        return found
