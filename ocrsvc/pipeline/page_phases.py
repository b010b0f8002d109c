"""Which stages one page went through after it was queued, and when."""

from __future__ import annotations

from collections.abc import Sequence

from ocrsvc.records import Page
from ocrsvc.serving.work_queue import Served
from ocrsvc.telemetry.ledger import Segment


def phases_of(served: Served[Page], queued_s: float, *, decoded_ahead: bool) -> Sequence[Segment]:
    """The page's stages on `time.monotonic`, from the queue to the engine's end.

    An engine that does not tell when it had the lines counts as reading them all the time.

    Args:
        served: What came of it.
        queued_s: When it was queued.
        decoded_ahead: It was decoded before that; else beside the engine, which began afterwards.
    """
    began_s, times = queued_s + served.queue_s, served.answer.times
    ended_s = began_s + served.run_s
    read_s = times.began_s if times is not None else began_s
    found_s = times.found_s if times is not None else read_s
    return (
        Segment("wait", queued_s, began_s),
        Segment("wait" if decoded_ahead else "decode", began_s, read_s),
        Segment("detect", read_s, found_s),
        Segment("recognise", found_s, ended_s),
    )
