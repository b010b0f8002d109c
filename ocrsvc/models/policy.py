"""Policies: which versions of each model serve which requests, from `models.toml` in the repository's folder.

The folder may instead contain TensorFlow Serving's `models.config` (protobuf text format). Models that it does not name
are not wanted, and a model's base_path must be its folder in the repository.
"""

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from ocrsvc.engines.model.description import first_fault
from ocrsvc.engines.model.files import parse_toml, read_file
from ocrsvc.engines.model.version import MAX_VERSION, NAME
from ocrsvc.errors import SettingsError
from ocrsvc.models.model_name import LABEL

FILE: Final = "models.toml"
TENSORFLOW_FILE: Final = "models.config"
STABLE: Final = "stable"  # label of the version for requests that name neither version nor label
_MAX_BYTES: Final = 1 << 20


def _check_shares(shares: dict[str, float]) -> dict[str, float]:
    if sum(shares.values()) > 1 + 1e-9:
        raise ValueError("the shares add up to more than 1")
    return shares


ModelName = Annotated[str, StringConstraints(pattern=f"^{NAME.pattern}$")]
Label = Annotated[str, StringConstraints(pattern=f"^{LABEL.pattern}$")]
Number = Annotated[int, Field(ge=1, le=MAX_VERSION, strict=True)]
Share = Annotated[float, Field(gt=0, le=1)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Newest(_Table):
    """The policy entry `{newest = N}`: the N newest versions are wanted."""

    newest: Annotated[int, Field(ge=1, le=100, strict=True)]


class ModelPolicy(_Table):
    """The policy of one model: wanted versions (labelled ones are wanted too), and whether they stay loaded (`pinned`).

    `shares`, by label, 0 to 1: the fraction of requests without version or label that the label's version reads.
    """

    versions: Literal["newest", "all"] | Newest | tuple[Number, ...] = "newest"
    labels: dict[Label, Number] = {}
    shares: Annotated[dict[Label, Share], AfterValidator(_check_shares)] = {}
    pinned: bool = False

    @property
    def newest(self) -> int:
        """Number of newest versions that the policy wants; 0 if it lists versions or wants all."""
        if isinstance(self.versions, Newest):
            return self.versions.newest
        return 1 if self.versions == "newest" else 0

    def wants(self, number: int) -> bool:
        """Whether the policy names this version by number or by label, or wants all versions."""
        if number in self.labels.values() or self.versions == "all":
            return True
        return isinstance(self.versions, tuple) and number in self.versions


class Policies(_Table):
    """Policies by model name; with `others`, models without a policy serve their newest version, otherwise none."""

    models: dict[ModelName, ModelPolicy] = {}
    others: bool = True

    def of(self, name: str) -> ModelPolicy | None:
        """The policy of a model; None if no version of the model is wanted."""
        return self.models.get(name, ModelPolicy() if self.others else None)


_TABLES: Final[TypeAdapter[dict[str, ModelPolicy]]] = TypeAdapter(dict[ModelName, ModelPolicy])


def read_policies(folder: Path) -> Policies:
    """Read a repository's policies; without a file, the newest version of every model. Raises SettingsError."""
    own, tensorflow = _read(folder / FILE), _read(folder / TENSORFLOW_FILE)
    if own is not None and tensorflow is not None:
        raise SettingsError(
            f"{folder} contains both {FILE} and {TENSORFLOW_FILE}; only one of them may set policies.", "Remove one."
        )
    return parse_models_config(tensorflow, folder) if tensorflow is not None else parse_policies(own or "")


def parse_policies(text: str) -> Policies:
    """Parse a `models.toml`. Raises SettingsError, naming the invalid entry."""
    try:
        return Policies(models=_TABLES.validate_python(parse_toml(text)))
    except ValidationError as error:
        raise SettingsError(f"{FILE}: {first_fault(error)}.", "See docs/model_versions.md for the entries.") from error
    except ValueError as error:
        raise SettingsError(f"{FILE} is not valid TOML: {error}.", "Correct the file.") from error


def _read(file: Path) -> str | None:
    try:
        content = read_file(file, _MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}.", "Check its permissions.") from error
    if len(content) > _MAX_BYTES:
        raise SettingsError(f"{file} has more than {_MAX_BYTES} bytes.", "Shorten it.")
    return content.decode("utf-8", "replace")


# The supported part of TensorFlow Serving's message ModelServerConfig: a file descriptor in protobuf's text format.
_DESCRIPTOR: Final = """
name: "models_config.proto" package: "models_config" syntax: "proto3"
message_type { name: "Latest" field { name: "num_versions" number: 1 type: TYPE_UINT32 label: LABEL_OPTIONAL } }
message_type { name: "All" }
message_type { name: "Specific" field { name: "versions" number: 1 type: TYPE_INT64 label: LABEL_REPEATED } }
message_type {
  name: "Policy"
  field { name: "latest" number: 100 type_name: ".models_config.Latest" label: LABEL_OPTIONAL }
  field { name: "all" number: 101 type_name: ".models_config.All" label: LABEL_OPTIONAL }
  field { name: "specific" number: 102 type_name: ".models_config.Specific" label: LABEL_OPTIONAL }
}
message_type {
  name: "Label"
  field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "value" number: 2 type: TYPE_INT64 label: LABEL_OPTIONAL }
}
message_type {
  name: "Model"
  field { name: "name" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "base_path" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "model_platform" number: 4 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "model_version_policy" number: 7 type_name: ".models_config.Policy" label: LABEL_OPTIONAL }
  field { name: "version_labels" number: 8 type_name: ".models_config.Label" label: LABEL_REPEATED }
}
message_type {
  name: "Models"
  field { name: "config" number: 1 type_name: ".models_config.Model" label: LABEL_REPEATED }
}
message_type {
  name: "ModelServerConfig"
  field { name: "model_config_list" number: 1 type_name: ".models_config.Models" label: LABEL_OPTIONAL }
}
"""


def parse_models_config(text: str, folder: Path) -> Policies:
    """Parse a `models.config` of the repository in a folder. Raises SettingsError, naming the fault."""
    from google.protobuf import text_format

    config = _config_class()()
    try:
        text_format.Parse(text, config)
    except text_format.ParseError as error:
        raise SettingsError(
            f"{TENSORFLOW_FILE}: {error}.",
            "Supported are name, base_path, model_platform, policies and labels of models.",
        ) from error
    return policies_of(config, folder)


def policies_of(config: Any, folder: Path) -> Policies:
    """The policies in a message ModelServerConfig from a file or a request. Raises SettingsError, naming the model."""
    models: dict[str, ModelPolicy] = {}
    for model in config.model_config_list.config:
        if model.name in models:
            raise SettingsError(f"The model {model.name[:100]!r} is named twice.", "Name it once.")
        if model.base_path and (folder / model.base_path).resolve() != (folder / model.name).resolve():
            raise SettingsError(
                f"The base_path {model.base_path[:200]!r} is not the folder {model.name[:100]!r} of OCRSVC_MODELS.",
                "Leave out base_path, or move the model there.",
            )
        labels = model.version_labels
        pairs = labels.items() if hasattr(labels, "items") else ((label.key, label.value) for label in labels)
        try:
            models[model.name] = ModelPolicy(versions=_versions(model.model_version_policy), labels=dict(pairs))
        except ValidationError as error:
            raise SettingsError(f"The model {model.name[:100]!r}: {first_fault(error)}.", "Correct it.") from error
    try:
        return Policies(models=models, others=False)
    except ValidationError as error:
        raise SettingsError(f"The list of models: {first_fault(error)}.", "Use names of the repository.") from error


def _versions(policy: Any) -> Any:
    """Convert a version policy; without one, the newest version, as in TensorFlow Serving."""
    if policy.HasField("all"):
        return "all"
    if policy.HasField("specific"):
        return tuple(policy.specific.versions)
    return Newest(newest=policy.latest.num_versions or 1)


@cache
def _config_class() -> Any:
    """The class of message ModelServerConfig, in a separate pool, as client packages define it in the global pool."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_DESCRIPTOR, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("models_config.ModelServerConfig"))
