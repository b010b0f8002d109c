"""`ocrsvc status` and `ocrsvc health`: the state of a running service, as text and as an exit code."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import click
import orjson

from ocrsvc.batch.human_readable import bytes_of, count_of
from ocrsvc.cli.options import command, gathered, option
from ocrsvc.cli.output import table
from ocrsvc.cli.service import Access, fetch, read_key, service_access, tls_access

Node = Mapping[str, Any]

_COLUMNS: Final = ("slot", "pid", "state", "reason", "requests", "in_flight", "rss_bytes", "forked_s_ago")
_STAGES: Final = ("decode", "queue", "engine", "total")
_MAX_ERRORS: Final = 5
_PER_MINUTE: Final = 12
"""Points of the history per minute."""
_URL: Final = gathered(
    "url",
    lambda address, url: address or url,
    click.argument("address", required=False, metavar="[URL]", help="As --url."),
    option("--url", metavar="URL", help="http[s]://host:port or unix:path; by default OCRSVC_BIND."),
)


@command("ocrsvc health", "ocrsvc health --url http://127.0.0.1:8000", "ocrsvc health --url unix:/run/ocrsvc.sock")
@_URL
@tls_access
def health(url: str | None, access: Access) -> None:
    """Exit with 0 if a running service is ready, for container health checks."""
    url, context = access.find(url)
    print(fetch(url, "/readyz", context=context).decode().strip())


@command("ocrsvc status", "ocrsvc status --url https://ocr.example --ca ca.pem --key-file operator.key")
@_URL
@service_access
def status(url: str | None, access: Access) -> None:
    """Print the workers and main figures of a running service."""
    url, context = access.find(url)
    overview = orjson.loads(fetch(url, "/ops/overview", read_key(access.key_file), context))
    workers = [[_cell(worker[column]) for column in _COLUMNS] for worker in overview["workers"]]
    print(f"arbiter {overview['arbiter_pid'] or 'unknown'}, {count_of(len(workers), 'worker')}")
    print("\n".join([*table(_COLUMNS, workers), "", *_describe_counts(overview), *describe_overview(overview)]))


def _cell(value: object) -> str:
    return "-" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)


def _describe_counts(answer: Node) -> Iterator[str]:
    counts = answer["counts"]
    images, spent_s = counts["stage_images"], counts["stage_s"]
    means = (f"{stage} {1000 * spent_s[stage] / images[stage]:.1f} ms" for stage in _STAGES if images.get(stage))
    yield f"requests    {_total(counts['requests_by_code'])}"
    yield f"refused     {_total(counts['refused'])}"
    yield f"in flight   {counts['in_flight_requests']:.0f}"
    yield f"waiting     {counts['queue_waiting_images']:.0f} images"
    yield f"read        {counts['images']:.0f} images, {counts['lines']:.0f} lines"
    yield f"mean times  {', '.join(means) or '-'}"
    yield f"recycled    {_total(answer['recycles'])}"
    yield f"boot fails  {answer['boot_failures']['ever']:.0f}"
    yield f"most alive  {answer['workers_most']:.0f} workers"


def _total(counts: Mapping[str, float]) -> str:
    """The sum of the counts, followed by the counts that are not 0."""
    parts = ", ".join(f"{name} {count:.0f}" for name, count in counts.items() if count)
    return f"{sum(counts.values()):.0f}" + (f" ({parts})" if parts else "")


def describe_overview(answer: Node) -> Iterator[str]:
    """Yield lines about the service: memory, GPUs, the last minute, stored jobs, crash denylist, and failures."""
    memory = answer["memory"]
    yield f"memory      {bytes_of(memory['used_bytes'])} of {bytes_of(memory['limit_bytes'])} in use"
    for gpu in answer["gpus"]:
        busy = "" if gpu["busy_ratio"] is None else f", busy {gpu['busy_ratio']:.0%}"
        yield f"GPU {gpu['gpu']:<8}{bytes_of(gpu['used_bytes'])} of {bytes_of(gpu['total_bytes'])} in use{busy}"
    yield f"last minute {_last_minute(answer['history']['curves'])}"
    if models := answer.get("models"):
        room = f"{bytes_of(models['bytes'])}, at most {bytes_of(models['limit_bytes_of_worker'])} in a worker"
        refused = models.get("refused_versions", 0)
        why = f", {refused:.0f} refused versions: see ocrsvc models list" if refused else ""
        yield f"models      {models['loaded']:.0f} loaded, {room}{why}"
    if documents := answer["documents"]:
        room = f"{bytes_of(documents['bytes'])} of {bytes_of(documents['limit_bytes'])}"
        yield f"jobs        {documents['count']:.0f}, {room}, {bytes_of(documents['disk_free_bytes'])} free on the disk"
    denied = {kind: sum(entry["is_refused"] for entry in found) for kind, found in answer["denylist"].items()}
    yield f"denied      {denied['images']} images, {denied['requests']} requests"
    errors = [error for error in answer["errors"] if error["fault"] != "caller"][:_MAX_ERRORS]
    yield from ["last failures of the service"] if errors else []
    for error in errors:
        ago = f"{answer['now_s'] - error['when_s']:.0f} s ago"
        yield f"  {ago:>12}  {error['code']}  {error['status']}  {error['route'] or '-'}  {error['id']}"


def _last_minute(curves: Node) -> str:
    """The last minute as text: mean rates of requests and failures, and the highest 95th percentiles of times."""
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
