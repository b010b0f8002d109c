"""The built-in recognizer of ppocr as a LineRecognizer: it reads single lines on the CPU, without the detector."""

from collections.abc import Sequence

from ocrsvc.engines.line_recognizer import LineText, RecognizerInfo
from ocrsvc.engines.model.description import Recognition
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.engines.ppocr.pipeline.recognition_batches import make_line_runner
from ocrsvc.engines.ppocr.pipeline.recognizer import Recognizer
from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache, default_folder
from ocrsvc.engines.ppocr.runtime.model_parts import RECOGNITION, built_in_part, read_dictionary
from ocrsvc.engines.ppocr.runtime.open_model import open_model
from ocrsvc.engines.ppocr.runtime.session import ModelRunner, SessionConfig
from ocrsvc.engines.ppocr.runtime.shared_threads import SharedThreads
from ocrsvc.results import Check, Pixels, no_check
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import LIBRARY_THREADS


class PpocrLineReader:
    """A LineReader that shares its session with other readers, and uses the calling thread only."""

    def __init__(self, model: ModelRunner, characters: Sequence[str]) -> None:
        self._threads = SharedThreads(1)
        self._recognizer = Recognizer(make_line_runner(model, self._threads), characters)
        self.crop_size = self._recognizer.crop_size

    def read(self, crops: Sequence[Pixels], check: Check = no_check) -> list[LineText]:
        """See engines.line_recognizer.LineReader."""
        with self._threads.page():
            return self._recognizer.read(crops, check)

    def close(self) -> None:
        """Do nothing: the session is freed when no reader uses it, and there is no other thread."""


class PpocrRecognizer:
    """The recognizer with its session. Raises EngineUnavailable, BadModel."""

    def __init__(self, cache: ModelCache) -> None:
        part = built_in_part(RECOGNITION)
        described, version = part.described, part.version
        assert isinstance(described, Recognition), "the part is a recognizer"
        self._model = open_model(part, SessionConfig("cpu", LIBRARY_THREADS), cache)
        self._characters = read_dictionary(part, self._model.metadata)
        self.info = RecognizerInfo(
            version.description.title, version.digest, self._model.provider, described.languages, described.direction
        )

    def open_reader(self) -> PpocrLineReader:
        """See engines.line_recognizer.LineRecognizer."""
        return PpocrLineReader(self._model, self._characters)


def open_ppocr_recognizer(settings: Settings, _model: ModelVersion | None) -> PpocrRecognizer:
    """Open the built-in recognizer. Raises EngineUnavailable, BadModel."""
    return PpocrRecognizer(ModelCache(settings.model_cache or default_folder()))
