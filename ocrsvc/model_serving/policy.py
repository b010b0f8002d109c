"""Which versions of each model are wanted, and which of them a request reads: `models.toml` in the repository's folder.

Or `models.config`, TensorFlow Serving's own file; see `models_config.py`. Both at once are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ocrsvc.errors import SettingsError
from ocrsvc.model_repository.repository_files import parse_toml, read_file
from ocrsvc.model_repository.version import MOST_VERSION, NAME
from ocrsvc.model_repository.wanted_model import LABEL

FILE: Final = "models.toml"
TENSORFLOW_FILE: Final = "models.config"
MOST_BYTES: Final = 1 << 20
STABLE: Final = "stable"
"""The label of what reads requests that name neither version nor label, where it is set."""


def _check_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError("no name of a model")
    return name


def _check_label(label: str) -> str:
    if not LABEL.fullmatch(label):
        raise ValueError("no label")
    return label


def _check_shares(shares: dict[str, float]) -> dict[str, float]:
    """Shares that add up to 1 at most; raises ValueError."""
    if sum(shares.values()) > 1 + 1e-9:
        raise ValueError("the shares add up to more than 1")
    return shares


ModelName = Annotated[str, AfterValidator(_check_name)]
Label = Annotated[str, AfterValidator(_check_label)]
Number = Annotated[int, Field(ge=1, le=MOST_VERSION, strict=True)]
Share = Annotated[float, Field(gt=0, le=1)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Newest(_Table):
    """The newest so many versions."""

    newest: Annotated[int, Field(ge=1, le=100, strict=True)]


class ModelPolicy(_Table):
    """What is wanted of one model.

    Attributes:
        versions: The newest, the newest so many, those of these numbers, or all that there are.
        labels: Names for versions, which are wanted for it.
        shares: How much of the requests that name neither version nor label goes to which label, from 0 to 1.
        pinned: Whether its versions stay loaded, however little they are used.
    """

    versions: Literal["newest", "all"] | Newest | tuple[Number, ...] = "newest"
    labels: dict[Label, Number] = {}
    shares: Annotated[dict[Label, Share], AfterValidator(_check_shares)] = {}
    pinned: bool = False

    @property
    def newest(self) -> int | None:
        """How many of the newest versions are wanted; None where they are wanted by number, or all."""
        if isinstance(self.versions, Newest):
            return self.versions.newest
        return 1 if self.versions == "newest" else None

    def wants(self, number: int) -> bool:
        """Whether a version is wanted by its number, its label, or because all are."""
        if number in self.labels.values() or self.versions == "all":
            return True
        return isinstance(self.versions, tuple) and number in self.versions


class Policies(_Table):
    """What is wanted of all models.

    Attributes:
        models: By name.
        others: Whether models that are not named are wanted too, their newest versions.
    """

    models: dict[ModelName, ModelPolicy] = {}
    others: bool = True

    def of(self, name: str) -> ModelPolicy | None:
        """What is wanted of a model; None where it is not."""
        return self.models.get(name, ModelPolicy() if self.others else None)


_TABLES: Final[TypeAdapter[dict[str, ModelPolicy]]] = TypeAdapter(dict[ModelName, ModelPolicy])


def read_policies(folder: Path) -> Policies:
    """What the file in a repository's folder says; without one, the newest version of every model.

    Raises:
        SettingsError: It is wrong, or there are two.
    """
    own, theirs = _read(folder / FILE), _read(folder / TENSORFLOW_FILE)
    if own is not None and theirs is not None:
        raise SettingsError(
            f"{folder} holds {FILE} and {TENSORFLOW_FILE}, which both say what versions are wanted.", "Remove one."
        )
    if theirs is not None:
        from ocrsvc.model_serving.models_config import parse_models_config

        return parse_models_config(theirs, folder)
    return parse_policies(own or "")


def parse_policies(text: str) -> Policies:
    """What a `models.toml` says. Raises SettingsError, which names the entry that is wrong."""
    try:
        return Policies(models=_TABLES.validate_python(_lists_as_tuples(parse_toml(text))))
    except ValidationError as error:
        raise SettingsError(f"{FILE}: {first_fault(error)}.", "See docs/model_versions.md for the entries.") from error
    except ValueError as error:
        raise SettingsError(f"{FILE} is no TOML: {error}.", "Correct the file.") from error


def first_fault(error: ValidationError) -> str:
    """The first entry that is wrong, and why."""
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'the whole'}: {first['msg']}"


def _read(file: Path) -> str | None:
    try:
        content = read_file(file, MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}.", "Check its permissions.") from error
    if len(content) > MOST_BYTES:
        raise SettingsError(f"{file} has more than {MOST_BYTES} bytes.", "It is no list of models.")
    return content.decode("utf-8", "replace")


def _lists_as_tuples(tables: Mapping[str, object]) -> dict[str, object]:
    """The numbers of versions as pydantic takes them strictly."""
    return {name: _with_tuple(table) if isinstance(table, dict) else table for name, table in tables.items()}


def _with_tuple(table: Mapping[str, object]) -> dict[str, object]:
    versions = table.get("versions")
    return {**table, "versions": tuple(versions)} if isinstance(versions, list) else dict(table)
