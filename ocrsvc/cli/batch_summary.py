"""What `ocrsvc batch` says at its end: what was read, what is left, and where the output is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ocrsvc.batch.progress import count_of, duration_of, failures_of

if TYPE_CHECKING:
    from ocrsvc.batch.progress import RunCounts


def summary_of(outcome: RunCounts, address: str, elapsed_s: float, shard: str | None) -> Iterator[str]:
    """Sentences for people.

    Args:
        outcome: How it went.
        address: Of the destination.
        elapsed_s: Since this command began to read.
        shard: What --shard says.
    """
    if outcome.is_complete and not outcome.planned:
        yield "there is no page to read" + (f": the run has fewer parts than --shard {shard} needs" if shard else "")
        return
    yield _own_pages(outcome, elapsed_s)
    done, failed = outcome.all_done, outcome.all_failed
    if (done, failed) != (outcome.done, outcome.failed.total()) or not outcome.is_complete:
        finished, planned = done + failed, count_of(outcome.planned, "page")
        where = " of this shard" if shard else ""
        yield f"by all commands so far: {finished:,} of {planned}{where}, {done:,} read and {failed:,} failed"
    if outcome.is_complete:
        yield f"all{' of this shard' if shard else ''} is in {address}"
        if failed:
            yield "why pages failed is in the output as `error`; the same command with --retry-failed tries them again"
    else:
        yield f"there is more to be read into {address}: give the same command again"


def _own_pages(outcome: RunCounts, elapsed_s: float) -> str:
    copied = f", {outcome.copied:,} of them copied from files of the same content" if outcome.copied else ""
    read = f"{count_of(outcome.done, 'page')} read{copied}, {failures_of(outcome.failed)}"
    return f"{read}, in {'less than a second' if elapsed_s < 1 else duration_of(elapsed_s)}"
