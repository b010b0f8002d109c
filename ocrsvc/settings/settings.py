"""Every setting of the service in one class, which inherits the fields of each group, those of plug-ins included."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import cast

from pydantic import create_model

from ocrsvc.errors import SettingsError
from ocrsvc.registry import AdapterEntry, EngineEntry, EntryError, adapters, engines, output_formats, resolve
from ocrsvc.settings.group import SettingsGroup
from ocrsvc.settings.groups.access import AccessSettings
from ocrsvc.settings.groups.adapters import AdapterSettings
from ocrsvc.settings.groups.engine import EngineSettings
from ocrsvc.settings.groups.engine_fake import FakeEngineSettings
from ocrsvc.settings.groups.engine_ppocr import PpocrEngineSettings
from ocrsvc.settings.groups.engine_tr import TrEngineSettings
from ocrsvc.settings.groups.isolation import IsolationSettings
from ocrsvc.settings.groups.jobs import JobSettings
from ocrsvc.settings.groups.limits import LimitSettings
from ocrsvc.settings.groups.logging import LoggingSettings
from ocrsvc.settings.groups.masking import MaskingSettings
from ocrsvc.settings.groups.model_key import ModelKeySettings
from ocrsvc.settings.groups.model_swap import ModelSwapSettings
from ocrsvc.settings.groups.models import ModelSettings
from ocrsvc.settings.groups.outgoing import OutgoingSettings
from ocrsvc.settings.groups.result_cache import CacheSettings
from ocrsvc.settings.groups.service import ServiceSettings
from ocrsvc.settings.groups.tls import TlsSettings
from ocrsvc.settings.groups.traces import TraceSettings
from ocrsvc.settings.groups.workers import WorkerSettings


# pydantic takes the fields of the last base first: from the bottom up, this is the order in which settings are checked,
# listed and described.
class Settings(
    FakeEngineSettings,
    TraceSettings,
    LoggingSettings,
    MaskingSettings,
    CacheSettings,
    IsolationSettings,
    JobSettings,
    OutgoingSettings,
    LimitSettings,
    WorkerSettings,
    AccessSettings,
    AdapterSettings,
    TlsSettings,
    ServiceSettings,
    ModelSwapSettings,
    ModelKeySettings,
    ModelSettings,
    TrEngineSettings,
    PpocrEngineSettings,
    EngineSettings,
):
    """Every setting of the service, checked; frozen. What holds them at run time is of `settings_class()`."""


@cache
def settings_class() -> type[Settings]:
    """What settings are checked with: `Settings`, with the groups that entries of the registry name after its own.

    Raises:
        SettingsError: A plug-in cannot be used, or a setting of one has a name that is taken.
    """
    try:
        # They have no settings, but one that cannot be used stops the start as well.
        output_formats()
        groups = tuple(dict.fromkeys(_groups_of_entries()))
        _check_names(groups)
    except EntryError as error:
        raise SettingsError(str(error), "Mend or uninstall its package.") from error
    bases = cast("tuple[type[Settings], ...]", (*reversed(groups), Settings))
    return create_model("Settings", __base__=bases)


def _groups_of_entries() -> Iterator[type[SettingsGroup]]:
    entries: list[EngineEntry | AdapterEntry] = [*engines().values(), *adapters().values()]
    yield from (_group_of(entry) for entry in entries if entry.settings)


def _group_of(entry: EngineEntry | AdapterEntry) -> type[SettingsGroup]:
    group = resolve(entry.settings)
    if not isinstance(group, type) or not issubclass(group, SettingsGroup) or "title" not in vars(group):
        raise EntryError(f"{entry.settings}, the settings of {entry.name}, is no SettingsGroup with a title.")
    return group


def _check_names(groups: tuple[type[SettingsGroup], ...]) -> None:
    taken = {"config", *Settings.model_fields}
    for group in groups:
        if twice := sorted(taken.intersection(group.model_fields)):
            raise EntryError(f"{group.__module__}:{group.__name__} has settings whose names are taken: {twice}.")
        taken.update(group.model_fields)
