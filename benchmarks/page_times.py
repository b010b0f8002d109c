"""Processor time of each corpus page, read one at a time: the service times of `regions.py`.

    python benchmarks/page_times.py [--shared ../shared] [--pages 24] [--out data/page_times.json]

Runs the application in this process with the real engine, without sockets. A page's time is all processor time of the
process while the page was read, including decoding and the answer. Each page is read once, so the cost of a new page
size is included. The corpus is not part of the checkout; the times are, without file names.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.corpus import Corpus
from bench.machine import describe, print_machine
from bench.service import ROOT


def measure_ms(images: Sequence[bytes]) -> list[int]:
    """CPU milliseconds of each page. Exits if one cannot be read."""
    from ocrsvc.app import create_app
    from ocrsvc.pipeline.read import Reader
    from ocrsvc.settings.load import read_settings
    from ocrsvc.system.allocator import limit_arenas
    from ocrsvc.system.thread_plan import plan_for

    limit_arenas()
    settings = read_settings({"OCRSVC_DEVICE": "cpu", "OCRSVC_DEADLINE_S": "600"})
    reader = Reader(settings, plan_for(settings, workers=1))
    reader.start()
    client = create_app(settings, reader).test_client()
    times_ms = []
    # Read the first page twice, and do not count the first time, which includes one-time costs.
    for data in [images[0], *images]:
        began_s = time.process_time()
        answer = client.post("/v1/ocr", data=data, content_type="application/octet-stream")
        times_ms.append(round(1000 * (time.process_time() - began_s)))
        if answer.status_code != 200:
            sys.exit(f"FAILED {answer.status_code} {answer.text[:200]}")
    reader.stop(10)
    return times_ms[1:]


def main() -> int:
    """Run the benchmark; returns 0 if every page was read."""
    os.environ.setdefault("OPENCV_FOR_THREADS_NUM", "1")
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="folder with corpus/ and score.py")
    parser.add_argument("--pages", type=int, help="corpus pages, spread evenly; default: all")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "data" / "page_times.json")
    args = parser.parse_args()
    print_machine()
    every = Corpus(args.shared).pages
    pages = every[:: max(1, len(every) // args.pages)][: args.pages] if args.pages else every
    times_ms = sorted(measure_ms([page.file.read_bytes() for page in pages]))
    figures = {
        "source": "CPU ms of each page of the corpus, sorted; made by benchmarks/page_times.py",
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        **describe(),
        "page_cpu_ms": times_ms,
    }
    args.out.write_text(json.dumps(figures, ensure_ascii=False) + "\n", "utf-8")
    mean_ms, middle_ms = sum(times_ms) / len(times_ms), times_ms[len(times_ms) // 2]
    print(f"{len(times_ms)} pages: mean {mean_ms:.0f} ms, median {middle_ms} ms, maximum {times_ms[-1]} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
