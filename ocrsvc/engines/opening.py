"""Which engine the settings name, and whether it runs in this process or in children; imports only that one."""

from __future__ import annotations

from ocrsvc.engines.contract import Engine
from ocrsvc.serving.batcher import Limits
from ocrsvc.serving.crash_denylist import CrashDenylist
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan


def open_engine(settings: Settings, plan: ThreadPlan, quarantine: CrashDenylist | None = None) -> Engine:
    """Open the engine that OCRSVC_ENGINE names, where OCRSVC_ISOLATION says. Call it after the fork.

    Args:
        settings: The effective settings.
        plan: Of this process.
        quarantine: What all workers share; None makes one for this process. Only for isolated engines.

    Raises:
        EngineUnavailable: It cannot be opened on this machine; the remedy says what to do.
    """
    if settings.isolation == "thread":
        return open_own_engine(settings, plan)
    from ocrsvc.engines.isolated.engine import IsolatedEngine, limits_for

    quarantine = quarantine or CrashDenylist(settings.quarantine_size, settings.quarantine_s)
    return IsolatedEngine(settings, plan, quarantine, limits_for(settings, plan))


def open_own_engine(settings: Settings, plan: ThreadPlan) -> Engine:
    """Load the engine in this process, whatever OCRSVC_ISOLATION says.

    Raises:
        EngineUnavailable: It cannot be opened on this machine; the remedy says what to do.
    """
    return {"ppocr": _open_ppocr, "tr": _open_tr, "tr_crnn": _open_tr_crnn, "fake": _open_fake}[settings.engine](
        settings, plan
    )


def _open_ppocr(settings: Settings, plan: ThreadPlan) -> Engine:
    from ocrsvc.engines.ppocr.engine import MOST_LINES, PpocrEngine, PpocrSettings
    from ocrsvc.engines.ppocr.runtime.model_cache import default_folder

    store = settings.model_cache or default_folder()
    batch = Limits(settings.batch_pixels, MOST_LINES, settings.batch_wait_s)
    return PpocrEngine(
        PpocrSettings(
            settings.device,
            plan.library_threads,
            plan.engine_threads,
            store,
            batch,
            provider=settings.provider,
            precision=settings.precision,
            streams=settings.gpu_streams,
            card_arena_bytes=settings.gpu_arena_bytes,
            imaging=settings.imaging,
        )
    )


def _open_tr(settings: Settings, _plan: ThreadPlan) -> Engine:
    from ocrsvc.engines.tr.engine import TrEngine, TrSettings

    return TrEngine(TrSettings(settings.tr_home, settings.tr_shared_sessions, settings.device))


def _open_tr_crnn(settings: Settings, plan: ThreadPlan) -> Engine:
    from ocrsvc.engines.tr_crnn.engine import TrCrnnEngine

    return TrCrnnEngine(settings.device, plan.library_threads)


def _open_fake(settings: Settings, _plan: ThreadPlan) -> Engine:
    from ocrsvc.engines.fake import FakeEngine, FakeSettings

    return FakeEngine(
        FakeSettings(
            latency_s=settings.fake_latency_s,
            burn_s=settings.fake_burn_s,
            leak_bytes=settings.fake_leak_bytes,
            fault=settings.fake_fault,
            fault_on=frozenset(settings.fake_fault_on),
            warm_up_s=settings.fake_warm_up_s,
        )
    )
