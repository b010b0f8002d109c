"""Which image is blamed when the engine's process ends; the process is a script of how each read ends."""

from __future__ import annotations

from collections.abc import Sequence

from isolation_support import a_task, crc, noise, summary

from ocrsvc.engines.isolated.child import ChildLost
from ocrsvc.engines.isolated.crash_handling import CrashHandling
from ocrsvc.errors import ImageCrashesEngine, OcrsvcError
from ocrsvc.results import Box, Line, Page, Pixels, ReadTask
from ocrsvc.serving.crash_denylist import CrashDenylist

BAD, GOOD = noise(1), noise(2)
_BOX: Box = ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0))


class Engine:
    """Dies over BAD, beside whatever it stands, and is killed by somebody else as often as `kills` says."""

    def __init__(self) -> None:
        self.kills = 0
        self.deaths = 0

    def ask(self, tasks: Sequence[ReadTask]) -> list[Page | OcrsvcError]:
        """The pages; raises ChildLost."""
        texts = [crc(task.image.pixels) for task in tasks]
        is_killed = len(tasks) == 1 and self.kills > 0 and crc(BAD) not in texts
        self.kills -= is_killed
        if is_killed or crc(BAD) in texts:
            self.deaths += 1
            raise ChildLost("SIGKILL", is_blamed=True)
        return [Page(30, 20, 0, tuple(Line(text, 0.9, _BOX) for text in ("30x20", text))) for text in texts]


def read(engine: Engine, denylist: CrashDenylist, *images: Pixels) -> list[str | type]:
    """What becomes of images that are read together."""
    return summary(CrashHandling(engine.ask, denylist).read([a_task(image) for image in images]))  # type: ignore[arg-type]


def test_an_image_is_not_blamed_for_a_crash_beside_another() -> None:
    engine, denylist = Engine(), CrashDenylist(8, 60.0)
    engine.kills = 1
    assert read(engine, denylist, GOOD, BAD) == [crc(GOOD), ImageCrashesEngine]
    assert [entry.crashes for entry in denylist.entries()] == [2]
    # That of both, the stranger's, and two of the bad one alone.
    assert engine.deaths == 4
