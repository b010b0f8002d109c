"""Settings of encrypted models: where their key comes from."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, SecretStr

from ocrsvc.settings.group import SettingsGroup, setting


class ModelKeySettings(SettingsGroup):
    """The key of encrypted models, from one of three places."""

    title = "Encrypted models"

    # What is handed to other processes goes without it.
    models_key: Annotated[SecretStr | None, Field(exclude=True)] = setting(
        None,
        "The key of encrypted models; it is taken out of the environment once it is read, and shown nowhere.",
        accepted="32 bytes, as 64 hexadecimal digits or in base64, such as `ocrsvc models new-key` prints",
    )
    models_key_fd: int | None = setting(
        None,
        "Number of an open file from which the key of encrypted models is read, at the start only.",
        ge=3,
        le=2**20,
    )
    # Its arguments may hold what opens a key server.
    models_key_command: Annotated[SecretStr | None, Field(exclude=True)] = setting(
        None,
        "Program that prints the key of encrypted models, with its arguments; it is run without a shell, at the start "
        "and at SIGHUP, and has 10 s.",
        accepted="a command line",
    )
