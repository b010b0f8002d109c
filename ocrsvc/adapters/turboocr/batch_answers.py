"""What a batch of images is answered, over HTTP and over gRPC."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ocrsvc.adapters.turboocr.failures import code_of, error_members
from ocrsvc.adapters.turboocr.page_values import to_results
from ocrsvc.adapters.turboocr.parameters import PageParameters
from ocrsvc.errors import OcrsvcError
from ocrsvc.http.error_responses import failure_of
from ocrsvc.readings import Reading

Outcome = Reading | OcrsvcError


def check_some_read(outcomes: Iterable[Outcome]) -> None:
    """Raises the first error of images of which none could be read."""
    first: OcrsvcError | None = None
    for outcome in outcomes:
        if isinstance(outcome, Reading):
            return
        first = first or outcome
    if first is not None:
        raise first


def batch_answer(
    outcomes: Sequence[Outcome], asked: PageParameters
) -> tuple[list[dict[str, object]], list[str | None]]:
    """For each image what was read, or an entry without results that says why; and beside it the error's code."""
    entries = [_entry(outcome, asked) for outcome in outcomes]
    return entries, [None if isinstance(outcome, Reading) else code_of(outcome) for outcome in outcomes]


def _entry(outcome: Outcome, asked: PageParameters) -> dict[str, object]:
    if isinstance(outcome, Reading):
        return to_results(outcome.page, asked)
    return {"results": [], **error_members(outcome, failure_of(outcome))}
