"""Checks the running service against /openapi.json with schemathesis.

    python benchmarks/schemathesis_run.py [--examples 2000] [--seed 1]

Runs the WSGI application in process, without sockets, with a reader that only decodes images and returns a fixed text.
For each operation schemathesis sends valid and invalid edge cases of its description and random ones, with every check
except three:

- negative_data_rejection: the service is lenient on purpose; "yes" is a boolean, and headers are not counted.
- positive_data_acceptance: replaced by a check with exceptions for rules that a schema cannot express: data that is not
  an image or not its base64, an option with different values in query and body, page ranges without pages or in
  reverse, a time limit that passes before the body arrives, callbacks (no host is allowed here), PDFs with masks, an
  Idempotency-Key of another job, and two files for one job.
- ignored_auth: works only over sockets; the runs with keys check the same.

Further runs use API keys, without edge cases. With a valid key the answers are checked as above; with no key, a wrong
one, a revoked one or one with another scope, a tenth as many cases are sent, and every operation except health checks
must answer 401 or 403. Exit code 1 on any failure.
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
SKIPPED_CHECKS = ("negative_data_rejection", "positive_data_acceptance", "ignored_auth")
EXEMPT_CODES = ("unsupported_image", "bad_base64", "body_timeout", "idempotency_key_reused")
EXEMPT_DETAILS = (
    "given twice",
    "None of the requested pages",
    ACCEPTED,
    "sends no callbacks",
    "without callback",
    "Jobs with masks",
    "A job takes one file",
)
# 504: the time limit passed while files were made.
ANSWERED = ["2xx", "3xx", "4xx", "504"]
MAX_FAILURES_SHOWN = 20
OPEN = ("/healthz", "/readyz")
READING = ("/v1/ocr", "/v1/jobs")
REFUSED_DIVISOR, FEWEST = 10, 3
# Nothing reads the jobs, so let them expire before they fill the store.
JOBS_S = 1.0


def main() -> int:
    """Run the benchmark; returns the exit code."""
    args = _arguments()
    print_machine()
    began_s = time.monotonic()
    _describe_bodies(tiny_png())
    with tempfile.TemporaryDirectory() as folder, keys_in(Path(folder)) as keys:
        jobs = JobStore(Path(folder), 1 << 26, JOBS_S)
        figures = {kind: _judge(kind, keys, jobs, args.examples, args.seed) for kind in KINDS}
    print(f"{time.monotonic() - began_s:.0f} s")
    write_result("schemathesis", {"seed": args.seed} | figures, args.out)
    return 1 if any(found["failures"] or not found["cases"] for found in figures.values()) else 0


KINDS: Mapping[str, str | None] = {
    "without keys": None,
    "a right key": "right",
    "no key": "",
    "a wrong key": WRONG,
    "a revoked key": "revoked",
    "a key of another scope": "other",
}
"""The key of each run: None without keys in the service, else the name of a key or an invalid secret."""


def _judge(kind: str, keys: Keys, jobs: JobStore, examples: int, seed: int) -> dict[str, Any]:
    """Run one kind of key; returns its figures."""
    name = KINDS[kind]
    schema = _schema(keys, jobs, name)
    refusals = [refused_without_valid_key.__name__, refused_for_another_scope.__name__]
    if name in {None, "right"}:
        skipped = refusals
    else:
        # Skip the checks that expect a successful answer.
        skipped = [accepted_when_valid.__name__, refusals[name != "other"]]
        examples = examples // REFUSED_DIVISOR
    # Edge cases are needed only once: with a valid key the answers are the same, and without one nothing is parsed.
    schema.config.phases.coverage.enabled = name is None
    examples = examples if name is None else max(examples, FEWEST)
    schema.config.checks.update(excluded_check_names=[*SKIPPED_CHECKS, *skipped])
    cases, made, failures = _run(schema, examples, seed)
    print(f"{kind}: {cases} cases, {sum(made.values())} checks, {len(failures)} failures")
    for failure in failures[:MAX_FAILURES_SHOWN]:
        print(f"FAILURE: {failure}")
    return {"cases": cases, "checks": dict(sorted(made.items())), "failures": len(failures)}


def refused_without_valid_key(_ctx: Any, response: Any, case: Any) -> None:
    """Check that only health checks are answered."""
    assert case.path in OPEN or response.status_code == 401, f"{case.method} {case.path}: {response.status_code}"


def refused_for_another_scope(_ctx: Any, response: Any, case: Any) -> None:
    """Check that nothing is read; information about the service is available to every valid key."""
    is_read = case.path.startswith(READING) and response.status_code not in {403, 405}
    assert not is_read, f"{case.method} {case.path}: {response.status_code}"


def accepted_when_valid(ctx: Any, response: Any, case: Any) -> None:
    """The check positive_data_acceptance with exceptions for rules that a schema cannot express."""
    if response.status_code >= 400:
        problem = response.json()
        if problem["code"] in EXEMPT_CODES or any(words in problem["detail"] for words in EXEMPT_DETAILS):
            return
    positive_data_acceptance(ctx, response, case)


def _describe_bodies(image: bytes) -> None:
    """Make schemathesis send a real image wherever the description asks for one."""
    text = base64.b64encode(image).decode()
    pages = st.sampled_from([text, f"data:image/png;base64,{text}", text.rstrip("=")])
    schemathesis.openapi.format("page", pages)
    for kind in IMAGE_TYPES:
        schemathesis.openapi.media_type(kind, st.sampled_from([image]))
    schemathesis.check(accepted_when_valid)
    schemathesis.check(refused_without_valid_key)
    schemathesis.check(refused_for_another_scope)


def _schema(keys: Keys, jobs: JobStore, name: str | None) -> Any:
    """The served description of a service without keys (None) or with keys."""
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
    """The keys' secrets by name; adds the keys on first use."""
    if not keys.secrets:
        keys.add("right", "read", "jobs")
        keys.add("revoked")
        keys.revoke("revoked")
        keys.add("other", "operate")
    return keys.secrets


def _run(schema: Any, examples: int, seed: int) -> tuple[int, collections.Counter[str], list[str]]:
    """Run schemathesis; returns the number of cases, the checks by name, and the failures."""
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
    parser.add_argument("--out", type=Path, help="JSON output file; default results/schemathesis.json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
