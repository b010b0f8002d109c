"""Opens a model's engine, or the one that the settings name, in this process or in child processes.

Only that engine is imported.
"""

from __future__ import annotations

from ocrsvc.engines.contract import Engine
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.engines.model_settings import settings_of_model
from ocrsvc.engines.page_analysis import AnalysingEngine
from ocrsvc.errors import EngineUnavailable
from ocrsvc.registry import EntryError, engines, resolve
from ocrsvc.serving.crash_denylist import CrashDenylist
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan


def open_engine(
    settings: Settings, plan: ThreadPlan, denylist: CrashDenylist | None = None, model: ModelVersion | None = None
) -> Engine:
    """Open an engine where OCRSVC_ISOLATION says. Call it after the fork.

    Args:
        settings: The effective settings.
        plan: Of this process.
        denylist: What all workers share; None makes one for this process. Only for isolated engines.
        model: What the engine reads with; with None it is the engine that OCRSVC_ENGINE names, with its own model.

    Raises:
        EngineUnavailable: It cannot be opened on this machine; the remedy says what to do.
        BadModel: The model is damaged, or described wrongly.
    """
    if settings.isolation == "thread":
        return open_engine_in_process(settings, plan, model)
    from ocrsvc.engines.isolated.engine import IsolatedEngine

    if model is not None:
        settings = settings_of_model(settings, model)
    denylist = denylist or CrashDenylist(settings.quarantine_size, settings.quarantine_s)
    return IsolatedEngine(settings, plan, denylist, model)


def open_engine_in_process(settings: Settings, plan: ThreadPlan, model: ModelVersion | None = None) -> Engine:
    """Load an engine in this process, whatever OCRSVC_ISOLATION says.

    Args:
        settings, plan, model: As for `open_engine`.

    Raises:
        EngineUnavailable, BadModel: As there.
    """
    if model is not None:
        settings = settings_of_model(settings, model)
    entry = engines()[settings.engine]
    try:
        opener = resolve(entry.opener)
    except EntryError as error:
        raise EngineUnavailable(str(error)) from error
    return AnalysingEngine(opener(settings, plan, model) if entry.takes_model else opener(settings, plan), model)
