"""The engine ppocr, the default: PP-OCRv6 small under ONNX Runtime, in a pipeline of our own."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import cv2

from ocrsvc.engines.contract import Driving
from ocrsvc.engines.ppocr.gpu.arrays import Imaging, find_arrays
from ocrsvc.engines.ppocr.gpu.page_view import GpuPageViewer, together_on_card
from ocrsvc.engines.ppocr.gpu.self_test import find_fault
from ocrsvc.engines.ppocr.handle import PageHandle
from ocrsvc.engines.ppocr.pipeline.detector import open_detector
from ocrsvc.engines.ppocr.pipeline.recognition_batches import Runs, RunsApart, RunsTogether, profiles
from ocrsvc.engines.ppocr.pipeline.recognizer import BeamRecogniser, Recogniser, read_characters
from ocrsvc.engines.ppocr.runtime import models
from ocrsvc.engines.ppocr.runtime.model_cache import Store, default_folder
from ocrsvc.engines.ppocr.runtime.open_model import open_sessions
from ocrsvc.engines.ppocr.runtime.providers import Device, OnCard, Precision, Provider
from ocrsvc.engines.ppocr.runtime.session import Runner, Running
from ocrsvc.engines.ppocr.runtime.session_pool import share
from ocrsvc.engines.ppocr.runtime.shared_threads import SharedThreads
from ocrsvc.records import Decoder, EngineInfo
from ocrsvc.serving.batcher import Limits
from ocrsvc.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan

LOG: Final = logging.getLogger("ocrsvc.ppocr")

MOST_LINES: Final = 64
"""Lines in one batch at most, however narrow: more gain nothing, and each waits for all."""

BATCH: Final = Limits(most_cost=32 * 48 * 320, most_items=MOST_LINES, longest_wait_s=0.002)
"""A batch of lines on a GPU: the pixels of 32 lines of 320 px, which wait 2 ms for each other."""

DISTRUSTED: Final = (
    "Pixels are prepared on the CPU and not by %s: on a page drawn to try it %s. Pages are read as they should be, but "
    "fewer of them a second. Check that driver, CUDA and cupy fit each other, and report this line; OCRSVC_IMAGING=cpu "
    "does without the card from the beginning."
)


@dataclass(frozen=True, slots=True)
class PpocrSettings:
    """What the engine needs to know.

    Attributes:
        device: Where it computes.
        run_threads: Threads inside one model run (1 leaves cores to others).
        hands: Model runs that may be under way at once: the engine threads of this process.
        store: Folder for optimised models; None keeps none.
        batch: How many lines a GPU reads in one run, and how long it waits for them.
        batched: Read lines in batches on the CPU too, which a GPU always does.
        provider, precision: With what it computes, and how.
        streams: Runs of one model under way on a card at once.
        card_arena_bytes: What each of them may take of the card; None for what it has.
        imaging: Where pixels are prepared for models on a GPU; "numpy" runs the card's code in memory, for `batched`.
    """

    device: Device = "auto"
    run_threads: int = 1
    hands: int = 1
    store: Path | None = None
    batch: Limits = BATCH
    batched: bool = False
    provider: Provider = "auto"
    precision: Precision = "auto"
    streams: int = 1
    card_arena_bytes: int | None = None
    imaging: Imaging = "auto"


class PpocrEngine:
    """The loaded models. Handles are cheap and share the sessions, whose runs may overlap.

    Raises:
        EngineUnavailable: A model is missing, or the device cannot be used.
    """

    driving = Driving()

    def __init__(self, settings: PpocrSettings) -> None:
        cv2.setNumThreads(settings.run_threads)
        running, store = _running(settings), Store(settings.store)
        recognition = _open_recognition(running, settings.batch, store)
        self._crew = SharedThreads(settings.hands if recognition.device == "cpu" else 1)
        self._detector = open_detector(running, store, self._crew)
        self._runs = _make_runs(recognition, self._crew, settings)
        characters = read_characters(recognition.metadata)
        self._readers = _make_recognisers(self._runs, characters)
        self._card_runs: Runs | None = None
        self._on_card = self._open_on_card(recognition, settings, characters)
        precision = _precision(self._detector.precision, recognition.precision)
        self._info = EngineInfo(
            "ppocr", models.NAME, models.version(), self._detector.device, precision, self._provider()
        )

    def describe(self) -> EngineInfo:
        """See engines.base.Engine."""
        return self._info

    def open_handle(self) -> PageHandle:
        """See engines.base.Engine."""
        return PageHandle(self._detector, self._readers, self._crew, on_card=self._on_card)

    def close(self) -> None:
        """End the threads; the sessions go with the last reference."""
        for runs in (self._runs, self._card_runs):
            if runs is not None:
                runs.close()
        self._crew.close()

    def _open_on_card(
        self, session: Runner, settings: PpocrSettings, characters: Sequence[str]
    ) -> GpuPageViewer | None:
        """The card in front of the models, if there is one and it reads what is read without it."""
        card = find_arrays(settings.imaging, session.device)
        if card is None:
            return None
        runs = RunsTogether(session, settings.batch, len(session.sessions), together_on_card(card, session))
        on_card = GpuPageViewer(card, self._detector, _make_recognisers(runs, characters))
        fault = find_fault(on_card.open, PageHandle(self._detector, self._readers, self._crew).open_in_memory)
        if fault is None:
            self._card_runs = runs
            LOG.info("Pixels are prepared by %s.", card.name)
            return on_card
        runs.close()
        LOG.warning(DISTRUSTED, card.name, fault)
        return None

    def _provider(self) -> str:
        """What runs the models and, on a GPU, what prepares pixels for them."""
        imaging = self._on_card.card.name if self._on_card else "the CPU"
        on_cpu = self._detector.device == "cpu" and self._on_card is None
        return self._detector.provider if on_cpu else f"{self._detector.provider}, pixels prepared by {imaging}"


def _make_recognisers(runs: Runs, characters: Sequence[str]) -> dict[Decoder, Recogniser]:
    return {"greedy": Recogniser(runs, characters), "beam": BeamRecogniser(runs, characters)}


def _precision(detection: str, recognition: str) -> str:
    """What is told about the two models together."""
    return detection if detection == recognition else f"{detection} detection, {recognition} recognition"


def _running(settings: PpocrSettings) -> Running:
    return Running(
        settings.device,
        settings.run_threads,
        batched=settings.batched,
        provider=settings.provider,
        precision=settings.precision,
        card=OnCard(settings.streams, settings.card_arena_bytes),
    )


def _open_recognition(running: Running, batch: Limits, store: Store) -> Runner:
    """The recogniser; on a card whatever is larger than a batch gives its memory back."""
    card = replace(running.card, kept_values=3 * batch.most_cost, profiles=profiles(batch))
    return share(open_sessions(models.RECOGNITION, replace(running, card=card), store))


def _make_runs(recognition: Runner, crew: SharedThreads, settings: PpocrSettings) -> Runs:
    if not recognition.batched:
        return RunsApart(recognition, crew)
    together = RunsTogether(recognition, settings.batch, runners=len(recognition.sessions))
    together.warm_up()
    return together


def open_ppocr(settings: Settings, plan: ThreadPlan) -> PpocrEngine:
    """The engine as the settings and the thread plan want it. Raises EngineUnavailable."""
    return PpocrEngine(
        PpocrSettings(
            settings.device,
            plan.library_threads,
            plan.engine_threads,
            settings.model_cache or default_folder(),
            Limits(settings.batch_pixels, MOST_LINES, settings.batch_wait_s),
            provider=settings.provider,
            precision=settings.precision,
            streams=settings.gpu_streams,
            card_arena_bytes=settings.gpu_arena_bytes,
            imaging=settings.imaging,
        )
    )
