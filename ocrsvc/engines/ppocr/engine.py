"""The default engine: PP-OCRv6 small under ONNX Runtime, in our own pipeline."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import cv2

from ocrsvc.engines.base import Driving
from ocrsvc.engines.lines import LineReader
from ocrsvc.engines.ppocr import models
from ocrsvc.engines.ppocr.crew import Crew
from ocrsvc.engines.ppocr.detector import open_detector
from ocrsvc.engines.ppocr.handle import PageHandle
from ocrsvc.engines.ppocr.lanes import share
from ocrsvc.engines.ppocr.providers import Device, OnCard, Precision, Provider
from ocrsvc.engines.ppocr.recognise import BeamRecogniser, Recogniser, read_characters
from ocrsvc.engines.ppocr.runs import Runs, RunsApart, RunsTogether, profiles
from ocrsvc.engines.ppocr.session import Runner, Running, open_sessions
from ocrsvc.engines.ppocr.store import Store
from ocrsvc.records import Decoder, EngineInfo
from ocrsvc.serving.batcher import Limits

MOST_LINES: Final = 64
"""Lines in one batch at most, however narrow: more gain nothing, and each waits for all."""

BATCH: Final = Limits(most_cost=32 * 48 * 320, most_items=MOST_LINES, longest_wait_s=0.002)
"""A batch of lines on a GPU: the pixels of 32 lines of 320 px, which wait 2 ms for each other."""


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
        self._crew = Crew(settings.hands if recognition.device == "cpu" else 1)
        self._detector = open_detector(running, store, self._crew)
        self._runs = _make_runs(recognition, self._crew, settings)
        characters = read_characters(recognition.metadata)
        self._readers: dict[Decoder, LineReader] = {
            "greedy": Recogniser(self._runs, characters),
            "beam": BeamRecogniser(self._runs, characters),
        }
        precision = _precision(self._detector.precision, recognition.precision)
        self._info = EngineInfo(
            "ppocr", models.NAME, models.version(), self._detector.device, precision, self._detector.provider
        )

    def describe(self) -> EngineInfo:
        """See engines.base.Engine."""
        return self._info

    def open_handle(self) -> PageHandle:
        """See engines.base.Engine."""
        return PageHandle(self._detector, self._readers, self._crew)

    def close(self) -> None:
        """End the threads; the sessions go with the last reference."""
        self._runs.close()
        self._crew.close()


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


def _make_runs(recognition: Runner, crew: Crew, settings: PpocrSettings) -> Runs:
    if not recognition.batched:
        return RunsApart(recognition, crew)
    together = RunsTogether(recognition, settings.batch, runners=len(recognition.sessions))
    together.warm_up()
    return together
