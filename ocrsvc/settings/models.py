"""Settings of models: where they are, how new versions prove themselves, and the key of encrypted ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, PositiveFloat, SecretStr, StringConstraints

from ocrsvc.settings.group import ListOf, MemoryAmount, Percentage, SettingsGroup, setting

# With a version or a label if need be.
_MODEL: Final = "^[a-z0-9][a-z0-9._-]{0,63}(?:/[1-9][0-9]{0,8}|:[A-Za-z0-9][A-Za-z0-9._-]{0,63})?$"
ModelName = Annotated[str, StringConstraints(pattern=_MODEL)]
ModelNames = ListOf[ModelName]


class ModelSettings(SettingsGroup, title="Models"):
    """Where models are, and which of them a worker holds."""

    models: Path | None = setting(
        None,
        "Folder of models, NAME/VERSION/ with model.toml each; by default there is only the built-in one, ppocr/1.",
    )
    models_state: Path | None = setting(
        None,
        "Folder for what is decided about the models while the service runs, such as verdicts and labels; by default "
        "one for each repository in the user's cache folder.",
    )
    models_load: ModelNames = setting(
        ("default",),
        "Models that are loaded before a worker is ready: the default one alone, all, or these as well, as NAME, "
        "NAME/VERSION or NAME:LABEL. Others are loaded when a request names them.",
        accepted="default, all, or names of models",
    )
    models_memory: MemoryAmount | None = setting(
        None,
        "Memory that the models loaded in one worker may take together, children of OCRSVC_ISOLATION=process included; "
        "the least recently used ones make room for others. A share is of the memory of the machine or container; by "
        "default such that the models of all workers and one successor fill half of that.",
        "bytes",
    )
    models_code: bool = setting(
        False,
        "Whether versions of models may hold programs that the service runs, as libtr.so for the engine tr: then who "
        "may write into OCRSVC_MODELS decides what it does.",
    )
    model: ModelName = setting(
        "ppocr",
        "The model that reads requests that name none, where OCRSVC_MODELS is set.",
        accepted="NAME, NAME/VERSION or NAME:LABEL",
    )


class ModelKeySettings(SettingsGroup, title="Encrypted models"):
    """The key of encrypted models, from one of three places."""

    # What is handed to other processes goes without it.
    models_key: Annotated[SecretStr | None, Field(exclude=True)] = setting(
        None,
        "The key of encrypted models; it is taken out of the environment once it is read, and shown nowhere.",
        accepted="32 bytes, as 64 hexadecimal digits or in base64, such as `ocrsvc models new-key` prints",
    )
    models_key_fd: int | None = setting(
        None,
        "Number of an open file from which the key of encrypted models is read, at the start only.",
        between=(3, 2**20),
    )
    # Its arguments may hold what opens a key server.
    models_key_command: Annotated[SecretStr | None, Field(exclude=True)] = setting(
        None,
        "Program that prints the key of encrypted models, with its arguments; it is run without a shell, at the start "
        "and at SIGHUP, and has 10 s.",
        accepted="a command line",
    )


class ModelSwapSettings(SettingsGroup, title="New versions of models"):
    """How a new version of a model gets to serve while the service runs."""

    models_poll_s: float = setting(
        5.0,
        "How often each worker looks at the folders of OCRSVC_MODELS for versions that have come or gone; that works "
        "on every file system, a network's too.",
        between=(0.1, 3600),
    )
    models_proof_s: PositiveFloat = setting(
        300.0,
        "Time that a new version has to open and read the reference pages, in a process of its own, without what that "
        "process waits for a processor; then it is refused.",
        le=3600,
    )
    models_proof_memory: MemoryAmount = setting(
        Percentage(25),
        "Memory that this process may take; a version that takes more is refused.",
        "bytes",
        accepted="bytes with an optional unit such as 2GiB, or a percentage of the machine's or container's memory",
    )
