"""Cost of a request without decoding and the engine.

    python benchmarks/overhead.py [--seconds 10] [--clients 20]

The fake engine waits 0 ms; clients and service share the machine. From the service's processor time per request, the
times of decoding the same image and of the fake engine's checksum (both measured alone in this process) are subtracted.
The rest is the cost of HTTP, queue and threads. Exit code 1 on any wrong answer.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.client import text_of
from bench.load import Request, Result, as_dict, run_load, summarise
from bench.machine import print_machine
from bench.pages import scan, tiny_png
from bench.results import write_result
from bench.service import ROOT, Service, ask, form_with_file, started

GOAL_MS = 2.0
ROUNDS = 60


@dataclass(frozen=True, slots=True)
class Payload:
    """A request and the image in it."""

    request: Request
    image: bytes


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of one payload: the load, and milliseconds of decoding and checksum in this process."""

    payload: Payload
    result: Result
    decode_ms: float
    checksum_ms: float
    served_decode_ms: float

    @property
    def own_ms(self) -> float:
        """Processor time of a request without decoding and checksum."""
        return self.result.cpu_ms - self.decode_ms - self.checksum_ms


def payloads() -> list[Payload]:
    """Requests with a tiny PNG and with a JPEG of about 135 kB, in each form."""
    tiny, jpeg = tiny_png(), scan(0)
    return [
        Payload(Request("tiny PNG, raw", "/v1/ocr", "image/png", tiny), tiny),
        Payload(_form("tiny PNG, multipart", tiny, "page.png", "image/png"), tiny),
        Payload(Request("JPEG, raw", "/v1/ocr", "image/jpeg", jpeg), jpeg),
        Payload(_form("JPEG, multipart", jpeg, "page.jpg", "image/jpeg"), jpeg),
        Payload(Request("JPEG, base64 in JSON", "/v1/ocr", "application/json", _json(jpeg)), jpeg),
    ]


def _form(name: str, data: bytes, filename: str, kind: str) -> Request:
    body, content_type = form_with_file(data, filename, kind)
    return Request(name, "/v1/ocr", content_type, body)


def _json(data: bytes) -> bytes:
    return json.dumps({"image": base64.b64encode(data).decode()}).encode()


def cpu_ms(work: Callable[[], object]) -> float:
    """Processor milliseconds of one call, the minimum of three rounds, because disturbances only add time."""
    rounds = []
    for _ in range(3):
        before_s = time.process_time()
        for _ in range(ROUNDS):
            work()
        rounds.append((time.process_time() - before_s) * 1000 / ROUNDS)
    return min(rounds)


def parts_ms(data: bytes) -> tuple[float, float]:
    """Processor milliseconds of decoding an image for the fake engine, and of its checksum."""
    sys.path.insert(0, str(ROOT))
    from ocrsvc.engines.fake import hash_text
    from ocrsvc.imaging.codecs.decode import PixelLimits, decode

    limits = PixelLimits(50_000_000)
    pixels = decode(data, limits, gray=False).pixels
    return cpu_ms(lambda: decode(data, limits, gray=False)), cpu_ms(lambda: hash_text(pixels))


def measure(service: Service, payload: Payload, clients: int, seconds: float) -> Row:
    """Run a load with one payload. Exits on a wrong answer."""
    request = payload.request
    solo = [ask(service.url, "POST", request.path, request.body, request.content_type) for _ in range(20)]
    expected = text_of(solo[0].text.encode(), "application/json")
    result = run_load(service, [request], clients, seconds, keep_alive=True)
    if wrong := result.wrong({request.name: expected}):
        sys.exit(f"WRONG {wrong[:3]}")
    served_s = sorted(json.loads(answer.text)["timing"]["decode_s"] for answer in solo)
    return Row(payload, result, *parts_ms(payload.image), served_s[len(served_s) // 2] * 1000)


def show(row: Row) -> None:
    """Print one payload's figures."""
    print(f"{row.payload.request.name} ({len(row.payload.image)} bytes of image)")
    print(f"  {summarise(row.result)}")
    print(
        f"  decoding {row.decode_ms:.2f} ms (in an unloaded request {row.served_decode_ms:.2f} ms), the fake engine's "
        f"checksum {row.checksum_ms:.2f} ms; the service's own: {row.own_ms:.2f} ms (goal: at most {GOAL_MS})"
    )


def as_row(row: Row) -> dict[str, object]:
    """One payload's figures as a JSON-ready dict."""
    return as_dict(row.result) | {
        "payload": row.payload.request.name,
        "image_bytes": len(row.payload.image),
        "decode_ms": round(row.decode_ms, 3),
        "checksum_ms": round(row.checksum_ms, 3),
        "own_ms": round(row.own_ms, 3),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0 if every answer was right."""
    # As in the service; otherwise OpenCV would use all cores here.
    os.environ.setdefault("OPENCV_FOR_THREADS_NUM", "1")
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="per payload")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--out", type=Path, help="JSON output file; default results/overhead.json")
    args = parser.parse_args(arguments)
    print_machine()
    print(f"load: {args.clients} clients on the same machine, kept-alive connections, {args.seconds:g} s per payload")
    rows = []
    with started({"OCRSVC_ENGINE": "fake"}) as service:
        for payload in payloads():
            rows.append(measure(service, payload, args.clients, args.seconds))
            show(rows[-1])
    write_result("overhead", {"clients": args.clients, "rows": [as_row(row) for row in rows]}, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
