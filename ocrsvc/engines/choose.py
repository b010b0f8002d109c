"""Which engine the settings name; imports only that one."""

from __future__ import annotations

from ocrsvc.engines.base import Engine
from ocrsvc.plan import ThreadPlan
from ocrsvc.settings import Settings


def open_engine(settings: Settings, plan: ThreadPlan) -> Engine:
    """Load the engine that OCRSVC_ENGINE names. Call it in the process that will read, after the fork.

    Raises:
        EngineUnavailable: It cannot be opened on this machine; the remedy says what to do.
    """
    return {"ppocr": _open_ppocr, "tr": _open_tr, "tr_crnn": _open_tr_crnn, "fake": _open_fake}[settings.engine](
        settings, plan
    )


def _open_ppocr(settings: Settings, plan: ThreadPlan) -> Engine:
    from ocrsvc.engines.ppocr.engine import PpocrEngine, PpocrSettings
    from ocrsvc.engines.ppocr.store import default_folder

    store = settings.model_cache or default_folder()
    return PpocrEngine(PpocrSettings(settings.device, plan.library_threads, plan.engine_threads, store))


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
