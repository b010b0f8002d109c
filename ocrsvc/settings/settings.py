"""Every setting of the service in one class, which inherits the fields of each group."""

from __future__ import annotations

from ocrsvc.settings.groups.adapters import AdapterSettings
from ocrsvc.settings.groups.engine import EngineSettings
from ocrsvc.settings.groups.engine_fake import FakeEngineSettings
from ocrsvc.settings.groups.engine_ppocr import PpocrEngineSettings
from ocrsvc.settings.groups.engine_tr import TrEngineSettings
from ocrsvc.settings.groups.isolation import IsolationSettings
from ocrsvc.settings.groups.jobs import JobSettings
from ocrsvc.settings.groups.limits import LimitSettings
from ocrsvc.settings.groups.logging import LoggingSettings
from ocrsvc.settings.groups.result_cache import CacheSettings
from ocrsvc.settings.groups.service import ServiceSettings
from ocrsvc.settings.groups.workers import WorkerSettings


# pydantic takes the fields of the last base first: from the bottom up, this is the order in which settings are checked,
# listed and described.
class Settings(
    FakeEngineSettings,
    LoggingSettings,
    CacheSettings,
    IsolationSettings,
    JobSettings,
    LimitSettings,
    WorkerSettings,
    AdapterSettings,
    ServiceSettings,
    TrEngineSettings,
    PpocrEngineSettings,
    EngineSettings,
):
    """Every setting of the service, checked; frozen."""
