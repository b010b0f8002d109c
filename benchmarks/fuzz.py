"""Sends malformed input to every wire format; none may crash the service, hang it or hold its memory.

    python benchmarks/fuzz.py [--inputs 1000000] [--seed 1] [--only paddlex]

Runs in process, without sockets, with a reader that only decodes images and returns a fixed text.

- HTTP: random mutations of each format's well-formed requests: changed bytes, cuts, repeats, pieces of other requests,
  other JSON values, up to a megabyte of a repeated text, other content types, paths, methods and queries.
- gRPC messages (grpc_messages): every method's messages with fields removed, repeated and replaced at any depth.
- gRPC connections (grpc_frames): whole connections of HTTP/2 frames, with floods of each frame type, odd headers, wrong
  lengths and windows, split anywhere.

Violations are: status 500 or INTERNAL (no engine is here to fail), any exception, an input that takes more processor
time than the limit, growing memory, and on gRPC connections one that blocks a worker's shutdown, releases less than it
held, or starves its neighbour. A hang ends the run with a traceback. Exit code 1 on any violation.
"""

from __future__ import annotations

import argparse
import collections
import copy
import faulthandler
import json
import logging
import random
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

from bench.decoding import DecodingReader
from bench.exchanges import FORM, JSON, Application, Exchange, call, environ_of, exchanges
from bench.grpc_fuzzing import GrpcFuzzer
from bench.machine import print_machine
from bench.pages import tiny_png
from bench.results import write_result

from ocrsvc.app import create_app
from ocrsvc.pipeline.read import Reader
from ocrsvc.settings.settings import Settings
from ocrsvc.system.memory import read_rss_bytes

# Processor time, so that a busy machine causes no violation.
LIMIT_S = 1.0
HANG_S = 300.0
MAX_GROWTH_BYTES = 32 << 20
# The first inputs fill caches and one-time allocations.
WARM_UP_SHARE = 0.2
CONTENT_TYPES = (
    JSON,
    FORM,
    "multipart/form-data",
    "multipart/form-data; boundary=x",
    "image/png",
    "text/plain",
    "",
    "\xff",
)
METHODS = ("POST", "POST", "POST", "POST", "POST", "POST", "GET", "PUT", "OPTIONS", "HEAD")
QUERIES = (
    "",
    "",
    "",
    "layout=1",
    "use_det=maybe",
    "is_draw=0&compress=1e9",
    "a=%ff&b=%",
    "image=x&image=y",
    "options=[]",
)
VALUES: tuple[object, ...] = (
    *(None, True, False, 0, -1, 1, 2**63, 2**64, -(2**63), 1e308, -0.0, 0.5, "", " ", "x", "true", "nan", "1e999"),
    *("\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace"), "\0", "http://127.0.0.1/x.png", "data:,"),
    *([], {}, [[]], [None], [0], [[1, 2]], [[[1, 2], [3, 4]]], [[["x", 2], [3, 4]]], {"a": {}}, ["image"], "image"),
)
# Texts that, repeated, may make a parser slow.
FLOODS = (
    *(
        b"=",
        b"A",
        b"A=",
        b"= ",
        b" ",
        b"\n",
        b"\r\n",
        b"A\n",
        b"AAAA ",
        b"%",
        b"%2B",
        b"%3D",
        b"%zz",
        b"+",
        b"-_",
        b"data:,",
        b";",
    ),
    *(
        b"[",
        b"]",
        b"[],",
        b"{}",
        b'{"a":',
        b'"',
        b'\\"',
        b'","',
        b",",
        b"0",
        b"1e",
        b"-",
        b"\\u0041",
        b"\\ud83d\\ude00",
        b"\\",
    ),
    *(
        b"&",
        b"a=&",
        b"=&",
        b"--",
        b"\r\n--",
        b"\r\n--x\r\n",
        b"a: b\r\n",
        b"\0",
        b"\xff",
        "é".encode(),
        "\U0001f600".encode(),
    ),
)
FLOOD_BITS = (6.0, 20.0)
MAX_BODY_BYTES = 1 << 20
NAMES = (
    *("image", "images", "file", "fileType", "base64", "options", "key", "value", "visualize", "logId", "image_data"),
    *("textDetLimitSideLen", "textRecScoreThresh", "textDetLimitType", "useDocOrientationClassify", "returnWordBox"),
    *("ocr.cls", "ocr.limit_side_len", "tbpu.parser", "tbpu.ignoreArea", "data.format", "img", "compress", "language"),
)
HEADERS = ("HTTP_X_WIDTH", "HTTP_X_HEIGHT", "HTTP_X_CHANNELS", "HTTP_X_REQUEST_TIMEOUT", "HTTP_X_REQUEST_ID")

