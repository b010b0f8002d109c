"""TensorFlow Serving's list of models: `models.config`, protobuf as text, and the same message of a reload request.

    model_config_list {
      config {
        name: "ppocr"
        base_path: "/models/ppocr"
        model_platform: "ocrsvc"
        model_version_policy { specific { versions: 1 versions: 2 } }
        version_labels { key: "stable" value: 1 }
      }
    }

Models that it does not name are not wanted. A model's base_path is its folder in the repository.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from pydantic import ValidationError

from ocrsvc.errors import SettingsError
from ocrsvc.model_serving.policy import TENSORFLOW_FILE, ModelPolicy, Newest, Policies, first_fault

_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {"string": _FIELD.TYPE_STRING, "int64": _FIELD.TYPE_INT64, "uint32": _FIELD.TYPE_UINT32}
# By message, each field: its number, its type (a dot in front of a message's name), and * where it is repeated.
_MESSAGES: Final[dict[str, dict[str, tuple[int, str]]]] = {
    "Latest": {"num_versions": (1, "uint32")},
    "All": {},
    "Specific": {"versions": (1, "int64*")},
    "VersionPolicy": {"latest": (100, ".Latest"), "all": (101, ".All"), "specific": (102, ".Specific")},
    "Label": {"key": (1, "string"), "value": (2, "int64")},
    "ModelConfig": {
        "name": (1, "string"),
        "base_path": (2, "string"),
        "model_platform": (4, "string"),
        "model_version_policy": (7, ".VersionPolicy"),
        "version_labels": (8, ".Label*"),
    },
    "ModelConfigList": {"config": (1, ".ModelConfig*")},
    "ModelServerConfig": {"model_config_list": (1, ".ModelConfigList")},
}
_PACKAGE: Final = "models_config"


def parse_models_config(text: str, folder: Path) -> Policies:
    """What a `models.config` says of the repository in a folder. Raises SettingsError, which names what is wrong."""
    config = _config_class()()
    try:
        text_format.Parse(text, config)
    except text_format.ParseError as error:
        raise SettingsError(
            f"{TENSORFLOW_FILE}: {error}.", "Taken are name, base_path, model_platform, policies and labels of models."
        ) from error
    return policies_of(config, folder)


def policies_of(config: Any, folder: Path) -> Policies:
    """What a message ModelServerConfig says. Raises SettingsError, which names the model that is wrong."""
    models: dict[str, ModelPolicy] = {}
    for model in config.model_config_list.config:
        if model.name in models:
            raise SettingsError(f"The model {model.name[:100]!r} is named twice.", "Name it once.")
        _check_place(model, folder)
        try:
            models[model.name] = _policy(model)
        except ValidationError as error:
            raise SettingsError(f"The model {model.name[:100]!r}: {first_fault(error)}.", "Correct it.") from error
    try:
        return Policies(models=models, others=False)
    except ValidationError as error:
        raise SettingsError(f"The list of models: {first_fault(error)}.", "Use names of the repository.") from error


def _policy(model: Any) -> ModelPolicy:
    """Raises ValidationError."""
    labels = model.version_labels
    pairs = labels.items() if hasattr(labels, "items") else ((label.key, label.value) for label in labels)
    return ModelPolicy(versions=_versions(model.model_version_policy), labels=dict(pairs))


def _versions(policy: Any) -> Any:
    """What a version policy wants, the newest version without one, as TensorFlow Serving does."""
    if policy.HasField("all"):
        return "all"
    if policy.HasField("specific"):
        return tuple(policy.specific.versions)
    return Newest(newest=policy.latest.num_versions or 1)


def _check_place(model: Any, folder: Path) -> None:
    """Raises SettingsError unless a base_path, if any, is the model's folder in the repository."""
    if not model.base_path:
        return
    wanted = folder / model.name
    if (folder / model.base_path).resolve() != wanted.resolve():
        raise SettingsError(
            f"The base_path {model.base_path[:200]!r} is not the folder {model.name[:100]!r} of OCRSVC_MODELS.",
            "Leave it out, or put the model there.",
        )


@cache
def _config_class() -> Any:
    """The class of the file's message, in a pool of its own: clients' packages have it in the global one."""
    file = descriptor_pb2.FileDescriptorProto(name="models_config.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            _add_field(message, field, number, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.ModelServerConfig"))


def _add_field(message: Any, name: str, number: int, kind: str) -> None:
    label = _FIELD.LABEL_REPEATED if kind.endswith("*") else _FIELD.LABEL_OPTIONAL
    field = message.field.add(name=name, number=number, label=label)
    kind = kind.removesuffix("*")
    if kind.startswith("."):
        field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{_PACKAGE}{kind}"
    else:
        field.type = _SCALARS[kind]
