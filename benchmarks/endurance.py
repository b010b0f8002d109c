"""Memory over many requests that are really decoded and queued.

    python benchmarks/endurance.py [--requests 50000] [--round 20]

Only the model is replaced, by the fake engine at 0 ms. JPEG and PNG pages of several sizes, raw and in forms, come from
20 clients on kept-alive connections, and every answer is compared with the answer that its page got alone. The load
comes in rounds. After each round the service rests until it has released its free memory, and its resident memory is
read. The first tenth is warm-up. Growth compares the mean of the last third of the later readings with that of the
first third, because single readings vary by some percent. Exit code 1 if it is above 2 %.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import cv2
import numpy as np
from bench.client import text_of
from bench.load import Request, run_load
from bench.machine import print_machine
from bench.pages import scan, tiny_png
from bench.results import write_result
from bench.service import Service, ask, form_with_file, started

GOAL_SHARE = 0.02
CLIENTS = 20
WARM_UP_SHARE = 0.1
# An engine thread releases free memory after five seconds without work.
REST_S = 7.0
MIN_ROUNDS = 4
_SIZES_PX = (480, 700, 1100)


def pages() -> list[tuple[str, bytes]]:
    """Pages with their media types: a scan in several sizes, as JPEG and PNG, in colour and gray."""
    colour = cv2.imdecode(np.frombuffer(scan(0), np.uint8), cv2.IMREAD_COLOR)
    assert colour is not None, "OpenCV cannot decode the scan"
    found = [("image/jpeg", scan(0)), ("image/png", tiny_png())]
    for width in _SIZES_PX:
        sized = cv2.resize(colour, (width, width * 3 // 4), interpolation=cv2.INTER_AREA)
        gray = cv2.cvtColor(sized, cv2.COLOR_BGR2GRAY)
        found.append(("image/jpeg", cv2.imencode(".jpg", sized)[1].tobytes()))
        found.append(("image/png", cv2.imencode(".png", gray)[1].tobytes()))
    return found


def requests() -> list[Request]:
    """Every page once as the body and once in a form."""
    made = []
    for number, (kind, data) in enumerate(pages()):
        form, form_type = form_with_file(data, f"page{number}", kind)
        made.append(Request(f"{number} raw", "/v1/ocr", kind, data))
        made.append(Request(f"{number} form", "/v1/ocr", form_type, form))
    return made


def run_round(service: Service, sends: Sequence[Request], expected: dict[str, str], seconds: float) -> int:
    """Run one round; returns the number of requests. Exits on a wrong answer."""
    result = run_load(service, sends, CLIENTS, seconds, keep_alive=True)
    if wrong := result.wrong(expected):
        sys.exit(f"WRONG {wrong[:3]}")
    return len(result.latencies_s)


def endure(service: Service, count: int, round_s: float) -> dict[str, object]:
    """Run rounds until `count` requests are answered; returns the figures."""
    sends = requests()
    expected = {
        send.name: text_of(
            ask(service.url, "POST", send.path, send.body, send.content_type).text.encode(), "application/json"
        )
        for send in sends
    }
    answered, rests_mb, began_s = 0, [(0, service.processes.rss_mb())], time.monotonic()
    while answered < count or len(rests_mb) <= MIN_ROUNDS:
        answered += run_round(service, sends, expected, round_s)
        time.sleep(REST_S)
        rests_mb.append((answered, service.processes.rss_mb()))
        print(f"{answered} requests after {time.monotonic() - began_s:.0f} s: {rests_mb[-1][1]:.1f} MB at rest")
    warm = [mb for done, mb in rests_mb[1:] if done >= WARM_UP_SHARE * count]
    third = max(1, len(warm) // 3)
    early_mb, late_mb = mean(warm[:third]), mean(warm[-third:])
    return {
        "requests": answered,
        "seconds": round(time.monotonic() - began_s),
        "fresh_mb": round(rests_mb[0][1], 1),
        "early_mb": round(early_mb, 1),
        "late_mb": round(late_mb, 1),
        "most_at_rest_mb": round(max(warm), 1),
        "growth_share": round(late_mb / early_mb - 1, 4),
        "rests_mb": [[done, round(mb, 1)] for done, mb in rests_mb],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0 if memory does not grow."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--round", type=float, default=20.0, help="seconds of load between two rests")
    parser.add_argument("--out", type=Path, help="JSON output file; default results/endurance.json")
    args = parser.parse_args(arguments)
    print_machine()
    with started({"OCRSVC_ENGINE": "fake"}) as service:
        figures = endure(service, args.requests, args.round)
    grown = figures["growth_share"]
    assert isinstance(grown, float)
    print(
        f"{figures['requests']} requests: {figures['early_mb']} MB after warm-up, {figures['late_mb']} MB at the end "
        f"({grown:+.2%}; goal: at most {GOAL_SHARE:.0%})"
    )
    write_result("endurance", figures, args.out)
    return 0 if grown <= GOAL_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
