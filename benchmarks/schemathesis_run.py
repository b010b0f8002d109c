"""Checks the running service against /openapi.json with schemathesis.

    python benchmarks/schemathesis_run.py [--examples 2000] [--seed 1]

In process, without sockets: the WSGI application over a reader that has its answer ready once the image is decoded. For
each operation come the cases at the edges of its description, right and wrong, and as many drawn at random; every check
of schemathesis is made but two:

- negative_data_rejection: the service is lenient on purpose; "yes" is a boolean, and headers are not counted.
- positive_data_acceptance has exceptions, because no schema can tell them: what is no image or no base64 of one, an
  option that says one thing in the query and another in the body, pages that are not there or run backwards, and a time
  limit that has passed before the body is there.

Exit code 1 on any failure.
"""

from __future__ import annotations

import argparse
import base64
import collections
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import schemathesis
from bench.decoding import DecodingReader
from bench.machine import print_machine
from bench.pages import tiny_png
from bench.results import write_result
from hypothesis import strategies as st
from schemathesis.engine import events, from_schema
from schemathesis.specs.openapi.checks import positive_data_acceptance

from ocrsvc.app import create_app
from ocrsvc.imaging.page_ranges import ACCEPTED
from ocrsvc.pipeline.read import Reader
from ocrsvc.settings.settings import Settings

IMAGE_TYPES = ("image/*", "application/octet-stream")
LEFT_OUT = ("negative_data_rejection", "positive_data_acceptance")
UNTOLD = ("unsupported_image", "bad_base64", "body_timeout")
UNTOLD_DETAILS = ("given twice", "None of the pages", ACCEPTED)
MOST_FAILURES_TOLD = 20


def main() -> int:
    """Draw, send, judge; the exit code."""
    asked = _arguments()
    print_machine()
    began_s = time.monotonic()
    cases, made, failures = _run(_schema(tiny_png()), asked.examples, asked.seed)
    print(f"{cases} cases, {sum(made.values())} checks in {time.monotonic() - began_s:.0f} s")
    for failure in failures[:MOST_FAILURES_TOLD]:
        print(f"FAILURE: {failure}")
    figures: dict[str, object] = {
        "seed": asked.seed,
        "cases": cases,
        "checks": dict(sorted(made.items())),
        "failures": len(failures),
    }
    write_result("schemathesis", figures, asked.out)
    return 1 if failures or not cases else 0


def accepted_when_valid(ctx: Any, response: Any, case: Any) -> None:
    """Positive_data_acceptance, but for what no schema can tell."""
    if response.status_code >= 400:
        problem = response.json()
        if problem["code"] in UNTOLD or any(words in problem["detail"] for words in UNTOLD_DETAILS):
            return
    positive_data_acceptance(ctx, response, case)


def _schema(image: bytes) -> Any:
    """The description as it is served; where it asks for images, real ones come."""
    text = base64.b64encode(image).decode()
    pages = st.sampled_from([text, f"data:image/png;base64,{text}", text.rstrip("=")])
    schemathesis.openapi.format("page", pages)
    for kind in IMAGE_TYPES:
        schemathesis.openapi.media_type(kind, st.sampled_from([image]))
    schemathesis.check(accepted_when_valid)
    app = create_app(Settings(max_body_bytes=1 << 20), cast(Reader, DecodingReader()))
    schema = schemathesis.openapi.from_wsgi("/openapi.json", app)
    for node in _nodes(schema.raw_schema):
        if str(node.get("description", "")).startswith("Base64 of"):
            node["format"] = "page"
    return schema


def _run(schema: Any, examples: int, seed: int) -> tuple[int, collections.Counter[str], list[str]]:
    """Cases, checks made by name, and what failed."""
    schema.config.seed = seed
    schema.config.continue_on_failure = True
    schema.config.generation.max_examples = examples
    schema.config.checks.update(excluded_check_names=list(LEFT_OUT))
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
