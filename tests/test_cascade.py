"""The recognizer cascade: which texts of the tiny recognizer are kept, and which lines the small one rereads."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from ocrsvc.engines.ppocr.pipeline.cascade import CascadeRecognizer, is_trusted
from ocrsvc.engines.ppocr.pipeline.recognition_batches import LineImage, RecognizerOutput
from ocrsvc.engines.ppocr.pipeline.recognizer import Recognizer, Script
from ocrsvc.results import Decoder, ReadOptions


@pytest.mark.parametrize(
    ("text", "confidence", "trusted"),
    [
        ("Sats. only", 0.975, True),
        ("Sats. only", 0.97, False),
        ("14A", 0.999, False),  # the image may show "14 A"
        ("RM0.60", 0.999, False),
        ("共14条", 0.999, True),  # spaces next to Chinese are decided once per page
        ("", 0.0, False),
    ],
)
def test_a_confident_line_without_a_digit_beside_a_letter_is_kept(text: str, confidence: float, trusted: bool) -> None:
    assert is_trusted(text, confidence) is trusted


class Runner:
    """A model that reads each line as class 1 with a given probability, and records the lines' widths."""

    def __init__(self, probability: float) -> None:
        self.probability, self.widths = probability, list[int]()

    def map(self, decode: Callable[[RecognizerOutput], Any], lines: Sequence[LineImage], *_more: object) -> list[Any]:
        """See recognition_batches.SingleLineRunner."""
        self.widths += [line.width for line in lines]
        output = RecognizerOutput(np.array([1]), np.array([self.probability], np.float32))
        return [decode(output) for _ in lines]


@pytest.mark.parametrize(("sure", "expected", "left"), [(0.99, "sqq", [80]), (0.9, "sss", [320, 160, 80])])
def test_the_careful_recognizer_reads_narrow_and_uncertain_lines(sure: float, expected: str, left: list[int]) -> None:
    quick, careful = Runner(sure), Runner(0.99)
    tiny: Any = Recognizer(quick, ["", "q"])  # type: ignore[arg-type]  # a stand-in
    both = CascadeRecognizer(careful, ["", "s"], quick=tiny)  # type: ignore[arg-type]  # a stand-in
    found = both.read_line_images([LineImage(np.full((48, width), 255, np.uint8)) for width in (80, 160, 320)])
    assert "".join(line.text for line in found) == expected
    assert (quick.widths, careful.widths) == ([320, 160], left)


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
