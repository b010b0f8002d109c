"""Checks the running service against /openapi.json with schemathesis.

    python benchmarks/schemathesis_run.py [--examples 2000] [--seed 1]

In process, without sockets: the WSGI application over a reader that has its answer ready once the image is decoded. For
each operation come the cases at the edges of its description, right and wrong, and as many drawn at random; every check
of schemathesis is made but three:

- negative_data_rejection: the service is lenient on purpose; "yes" is a boolean, and headers are not counted.
- positive_data_acceptance has exceptions, because no schema can tell them: what is no image or no base64 of one, an
  option that says one thing in the query and another in the body, pages that are not there or run backwards, a time
  limit that has passed before the body is there, callbacks, sent to no host here, PDFs of what is masked, and an
  Idempotency-Key that came with another job, and two files for one job.
- ignored_auth sends what only its client over sockets takes; what it looks for is looked for in the runs with keys.

Then with API keys, without the edges: with a right one what is drawn, and with none, a wrong one, a revoked one and one
for something else, a tenth as often, every operation but those for health must answer 401 or 403.

Exit code 1 on any failure.
"""

from __future__ import annotations

import argparse
import base64
import collections
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import schemathesis
from bench.decoding import DecodingReader
from bench.machine import print_machine
from bench.pages import tiny_png
from bench.results import write_result
from bench.service import ROOT
from hypothesis import strategies as st
from schemathesis.engine import events, from_schema
from schemathesis.specs.openapi.checks import positive_data_acceptance

from ocrsvc.access.gate import AccessGate
from ocrsvc.app import create_app
from ocrsvc.imaging.page_ranges import ACCEPTED
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.pipeline.read import Reader
from ocrsvc.settings.settings import Settings

sys.path.insert(0, str(ROOT / "tests"))
from keys_support import WRONG, Keys, bearer, keys_in

IMAGE_TYPES = ("image/*", "application/octet-stream")
LEFT_OUT = ("negative_data_rejection", "positive_data_acceptance", "ignored_auth")
UNTOLD = ("unsupported_image", "bad_base64", "body_timeout", "idempotency_key_reused")
UNTOLD_DETAILS = (
    "given twice",
    "None of the requested pages",
    ACCEPTED,
    "sends no callbacks",
    "without callback",
    "Jobs with masks",
    "A job takes one file",
)
# 504: a time limit that has passed when files are made.
ANSWERED = ["2xx", "3xx", "4xx", "504"]
MAX_FAILURES_TOLD = 20
OPEN = ("/healthz", "/readyz")
READING = ("/v1/ocr", "/v1/jobs")
LESS_OFTEN, FEWEST = 10, 3
# Nobody reads the jobs, which would fill the store.
JOBS_S = 1.0


def main() -> int:
    """Draw, send, judge; the exit code."""
    asked = _arguments()
    print_machine()
    began_s = time.monotonic()
    _describe_bodies(tiny_png())
    with tempfile.TemporaryDirectory() as folder, keys_in(Path(folder)) as keys:
        jobs = JobStore(Path(folder), 1 << 26, JOBS_S)
        figures = {kind: _judge(kind, keys, jobs, asked.examples, asked.seed) for kind in KINDS}
    print(f"{time.monotonic() - began_s:.0f} s")
    write_result("schemathesis", {"seed": asked.seed} | figures, asked.out)
    return 1 if any(found["failures"] or not found["cases"] for found in figures.values()) else 0


KINDS: Mapping[str, str | None] = {
    "without keys": None,
    "a right key": "right",
    "no key": "",
    "a wrong key": WRONG,
    "a revoked key": "revoked",
    "a key of another scope": "other",
}
"""What is sent: None where the service wants no keys, else the name of a key, or a text that is none."""


def _judge(kind: str, keys: Keys, jobs: JobStore, examples: int, seed: int) -> dict[str, Any]:
    """One run; its figures."""
    name = KINDS[kind]
    schema = _schema(keys, jobs, name)
    refusals = [refused_without_a_right_key.__name__, refused_for_another_scope.__name__]
    if name in {None, "right"}:
        left_out = refusals
    else:
        # Of those that want an answer that is no refusal.
        left_out = [accepted_when_valid.__name__, refusals[name != "other"]]
        examples = examples // LESS_OFTEN
    # Whoever was let in is answered like who needs no key, and for who was not nothing is looked at.
    schema.config.phases.coverage.enabled = name is None
    examples = examples if name is None else max(examples, FEWEST)
    schema.config.checks.update(excluded_check_names=[*LEFT_OUT, *left_out])
    cases, made, failures = _run(schema, examples, seed)
    print(f"{kind}: {cases} cases, {sum(made.values())} checks, {len(failures)} failures")
    for failure in failures[:MAX_FAILURES_TOLD]:
        print(f"FAILURE: {failure}")
    return {"cases": cases, "checks": dict(sorted(made.items())), "failures": len(failures)}


