"""The lines of `ocrsvc status` that say what the operators' page shows beside workers and counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

Node = Mapping[str, Any]

_MOST_ERRORS: Final = 5
_LAST: Final = 12
"""Points of the history in a minute."""


def describe_overview(answer: Node) -> Iterator[str]:
    """Memory, GPUs, the last minute, documents on disk, inputs that crash, and failures that are not the callers'."""
    memory = answer["memory"]
    yield f"memory      {_bytes(memory['used_bytes'])} of {_bytes(memory['limit_bytes'])} in use"
    for gpu in answer["gpus"]:
        busy = "" if gpu["busy_ratio"] is None else f", busy {gpu['busy_ratio']:.0%}"
        yield f"GPU {gpu['gpu']:<8}{_bytes(gpu['used_bytes'])} of {_bytes(gpu['total_bytes'])} in use{busy}"
    yield f"last minute {_last_minute(answer['history']['curves'])}"
    models = answer.get("models")
    if models is not None:
        room = f"{_bytes(models['bytes'])}, at most {_bytes(models['limit_bytes_of_worker'])} in a worker"
        refused = models.get("refused_versions", 0)
        why = f", {refused:.0f} refused versions: see ocrsvc models list" if refused else ""
        yield f"models      {models['loaded']:.0f} loaded, {room}{why}"
    documents = answer["documents"]
    if documents is not None:
        room = f"{_bytes(documents['bytes'])} of {_bytes(documents['limit_bytes'])}"
        yield f"documents   {documents['count']:.0f}, {room}, {_bytes(documents['disk_free_bytes'])} free on the disk"
    denied = {kind: sum(entry["is_refused"] for entry in found) for kind, found in answer["quarantine"].items()}
    yield f"denied      {denied['images']} images, {denied['requests']} requests"
    yield from _errors(answer)


def _last_minute(curves: Node) -> str:
    """Means of what is counted, and the largest of what is estimated."""
    if not curves["ready"]:
        return "is not kept by this service"
    counted = (("requests", "requests_per_s"), ("own failures", "own_failures_per_s"), ("refused", "refused_per_s"))
    parts = [f"{title} {_mean(curves[name]):.2f}/s" for title, name in counted]
    for title, name in (("wait p95", "wait_p95_s"), ("time p95", "total_p95_s")):
        known = [value for value in curves[name][-_LAST:] if value is not None]
        parts.append(f"{title} {max(known) * 1000:.0f} ms" if known else f"{title} -")
    return ", ".join(parts)


def _mean(values: list[float]) -> float:
    return sum(values[-_LAST:]) / len(values[-_LAST:])


def _errors(answer: Node) -> Iterator[str]:
    found = [error for error in answer["errors"] if error["fault"] != "caller"][:_MOST_ERRORS]
    if found:
        yield "last failures that are not the callers'"
    for error in found:
        ago = f"{answer['now_s'] - error['when_s']:.0f} s ago"
        yield f"  {ago:>12}  {error['code']}  {error['status']}  {error['route'] or '-'}  {error['id']}"


def _bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"
