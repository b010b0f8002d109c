"""Whether a version may take traffic: what it did with the reference pages, held against its bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from ocrsvc.model_repository.description import Reference
from ocrsvc.model_serving.proof.measurement import Failure, FailureKind, Measurement, RefusalKind
from ocrsvc.model_serving.proof.text_agreement import words_f1

# Less than this a page is what measuring itself costs.
_SLACK_S: Final = 0.005
_SLACK_BYTES: Final = 16 << 20
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a proof has found.

    Attributes:
        kind: None for a version that may take traffic; "gone", "unknown" and "killed" for one that was not proved.
        reason: For people: what it was held against, and how it did.
        figures: What was measured, by name, units in the names.
    """

    kind: FailureKind | None
    reason: str
    figures: Mapping[str, float] = field(default_factory=dict)


def judge(candidate: Measurement | Failure, serving: Measurement | None, bounds: Reference) -> Judgement:
    """Hold a version against its bounds.

    Args:
        candidate: It.
        serving: The version that serves, with the same pages; None where there is none, or it cannot be measured.
        bounds: From the version's description.
    """
    if isinstance(candidate, Failure):
        return Judgement(candidate.kind, candidate.reason)
    refusal = _text_refusal(candidate, serving, bounds) or (
        _cost_refusal(candidate, serving, bounds) if serving else None
    )
    found = refusal or Judgement(None, _summary(candidate, serving))
    return replace(found, figures=_figures(candidate, serving))


def agreement(candidate: Measurement, serving: Measurement | None) -> tuple[float | None, str]:
    """The F1 of the words read, and against what; None where there is nothing to hold them against."""
    texts = [page.text for page in candidate.pages]
    wanted = [page.wanted for page in candidate.pages]
    source = "the reference texts" if any(text is not None for text in wanted) else ""
    if serving is not None:
        others = [page.text for page in serving.pages]
        source = source if None not in wanted else f"{source} and {serving.version}" if source else serving.version
        wanted = [own if own is not None else other for own, other in zip(wanted, others, strict=True)]
    return words_f1((want, text) for want, text in zip(wanted, texts, strict=True) if want is not None), source


def _text_refusal(candidate: Measurement, serving: Measurement | None, bounds: Reference) -> Judgement | None:
    f1, source = agreement(candidate, serving)
    if f1 is None or f1 >= bounds.least_f1:
        return None
    return _refused(
        "text", f"It reads {_floor(f1)} of the words of {source} (F1 on reference pages); at least {bounds.least_f1:g}"
    )


def _cost_refusal(candidate: Measurement, serving: Measurement, bounds: Reference) -> Judgement | None:
    if candidate.page_s > bounds.most_slower * serving.page_s + _SLACK_S:
        times = candidate.page_s / max(serving.page_s, 1e-9)
        return _refused(
            "slow",
            f"It takes {candidate.page_s:.3f} s a reference page, {times:.1f} times the {serving.page_s:.3f} s of "
            f"{serving.version}; at most {bounds.most_slower:g} times",
        )
    if candidate.private_bytes > bounds.most_memory * serving.private_bytes + _SLACK_BYTES:
        return _refused(
            "memory",
            f"It takes {candidate.private_bytes // _MIB} MiB, and {serving.version} "
            f"{serving.private_bytes // _MIB} MiB; at most {bounds.most_memory:g} times as much",
        )
    return None


def _refused(kind: RefusalKind, what: str) -> Judgement:
    return Judgement(kind, f"{what} is wanted.")


def _summary(candidate: Measurement, serving: Measurement | None) -> str:
    f1, source = agreement(candidate, serving)
    read = "there is nothing to hold its text against" if f1 is None else f"{_floor(f1)} of the words of {source}"
    beside = f"; {serving.version}: {_cost(serving)}" if serving is not None else ""
    return f"Reference pages: {len(candidate.pages)}; {read}; {_cost(candidate)}{beside}."


def _cost(one: Measurement) -> str:
    return f"{one.page_s:.3f} s a page, {one.private_bytes // _MIB} MiB"


def _figures(candidate: Measurement, serving: Measurement | None) -> dict[str, float]:
    f1, _ = agreement(candidate, serving)
    figures = {"page_s": candidate.page_s, "private_bytes": float(candidate.private_bytes)}
    if f1 is not None:
        figures["words_f1"] = f1
    if serving is not None:
        figures |= {"serving_page_s": serving.page_s, "serving_private_bytes": float(serving.private_bytes)}
    return figures


def _floor(f1: float) -> str:
    """Two digits, never rounded up to a bound that was missed."""
    return f"{int(100 * f1) / 100:.2f}"
