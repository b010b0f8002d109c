"""The class of all settings, which inherits the fields of every group, plug-ins' groups included."""

from functools import cache
from typing import cast

from pydantic import create_model

from ocrsvc.errors import SettingsError
from ocrsvc.plugins import AdapterEntry, EngineEntry, EntryError, adapters, engines, output_formats, resolve
from ocrsvc.settings import engine, models, service, workers_and_limits
from ocrsvc.settings.group import SettingsGroup


# pydantic takes the fields of the last base class first, so settings are checked and listed from the bottom up.
class Settings(
    engine.FakeEngineSettings,
    service.TraceSettings,
    service.LoggingSettings,
    workers_and_limits.MaskingSettings,
    workers_and_limits.CacheSettings,
    engine.IsolationSettings,
    workers_and_limits.JobSettings,
    service.OutgoingSettings,
    workers_and_limits.LimitSettings,
    workers_and_limits.WorkerSettings,
    service.AccessSettings,
    service.AdapterSettings,
    service.TlsSettings,
    service.ServiceSettings,
    models.ModelSwapSettings,
    models.ModelKeySettings,
    models.ModelSettings,
    engine.RemoteEngineSettings,
    engine.TrEngineSettings,
    engine.PpocrEngineSettings,
    engine.EngineSettings,
):
    """All settings, checked and frozen. Create instances with `settings_class()`, which adds plug-ins' settings."""


@cache
def settings_class() -> type[Settings]:
    """The subclass of `Settings` that has the plug-ins' groups too.

    Raises SettingsError if a plug-in cannot be used, or one of its settings has a name that is taken.
    """
    try:
        # Output formats have no settings, but are loaded here so that an unusable one stops the start too.
        output_formats()
        entries: list[EngineEntry | AdapterEntry] = [*engines().values(), *adapters().values()]
        groups = tuple(dict.fromkeys(_group_of(entry) for entry in entries if entry.settings))
        _check_names(groups)
    except EntryError as error:
        raise SettingsError(str(error), "Fix or uninstall its package.") from error
    bases = cast("tuple[type[Settings], ...]", (*reversed(groups), Settings))
    return create_model("Settings", __base__=bases)


def _group_of(entry: EngineEntry | AdapterEntry) -> type[SettingsGroup]:
    group = resolve(entry.settings)
    if not isinstance(group, type) or not issubclass(group, SettingsGroup) or "title" not in group.model_config:
        raise EntryError(f"{entry.settings}, the settings of {entry.name}, is no SettingsGroup with a title.")
    return group


def _check_names(groups: tuple[type[SettingsGroup], ...]) -> None:
    taken = {"config", *Settings.model_fields}
    for group in groups:
        if twice := sorted(taken.intersection(group.model_fields)):
            raise EntryError(f"{group.__module__}:{group.__name__} has settings whose names are taken: {twice}.")
        taken.update(group.model_fields)
