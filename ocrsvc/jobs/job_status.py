"""How a job is, as JSON: what the native API answers, and what its callback is sent."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from ocrsvc.jobs.job import Job, State

PATH: Final = "/v1/jobs"
STATES: Final[dict[State, str]] = {"waiting": "waiting", "running": "running", "success": "done", "failure": "failed"}
"""What the native API calls the states of a job."""

_MOST_FAILED: Final = 100


def job_status(job: Job) -> dict[str, Any]:
    """How a job is. Raises FileNotFoundError once it was removed."""
    record, end, failed = job.record(), job.end(), job.log.failed()
    about, where = record.about, f"{PATH}/{job.id}"
    status: dict[str, Any] = {
        "id": job.id,
        "state": STATES[job.state()[0]],
        "name": about["name"],
        "pages": {
            "total": len(about["numbers"]),
            "done": job.log.count(),
            "failed": len(failed),
            "in_document": about["count"],
        },
        "failed_pages": [about["numbers"][place] for place in failed[:_MOST_FAILED]],
        "created_at": _moment(record.came_at_s),
        "started_at": _moment(job.started_at_s()),
        "finished_at": _moment(end.at_s if end is not None else None),
        "formats": about["formats"],
        "links": {"self": where, "pages": f"{where}/pages", "result": f"{where}/result"},
    }
    if end is not None and end.state == "failure":
        status["error"] = {"code": end.code, "detail": end.why}
    if record.has_callback and (callback := job.callback()) is not None:
        status["callback"] = callback
    return status


def _moment(at_s: float | None) -> str | None:
    """RFC 3339, by the clock on the wall."""
    return None if at_s is None else datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")
