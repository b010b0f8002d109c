"""The arbiter's part of encrypted models: it has the key before it forks, and workers inherit it."""

from __future__ import annotations

from ocrsvc.engines.model.encryption import ModelKey
from ocrsvc.engines.model.key_source import hide_variable, is_read_again, read_model_key
from ocrsvc.settings.settings import Settings


def open_model_key(settings: Settings, before: ModelKey | None, *, is_start: bool) -> ModelKey | None:
    """At the start and at each SIGHUP: the key of encrypted models, which is then in the environment no more.

    Args:
        settings: As they were read.
        before: The key so far, which stays where it cannot be read again.
        is_start: Whether this is the start.

    Raises:
        SettingsError: It cannot be read, or it does not decrypt a version that is to be loaded.
    """
    key = read_model_key(settings) if is_start or is_read_again(settings) else before
    hide_variable()
    if settings.models is not None and (is_start or _is_other(key, before)):
        from ocrsvc.models.repository import ModelRepository

        ModelRepository(settings.models, key).check_key()
    return key


def without_key(settings: Settings) -> Settings:
    """The settings as processes and threads have them: nothing of them is a secret of models."""
    return settings if settings.models_key is None else settings.model_copy(update={"models_key": None})


def _is_other(key: ModelKey | None, before: ModelKey | None) -> bool:
    return (key and key.id) != (before and before.id)
