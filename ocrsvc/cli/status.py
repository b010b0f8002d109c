"""`ocrsvc status` and `ocrsvc health`: the state of a running service, as text and as an exit code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click
import orjson

from ocrsvc.cli.options import command
from ocrsvc.cli.output import table
from ocrsvc.cli.service import Access, fetch, read_key, service_access, tls_access

Node = Mapping[str, Any]
Samples = Sequence[tuple[str, Mapping[str, str], float]]

_COLUMNS: Final = ("slot", "pid", "state", "reason", "requests", "in_flight", "rss_bytes", "forked_s_ago")
_MAX_ERRORS: Final = 5
_PER_MINUTE: Final = 12
"""Points of the history per minute."""
_URL: Final = click.argument(
    "url",
    required=False,
    help="http://host:port, https://host:port or unix:path; by default OCRSVC_BIND.",
)


@command("ocrsvc health", "ocrsvc health http://127.0.0.1:8000", "ocrsvc health unix:/run/ocrsvc.sock")
@_URL
@tls_access
def health(url: str | None, access: Access) -> None:
    """Exit with 0 if a running service is ready, for container health checks."""
    url, context = access.find(url)
    print(fetch(url, "/readyz", context=context).decode().strip())


@command("ocrsvc status", "ocrsvc status https://ocr.example --ca ca.pem --key-file operator.key")
@_URL
@service_access
def status(url: str | None, access: Access) -> None:
    """Print the workers and main figures of a running service."""
    (url, context), key = access.find(url), read_key(access.key_file)
    overview = orjson.loads(fetch(url, "/ops/overview", key, context))
    numbers = _describe_numbers(_parse(fetch(url, "/metrics", key, context).decode()))
    print("\n".join([*_describe_workers(overview), "", *numbers, *describe_overview(overview)]))


def _describe_workers(answer: Node) -> Iterator[str]:
    yield f"arbiter {answer['arbiter_pid'] or 'unknown'}, {len(answer['workers'])} workers"
    yield from table(_COLUMNS, [[_cell(worker[column]) for column in _COLUMNS] for worker in answer["workers"]])


def _cell(value: object) -> str:
    return "-" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)


def _parse(text: str) -> Samples:
    from prometheus_client.parser import text_string_to_metric_families

    families = text_string_to_metric_families(text)
    return [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]


def _describe_numbers(samples: Samples) -> Iterator[str]:
    yield f"requests    {_by(samples, 'ocrsvc_requests_total', 'code')}"
    yield f"refused     {_by(samples, 'ocrsvc_refused_total', 'reason')}"
    yield f"in flight   {_sum(samples, 'ocrsvc_in_flight_requests'):.0f}"
    yield f"waiting     {_sum(samples, 'ocrsvc_queue_waiting_images'):.0f} images"
    yield f"read        {_sum(samples, 'ocrsvc_images_total'):.0f} images"
    yield f"            {_sum(samples, 'ocrsvc_lines_total'):.0f} lines"
    yield f"mean times  {', '.join(_means(samples)) or '-'}"
    yield f"recycled    {_by(samples, 'ocrsvc_recycles_total', 'reason')}"
    yield f"boot fails  {_sum(samples, 'ocrsvc_boot_failures_total'):.0f}"
    yield f"most alive  {_sum(samples, 'ocrsvc_workers_most'):.0f} workers"


def _sum(samples: Samples, name: str, **labels: str) -> float:
    return sum(value for sample, has, value in samples if sample == name and labels.items() <= has.items())


def _by(samples: Samples, name: str, label: str) -> str:
    """The total of a counter, with its parts by label value."""
    values = dict.fromkeys(has[label] for sample, has, _ in samples if sample == name)
    counts = {value: _sum(samples, name, **{label: value}) for value in values}
    parts = ", ".join(f"{value} {count:.0f}" for value, count in counts.items() if count)
    return f"{sum(counts.values()):.0f}" + (f" ({parts})" if parts else "")


def _means(samples: Samples) -> Iterator[str]:
    for stage in ("decode", "queue", "engine", "total"):
        if count := _sum(samples, "ocrsvc_stage_seconds_count", stage=stage):
            yield f"{stage} {1000 * _sum(samples, 'ocrsvc_stage_seconds_sum', stage=stage) / count:.1f} ms"


def describe_overview(answer: Node) -> Iterator[str]:
    """Memory, GPUs, the last minute, stored jobs, crash denylist, and failures of the service."""
    memory = answer["memory"]
    yield f"memory      {_bytes(memory['used_bytes'])} of {_bytes(memory['limit_bytes'])} in use"
    for gpu in answer["gpus"]:
        busy = "" if gpu["busy_ratio"] is None else f", busy {gpu['busy_ratio']:.0%}"
        yield f"GPU {gpu['gpu']:<8}{_bytes(gpu['used_bytes'])} of {_bytes(gpu['total_bytes'])} in use{busy}"
    yield f"last minute {_last_minute(answer['history']['curves'])}"
    if models := answer.get("models"):
        room = f"{_bytes(models['bytes'])}, at most {_bytes(models['limit_bytes_of_worker'])} in a worker"
        refused = models.get("refused_versions", 0)
        why = f", {refused:.0f} refused versions: see ocrsvc models list" if refused else ""
        yield f"models      {models['loaded']:.0f} loaded, {room}{why}"
    if documents := answer["documents"]:
        room = f"{_bytes(documents['bytes'])} of {_bytes(documents['limit_bytes'])}"
        yield f"jobs        {documents['count']:.0f}, {room}, {_bytes(documents['disk_free_bytes'])} free on the disk"
    denied = {kind: sum(entry["is_refused"] for entry in found) for kind, found in answer["denylist"].items()}
    yield f"denied      {denied['images']} images, {denied['requests']} requests"
    yield from _errors(answer)


def _last_minute(curves: Node) -> str:
    """Mean rates of the counters, and the maximum of the percentiles."""
    if not curves["ready"]:
        return "not recorded by this service"
    counted = (("requests", "requests_per_s"), ("own failures", "own_failures_per_s"), ("refused", "refused_per_s"))
    parts = [
        f"{title} {sum(curves[name][-_PER_MINUTE:]) / len(curves[name][-_PER_MINUTE:]):.2f}/s"
        for title, name in counted
    ]
    for title, name in (("wait p95", "wait_p95_s"), ("time p95", "total_p95_s")):
        known = [value for value in curves[name][-_PER_MINUTE:] if value is not None]
        parts.append(f"{title} {max(known) * 1000:.0f} ms" if known else f"{title} -")
    return ", ".join(parts)


def _errors(answer: Node) -> Iterator[str]:
    errors = [error for error in answer["errors"] if error["fault"] != "caller"][:_MAX_ERRORS]
    if errors:
        yield "last failures of the service"
    for error in errors:
        ago = f"{answer['now_s'] - error['when_s']:.0f} s ago"
        yield f"  {ago:>12}  {error['code']}  {error['status']}  {error['route'] or '-'}  {error['id']}"


def _bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"
