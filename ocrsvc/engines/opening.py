"""Opens the engine that the settings name, in this process or in child processes; imports only that engine."""

from __future__ import annotations

from ocrsvc.engines.contract import Engine
from ocrsvc.engines.page_analysis import AnalysingEngine
from ocrsvc.errors import EngineUnavailable
from ocrsvc.registry import EntryError, engines, resolve
from ocrsvc.serving.crash_denylist import CrashDenylist
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan


def open_engine(settings: Settings, plan: ThreadPlan, denylist: CrashDenylist | None = None) -> Engine:
    """Open the engine that OCRSVC_ENGINE names, where OCRSVC_ISOLATION says. Call it after the fork.

    Args:
        settings: The effective settings.
        plan: Of this process.
        denylist: What all workers share; None makes one for this process. Only for isolated engines.

    Raises:
        EngineUnavailable: It cannot be opened on this machine; the remedy says what to do.
    """
    if settings.isolation == "thread":
        return open_engine_in_process(settings, plan)
    from ocrsvc.engines.isolated.engine import IsolatedEngine

    denylist = denylist or CrashDenylist(settings.quarantine_size, settings.quarantine_s)
    return IsolatedEngine(settings, plan, denylist)


def open_engine_in_process(settings: Settings, plan: ThreadPlan) -> Engine:
    """Load the engine in this process, whatever OCRSVC_ISOLATION says.

    Raises:
        EngineUnavailable: It cannot be opened on this machine; the remedy says what to do.
    """
    try:
        opener = resolve(engines()[settings.engine].opener)
    except EntryError as error:
        raise EngineUnavailable(str(error)) from error
    return AnalysingEngine(opener(settings, plan))
