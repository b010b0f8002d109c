"""`ocrsvc batch` to a faulty S3, killed repeatedly: checks the output and counts the requests.

    python benchmarks/batch_object_store.py                          2,000 pages, 5 kills, 2 % of the requests fail
    python benchmarks/batch_object_store.py --pages 20000 --shards 4

A real S3 server (moto's) runs in its own process. A proxy before it answers 503, cuts connections during requests or
before answers, answers late, or not at all. The engine is `fake`, so the figures show the batch command's own work.
Each round starts the command in --shards processes, and kills all of them with SIGKILL after a random number of
requests; the last round runs to the end. Every page must be in the output once, in the order of the plan. The last line
of stdout is the result as JSON; exit code 1 if a page is missing, repeated or out of order.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from bench.machine import print_machine

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "tests")]

from faulty_s3 import BUCKET, FaultyS3, Plan, environment, s3_server  # noqa: E402  the path must be known first

ROOT = Path(__file__).resolve().parent.parent
COMMAND = "import sys; from ocrsvc.cli.main import run; sys.exit(run())"
MAX_S = 3600.0


def main() -> int:
    """Run the benchmark; returns 0 if every page is in the output once and in order."""
    args = parse()
    print_machine()
    with tempfile.TemporaryDirectory() as folder, s3_server() as port:
        pages = make_pages(Path(folder), args.pages)
        proxy = FaultyS3(port, Plan(args.rate, silent_s=args.read_timeout + 0.5), args.seed)
        try:
            result = run_to_the_end(args, pages, proxy)
        finally:
            proxy.close()
        result |= check(port, [str(pages / f"{number:07d}.png") for number in range(args.pages)])
    print(f"pages in the output once: {result['once']} of {args.pages}; in order: {result['in_order']}")
    for verb, count in sorted(result["requests"].items()):
        print(f"{verb:>8}: {count:>8} requests, {count / args.pages:.4f} a page")
    print(json.dumps(result))
    return 0 if result["once"] == args.pages == result["lines"] and result["in_order"] else 1


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pages", type=int, default=2000)
    parser.add_argument("--part-pages", type=int, default=500)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--shards", type=int, default=1, help="processes at once")
    parser.add_argument("--rate", type=float, default=0.02, help="share of the requests that meet a fault")
    parser.add_argument("--read-timeout", type=float, default=2.0, help="timeout of a request in seconds")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def make_pages(folder: Path, count: int) -> Path:
    """A folder with one small picture under `count` names."""
    pages = folder / "pages"
    pages.mkdir()
    first = pages / f"{0:07d}.png"
    cv2.imwrite(str(first), np.full((20, 40, 3), 255, np.uint8))
    for number in range(1, count):
        (pages / f"{number:07d}.png").hardlink_to(first)
    return pages


def run_to_the_end(args: argparse.Namespace, pages: Path, proxy: FaultyS3) -> dict[str, Any]:
    """Run all rounds; returns their figures."""
    draw, began_s, restarts_s = random.Random(args.seed), time.monotonic(), []
    for number in range(args.kills + 1):
        requests, round_began_s = proxy.requests.total(), time.monotonic()
        processes = [start(args, pages, proxy, shard) for shard in range(args.shards)]
        try:
            if number < args.kills:
                wait_for_requests(proxy, processes, requests + draw.randint(10, 40) * args.shards)
            else:
                codes = [process.wait(MAX_S) for process in processes]
                assert codes == [0] * args.shards, f"the command ended with {codes}"
        finally:
            for process in processes:
                process.kill()
                process.wait()
        restarts_s.append(round(time.monotonic() - round_began_s, 2))
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "pages": args.pages,
        "shards": args.shards,
        "kills": args.kills,
        "rate": args.rate,
        "seconds": round(time.monotonic() - began_s, 1),
        "rounds_s": restarts_s,
        "cpu_s_all_children": round(children.ru_utime + children.ru_stime, 1),
        "peak_mb": round(children.ru_maxrss / 1024),
        "requests": dict(proxy.requests),
        "faults": {name: count for name, count in proxy.faults.items() if name},
    }


def start(args: argparse.Namespace, pages: Path, proxy: FaultyS3, shard: int) -> subprocess.Popen[bytes]:
    """Start the command for one shard."""
    short = {"s3": {"config_kwargs": {"read_timeout": args.read_timeout}}}
    environ = os.environ | dict(environment(proxy.url)) | {"OCRSVC_ENGINE": "fake", "OCRSVC_ISOLATION": "thread"}
    environ |= {"FSSPEC_S3": json.dumps(short["s3"]), "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])}
    command = ["batch", str(pages), "--out", f"s3://{BUCKET}/run", "--part-pages", str(args.part_pages)]
    command += ["--no-report", "--quiet", "--shard", f"{shard}/{args.shards}", "--work", str(pages.parent / "work")]
    return subprocess.Popen([sys.executable, "-c", COMMAND, *command], env=environ, stderr=subprocess.DEVNULL)


def wait_for_requests(proxy: FaultyS3, processes: list[subprocess.Popen[bytes]], count: int) -> None:
    """Wait until the proxy has seen `count` requests, or all processes have ended."""
    while proxy.requests.total() < count and any(process.poll() is None for process in processes):
        time.sleep(0.002)


def check(port: int, sources: list[str]) -> dict[str, Any]:
    """Counts of lines and of pages that occur once, and whether the lines are in the order of the sources."""
    os.environ.update(environment(f"http://127.0.0.1:{port}"))
    from ocrsvc.batch.destination import open_destination

    store = open_destination(f"s3://{BUCKET}/run")
    names = [name for name in store.names("") if name.startswith("pages-")]
    found = [json.loads(line)["source"] for name in names for line in store.read(name).splitlines()]
    counts = Counter(found)
    return {
        "lines": len(found),
        "once": sum(counts[source] == 1 for source in sources),
        "in_order": found == sources,
    }


if __name__ == "__main__":
    sys.exit(main())
