"""Model settings: the repository, the key of encrypted models, and how new versions are tested."""

from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, PositiveFloat, SecretStr, StringConstraints

from ocrsvc.settings.group import ListOf, MemoryAmount, Percentage, SettingsGroup, setting

# A model's name, optionally with a version (/1) or a label (:stable).
_MODEL: Final = "^[a-z0-9][a-z0-9._-]{0,63}(?:/[1-9][0-9]{0,8}|:[A-Za-z0-9][A-Za-z0-9._-]{0,63})?$"
ModelName = Annotated[str, StringConstraints(pattern=_MODEL)]
ModelNames = ListOf[ModelName]


class ModelSettings(SettingsGroup, title="Models"):
    """The model repository, and which models a worker loads."""

    models: Path | None = setting(
        None, "Model repository: a folder with NAME/VERSION/model.toml; by default only the built-in model ppocr/1."
    )
    models_state: Path | None = setting(
        None,
        "Folder for the models' state, such as test results and labels; by default one per repository in the user's "
        "cache folder.",
    )
    models_load: ModelNames = setting(
        ("default",),
        "Models that are loaded before a worker is ready: default (only the default model), all, or also these, as "
        "NAME, NAME/VERSION or NAME:LABEL. Others are loaded when a request names them.",
        accepted="default, all, or model names",
    )
    models_memory: MemoryAmount | None = setting(
        None,
        "Memory that the models loaded in one worker may take together, including children of "
        "OCRSVC_ISOLATION=process; the least recently used ones are unloaded for others. A percentage is of the "
        "machine's or container's memory; by default the models of all workers and one successor may fill half of it.",
        "bytes",
    )
    models_code: bool = setting(
        False,
        "Whether model versions may contain code that the service runs, such as libtr.so of the engine tr: then anyone "
        "who can write to OCRSVC_MODELS can run code in the service.",
    )
    model: ModelName = setting(
        "ppocr",
        "The default model, for requests that name none, if OCRSVC_MODELS is set.",
        accepted="NAME, NAME/VERSION or NAME:LABEL",
    )


class ModelKeySettings(SettingsGroup, title="Encrypted models"):
    """The key of encrypted models, from one of three sources."""

    # Secret, so it is excluded when settings are passed to other processes.
    models_key: Annotated[SecretStr | None, Field(exclude=True)] = setting(
        None,
        "The key of encrypted models; it is removed from the environment after it was read, and never shown.",
        accepted="32 bytes, as 64 hexadecimal digits or in base64, such as `ocrsvc models new-key` prints",
    )
    models_key_fd: int | None = setting(
        None, "File descriptor from which the key of encrypted models is read, at the start only.", between=(3, 2**20)
    )
    # Excluded when settings are passed to other processes: its arguments may contain credentials of a key server.
    models_key_command: Annotated[SecretStr | None, Field(exclude=True)] = setting(
        None,
        "Program with arguments that prints the key of encrypted models; it runs without a shell, at the start and at "
        "SIGHUP, for at most 10 s.",
        accepted="a command line",
    )


class ModelSwapSettings(SettingsGroup, title="New versions of models"):
    """How new model versions are found and tested while the service runs."""

    models_poll_s: float = setting(
        5.0,
        "Interval at which each worker polls OCRSVC_MODELS for added or removed versions; polling works on every file "
        "system, also over a network.",
        between=(0.1, 3600),
    )
    models_proof_s: PositiveFloat = setting(
        300.0,
        "Time in which a new version must open and read the reference pages in a test process, not counting waits for "
        "a processor; then it is refused.",
        le=3600,
    )
    models_proof_memory: MemoryAmount = setting(
        Percentage(25),
        "Memory of this test process; a version that needs more is refused.",
        "bytes",
        accepted="bytes with an optional unit such as 2GiB, or a percentage of the machine's or container's memory",
    )
