"""What stands in for the reader while doors are fuzzed? It decodes, as the real one, and then has its answer ready."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ocrsvc.imaging.decode import PixelLimits, decode
from ocrsvc.records import EngineInfo, Image, Line, Page, Reading, Timing


class DecodingReader:
    """What the doors need of a reader; whatever is an image has two lines."""

    ready = True

    def __init__(self) -> None:
        self._limits = PixelLimits(1_000_000)
        self._info = EngineInfo("ready", "none", "1", "cpu", "none", "none")

    def read(self, data: bytes, *_asked: object) -> Reading:
        """Two lines for whatever is an image."""
        image = self.look(data)
        box = ((0.0, 0.0), (9.0, 0.0), (9.0, 9.0), (0.0, 9.0))
        page = Page(image.width, image.height, 0, (Line("正品", 0.9, box), Line("'\"\\\n", 0.5, box)))
        return Reading(page, self._info, Timing(0.0, 0.0, 0.0, 0.0))

    def read_many(self, datas: Sequence[bytes], *_asked: object) -> list[Any]:
        """Each by itself."""
        return [self._read_or_error(data) for data in datas]

    def look(self, data: bytes) -> Image:
        """The decoded image."""
        return decode(data, self._limits, gray=True)

    def check_room(self, _priority: object) -> None:
        """There always is."""

    def describe(self) -> EngineInfo:
        """What the readings say, too."""
        return self._info

    def _read_or_error(self, data: bytes) -> Any:
        try:
            return self.read(data)
        except Exception as error:  # noqa: BLE001  one image's failure is one entry, as in the real reader
            return error
