"""The recognizer cascade: which texts of the tiny recognizer are kept, and which lines the small one rereads."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ocrsvc.engines.line_recognizer import Path
from ocrsvc.engines.ppocr.pipeline.cascade import CascadeRecognizer, is_trusted
from ocrsvc.engines.ppocr.pipeline.recognition_batches import LineImage, RecognizerOutput
from ocrsvc.engines.ppocr.pipeline.recognizer import Recognizer, Script
from ocrsvc.results import Decoder, ReadOptions


@pytest.mark.parametrize(
    ("text", "sure", "space", "gap_px", "trusted"),
    [
        ("Sats. only", 0.975, 0.9, 0, True),
        ("Sats. only", 0.97, 0.99, 12, False),
        ("Sats. only", 0.99, 0.5, 12, True),
        ("Sat s.only", 0.99, 0.5, 4, False),
        ("14A", 0.999, 0.9, 0, False),  # the image may show "14 A"
        ("RM0.60", 0.999, 0.9, 0, False),
        ("共14条", 0.999, 0.9, 0, True),  # spaces next to Chinese are decided once per page
        ("", 0.0, 0.0, 0, False),
        (" ", 0.0, 0.999, 12, False),
    ],
)
def test_confident_characters_and_visible_spaces_are_kept(
    text: str, sure: float, space: float, gap_px: int, trusted: bool
) -> None:
    steps, crop = np.arange(len(text), dtype=np.intp), np.full((48, 16 * len(text)), 255, np.uint8)
    crop[10:38] = 0
    crop[:, ::8] = 255  # a row of ink without gaps would be a ruled line
    for step in np.flatnonzero(~(visible := np.array([not character.isspace() for character in text], bool))):
        crop[:, 16 * step : 16 * step + gap_px] = 255
    probabilities = np.array([space if character.isspace() else sure for character in text])
    path = Path(list(text), steps, steps, len(text), 0.0, probabilities)
    assert is_trusted(path, visible, lambda: crop) is trusted


class Runner:
    """A model that reads each line as class 1 with a given probability, and records the lines' widths."""

    def __init__(self, probability: float) -> None:
        self.probability, self.widths = probability, list[int]()

    def map(self, decode: Callable[[RecognizerOutput], Any], lines: Sequence[LineImage], *_more: object) -> list[Any]:
        self.widths += [line.width for line in lines]
        output = RecognizerOutput(np.array([1]), np.array([self.probability], np.float32))
        return [decode(output) for _ in lines]


@pytest.mark.parametrize(("sure", "expected", "left"), [(0.99, "sqq", [64]), (0.9, "sss", [320, 160, 64])])
def test_the_careful_recognizer_reads_narrow_and_uncertain_lines(sure: float, expected: str, left: list[int]) -> None:
    quick, careful = Runner(sure), Runner(0.99)
    tiny: Any = Recognizer(quick, ["", "q"])  # type: ignore[arg-type]  # a stand-in
    both = CascadeRecognizer(careful, ["", "s"], quick=tiny)  # type: ignore[arg-type]  # a stand-in
    found = both.read_line_images([LineImage(np.full((48, width), 255, np.uint8)) for width in (64, 160, 320)])
    assert "".join(line.text for line in found) == expected
    assert (quick.widths, careful.widths) == ([320, 160], left)


def test_a_kept_line_has_the_confidence_of_its_visible_characters() -> None:
    output = RecognizerOutput(np.array([1, 2, 1]), np.array([0.98, 0.5, 0.98], np.float32))
    runner: Any = SimpleNamespace(map=lambda decode, lines, *_more: [decode(output) for _ in lines])
    crop = np.tile(np.array([0] * 7 + [255], np.uint8), (48, 20))
    crop[:10], crop[38:], crop[:, 55:105] = 255, 255, 255
    tiny = Recognizer(runner, ["", "q", " "])
    [found] = CascadeRecognizer(runner, ["", "s", " "], quick=tiny).read_line_images([LineImage(crop)])
    assert found.text == "q q"
    assert found.confidence == pytest.approx(0.98)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (ReadOptions(), "cascade"),
        (ReadOptions(tier="small"), "careful"),
        (ReadOptions(spaces="model"), "careful"),
        (ReadOptions(tier="small", decoder="beam"), "beam"),
    ],
)
def test_tier_small_and_model_spaces_skip_the_tiny_recognizer(options: ReadOptions, name: str) -> None:
    readers: dict[Decoder, Any] = {"greedy": "cascade", "beam": "beam"}
    careful: Any = "careful"
    assert Script(readers, careful=careful).reader(options) == name
    assert Script(readers).reader(options) == readers[options.decoder]