MutatedRequest = tuple[Exchange, str, dict[str, str]]


@dataclass
class Tally:
    """Results so far."""

    ends: collections.Counter[str]
    slowest_s: float
    violations: list[str]


Part = Callable[[random.Random], tuple[str, object]]
"""Sends a malformed input; returns how it ended and what was sent. An exception is a violation."""


def main() -> int:
    """Run the benchmark; returns the exit code."""
    args = _arguments()
    print_machine()
    # Do not log tracebacks of server errors; violations are printed with their input below.
    logging.getLogger("ocrsvc").addHandler(logging.NullHandler())
    parts, rng = _parts(args.only), random.Random(args.seed)
    tally = Tally(collections.Counter(), 0.0, [])
    warm_bytes, began_s = read_rss_bytes(), time.monotonic()
    for number in range(args.inputs):
        if number == int(args.inputs * WARM_UP_SHARE):
            warm_bytes = read_rss_bytes()
        if number % 1000 == 0:
            faulthandler.dump_traceback_later(HANG_S, exit=True)
        send(rng.choice(parts), rng, tally)
        if len(tally.violations) >= 20:
            break
    growth = read_rss_bytes() - warm_bytes
    if growth > MAX_GROWTH_BYTES:
        tally.violations.append(f"memory grew by {growth >> 20} MiB")
    return _report(tally, args, growth, time.monotonic() - began_s)


def _parts(only: str | None) -> list[Part]:
    """The parts to run: by default one per well-formed request, and each of the two gRPC parts twice."""
    image = tiny_png()
    good = [exchange for exchange in exchanges(image) if only in {None, exchange.adapter}]
    found: list[Part] = []
    if good:
        application = create_app(Settings(max_body_bytes=MAX_BODY_BYTES), cast(Reader, DecodingReader())).wsgi_app
        found += [partial(_send_request, application, exchange, good) for exchange in good]
    grpc = [] if only and not only.startswith("grpc") else [GrpcFuzzer(image)]
    for fuzzer in grpc:
        named = {"grpc_messages": fuzzer.send_message, "grpc_frames": fuzzer.send_connection}
        found += [part for name, part in named.items() if only in {None, "grpc", name}] * (1 if only else 2)
    if not found:
        raise SystemExit(f"Unknown part {only!r}.")
    return found


def send(part: Part, rng: random.Random, tally: Tally) -> None:
    """Send one input, and record violations."""
    began_s = time.process_time()
    try:
        end, sent = part(rng)
    except Exception as error:  # noqa: BLE001  whatever comes out here is a violation
        tally.violations.append("".join(traceback.format_exception(error, limit=-4))[:4000])
        return
    spent_s = time.process_time() - began_s
    tally.ends[end] += 1
    tally.slowest_s = max(tally.slowest_s, spent_s)
    if end == "500" or spent_s > LIMIT_S:
        tally.violations.append(f"{end} after {spent_s:.2f} s for {sent!r}"[:2000])


def _send_request(
    application: Application, exchange: Exchange, good: Sequence[Exchange], rng: random.Random
) -> tuple[str, object]:
    mutated = mutate(exchange, good, rng)
    sent, method, headers = mutated
    environ = environ_of(sent.path, sent.content_type, sent.body, method) | headers
    return str(call(application, environ)[0]), mutated


def mutate(exchange: Exchange, others: Sequence[Exchange], rng: random.Random) -> MutatedRequest:
    """Apply one to three random mutations to a well-formed request."""
    for _ in range(rng.randint(1, 3)):
        exchange = rng.choice(MUTATIONS)(exchange, others, rng)
    headers = {name: str(rng.choice((*VALUES, 64, 32))) for name in HEADERS if rng.random() < 0.05}
    return exchange, rng.choice(METHODS), headers