def refused_without_a_right_key(_ctx: Any, response: Any, case: Any) -> None:
    """Nothing but health is answered."""
    assert case.path in OPEN or response.status_code == 401, f"{case.method} {case.path}: {response.status_code}"


def refused_for_another_scope(_ctx: Any, response: Any, case: Any) -> None:
    """Nothing is read; what the service says of itself is for every valid key."""
    is_read = case.path.startswith(READING) and response.status_code not in {403, 405}
    assert not is_read, f"{case.method} {case.path}: {response.status_code}"


def accepted_when_valid(ctx: Any, response: Any, case: Any) -> None:
    """Positive_data_acceptance, but for what no schema can tell."""
    if response.status_code >= 400:
        problem = response.json()
        if problem["code"] in UNTOLD or any(words in problem["detail"] for words in UNTOLD_DETAILS):
            return
    positive_data_acceptance(ctx, response, case)


def _describe_bodies(image: bytes) -> None:
    """Where the description asks for images, real ones come."""
    text = base64.b64encode(image).decode()
    pages = st.sampled_from([text, f"data:image/png;base64,{text}", text.rstrip("=")])
    schemathesis.openapi.format("page", pages)
    for kind in IMAGE_TYPES:
        schemathesis.openapi.media_type(kind, st.sampled_from([image]))
    schemathesis.check(accepted_when_valid)
    schemathesis.check(refused_without_a_right_key)
    schemathesis.check(refused_for_another_scope)


def _schema(keys: Keys, jobs: JobStore, name: str | None) -> Any:
    """The description as it is served, of a service that wants keys or, for None, does not."""
    reader = cast(Reader, DecodingReader())
    if name is None:
        app = create_app(Settings(max_body_bytes=1 << 20), reader, jobs=jobs)
        schema = schemathesis.openapi.from_wsgi("/openapi.json", app)
    else:
        gate: AccessGate = keys.gate
        secrets = _secrets(keys)
        app = create_app(Settings(max_body_bytes=1 << 20, keys=keys.address), reader, jobs=jobs, gate=gate)
        schema = schemathesis.openapi.from_wsgi("/openapi.json", app, headers=dict(bearer(secrets["right"])))
        if secret := secrets.get(name, name):
            schema.config.headers = dict(bearer(secret))
    for node in _nodes(schema.raw_schema):
        if str(node.get("description", "")).startswith("Base64 of"):
            node["format"] = "page"
    return schema


def _secrets(keys: Keys) -> Mapping[str, str]:
    """The keys by name, added once."""
    if not keys.secrets:
        keys.add("right", "read", "jobs")
        keys.add("revoked")
        keys.revoke("revoked")
        keys.add("other", "operate")
    return keys.secrets


def _run(schema: Any, examples: int, seed: int) -> tuple[int, collections.Counter[str], list[str]]:
    """Cases, checks made by name, and what failed."""
    schema.config.seed = seed
    schema.config.continue_on_failure = True
    schema.config.checks.not_a_server_error.expected_statuses = ANSWERED
    schema.config.generation.max_examples = examples
    cases, made, failures = 0, collections.Counter[str](), []
    for event in from_schema(schema).execute():
        if isinstance(event, events.NonFatalError | events.FatalError):
            failures.append(str(event.info if isinstance(event, events.NonFatalError) else event.exception))
        if isinstance(event, events.ScenarioFinished):
            cases += len(event.recorder.cases)
            for check in [check for checks in event.recorder.checks.values() for check in checks]:
                made[check.name] += 1
                if check.failure_info is not None:
                    failure = check.failure_info.failure
                    message = (
                        f"{event.recorder.label}: {failure.title}: {failure.message}: {check.failure_info.code_sample}"
                    )
                    failures.append(message[:2000])
    return cases, made, failures


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    """All objects in a JSON value."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _nodes(inner)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--examples", type=int, default=2000, help="cases drawn at random for each operation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where the figures go; by default benchmarks/results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
