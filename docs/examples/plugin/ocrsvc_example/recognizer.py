"""The line recognizer: a CTC model of your own in ONNX format, with its dictionary in the property `character`."""

from collections.abc import Sequence

import numpy as np
import onnxruntime as ort

from ocrsvc.engines.line_recognizer import LineText, RecognizerInfo, crop_of_height, path_at
from ocrsvc.errors import EngineUnavailable
from ocrsvc.results import Check, Pixels, no_check
from ocrsvc_example.entries import CtcSettings

HEIGHT_PX = 48


class CtcRecognizer:
    """See ocrsvc.engines.line_recognizer.LineRecognizer; runs may overlap, so all threads share one reader."""

    def __init__(self, settings: CtcSettings, _model: object) -> None:
        if settings.ctc_model is None:
            raise EngineUnavailable("OCRSVC_CTC_MODEL is not set.", "Name the ONNX file of a recognizer.")
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        try:
            self._session = ort.InferenceSession(str(settings.ctc_model), options, providers=["CPUExecutionProvider"])
            self._characters = self._session.get_modelmeta().custom_metadata_map["character"].split("\n")
        except Exception as error:
            raise EngineUnavailable(f"OCRSVC_CTC_MODEL={settings.ctc_model} cannot be used: {error}.") from error
        self._input = self._session.get_inputs()[0].name
        self.info = RecognizerInfo("ctc", str(settings.ctc_model), "ONNX Runtime")

    def open_reader(self) -> "CtcRecognizer":
        """This recognizer."""
        return self

    def close(self) -> None:
        """Do nothing: the threads share the model."""

    def crop_size(self, along: float, across: float) -> tuple[int, int]:
        """Width and height of the crop for a line of this length and height on the page."""
        return crop_of_height(along, across, HEIGHT_PX)

    def read(self, crops: Sequence[Pixels], check: Check = no_check) -> list[LineText]:
        """Read crops of lines, one after the other."""
        return [self._read(crop, check) for crop in crops]

    def _read(self, crop: Pixels, check: Check) -> LineText:
        check()
        colours = crop if crop.ndim == 3 else np.repeat(crop[..., None], 3, axis=2)
        tensor = (colours.astype(np.float32) / 127.5 - 1).transpose(2, 0, 1)[None]
        shares = self._session.run(None, {self._input: tensor})[0][0]
        best = shares.argmax(axis=1)
        # Class 0 is the blank, the last one the space. A character begins where the class changes.
        first = np.flatnonzero((best > 0) & (best != np.append(0, best[:-1])))
        characters = [(*self._characters, " ")[number - 1] for number in best[first]]
        sure = shares[first, best[first]]
        path = path_at(characters, ((first + 0.5) / len(best)).tolist(), sure.tolist(), crop.shape[1])
        return LineText("".join(characters), float(sure.mean()) if characters else 0.0, path)