def _change_bytes(exchange: Exchange, _others: Sequence[Exchange], rng: random.Random) -> Exchange:
    body = bytearray(exchange.body)
    for _ in range(min(len(body), rng.randint(1, 8))):
        body[rng.randrange(len(body))] = rng.choice((rng.randrange(256), 0, 0x22, 0x25, 0x7B, 0x0D, 0x3D))
    return replace(exchange, body=bytes(body))


def _cut(exchange: Exchange, _others: Sequence[Exchange], rng: random.Random) -> Exchange:
    return replace(exchange, body=exchange.body[: rng.randint(0, len(exchange.body))])


def _double(exchange: Exchange, _others: Sequence[Exchange], rng: random.Random) -> Exchange:
    start, end = sorted(rng.randint(0, len(exchange.body)) for _ in range(2))
    return replace(exchange, body=(exchange.body[:end] + exchange.body[start:end] * 3 + exchange.body[end:])[:200_000])


def _swap_body(exchange: Exchange, others: Sequence[Exchange], rng: random.Random) -> Exchange:
    return replace(exchange, body=rng.choice(others).body)


def _swap_path(exchange: Exchange, others: Sequence[Exchange], rng: random.Random) -> Exchange:
    path = rng.choice([other.path for other in others] + ["/ocr/pixels", "/ocr/batch", "/predict/ocr_rec", "/ocr/pdf"])
    query = rng.choice(QUERIES)
    return replace(exchange, path=f"{path.partition('?')[0]}?{query}")


def _swap_type(exchange: Exchange, _others: Sequence[Exchange], rng: random.Random) -> Exchange:
    return replace(exchange, content_type=rng.choice(CONTENT_TYPES))


def _mutate_json(exchange: Exchange, _others: Sequence[Exchange], rng: random.Random) -> Exchange:
    try:
        value = json.loads(exchange.body)
    except (ValueError, RecursionError):
        value = {}
    members = value if isinstance(value, dict) else {}
    for _ in range(rng.randint(1, 4)):
        holder = members
        if isinstance(members.get("options"), dict) and rng.random() < 0.5:
            holder = members["options"]
        holder[rng.choice((*NAMES, *members))] = copy.deepcopy(rng.choice(VALUES))
    if rng.random() < 0.3:
        members["options"] = {rng.choice(NAMES): copy.deepcopy(rng.choice(VALUES)) for _ in range(3)}
    return replace(exchange, body=json.dumps(members).encode(), content_type=JSON)


def _flood(exchange: Exchange, _others: Sequence[Exchange], rng: random.Random) -> Exchange:
    """Insert up to a megabyte of repeated text; sizes are evenly distributed by their logarithm."""
    piece, size = rng.choice(FLOODS), int(2 ** rng.uniform(*FLOOD_BITS))
    at = rng.randint(0, len(exchange.body))
    text = piece * (size // len(piece) + 1)
    return replace(exchange, body=(exchange.body[:at] + text + exchange.body[at:])[:MAX_BODY_BYTES])


MUTATIONS: tuple[Callable[[Exchange, Sequence[Exchange], random.Random], Exchange], ...] = (
    *(_change_bytes, _cut, _double, _swap_body, _swap_path, _swap_type, _mutate_json, _mutate_json, _flood),
)


def _report(tally: Tally, args: argparse.Namespace, growth: int, spent_s: float) -> int:
    sent = sum(tally.ends.values())
    print(f"{sent} inputs in {spent_s:.0f} s, slowest {tally.slowest_s * 1000:.0f} ms, growth {growth / 2**20:.1f} MiB")
    print("ends: " + ", ".join(f"{end}: {count}" for end, count in sorted(tally.ends.items())))
    for violation in tally.violations:
        print(f"VIOLATION: {violation}")
    figures: dict[str, object] = {
        "inputs": sent,
        "seed": args.seed,
        "slowest_ms": round(tally.slowest_s * 1000, 1),
        "growth_bytes": growth,
        "ends": dict(sorted(tally.ends.items())),
        "violations": len(tally.violations),
    }
    write_result("fuzz", figures, args.out)
    return 1 if tally.violations else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="one adapter's name, native, grpc, grpc_messages or grpc_frames")
    parser.add_argument("--out", type=Path, help="JSON output file; default results/fuzz.json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
