"""What a worker says to its children of the model that they open: its name, number and digest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ocrsvc.errors import BadModel
from ocrsvc.model_repository.model_key import ModelKey
from ocrsvc.model_repository.version import ModelVersion


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
        # Only where there is a repository.
        from ocrsvc.model_repository.repository import ModelRepository

        found = ModelRepository(folder, key).open(self.name, self.number)
        if found.digest != self.digest:
            raise BadModel(
                f"{found} has changed since the worker chose it.", "Give what changes another number, and leave it be."
            )
        return found
