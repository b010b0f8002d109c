"""Copies model versions into the repository under load; checks every answer, and measures gaps between answers.

    python benchmarks/models_swap.py                                 20 versions of the fake engine, five of them bad
    python benchmarks/models_swap.py --isolation process
    python benchmarks/models_swap.py --memory 8388608                room for one version, so that it drains first
    python benchmarks/models_swap.py --models FOLDER --slow FOLDER   a real model, as PaddleOCR ships it (det/, rec/)

Twenty clients send requests without pause, half over HTTP and half over gRPC (KServe v2). Of the twenty versions one is
truncated (of the fake engine: it crashes its process), one has a file with a wrong digest, one a wrong dictionary, one
is too slow, and one reads garbage. Before the copies, an undisturbed period is measured to compare the longest gaps.
The last line of stdout is the result as JSON; exit code 1 if a request failed, an answer does not match its version, or
a bad version answered.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
from bench.machine import print_machine
from bench.swap_clients import Seen, clients_running, grpc_sender, http_sender
from bench.swap_versions import Maker, SwapVersion, copy_into, fake_maker, make_versions, parts_in, real_maker, text

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import Server, run_server

NAME = "swapped"
WORKERS = 2
SETTLE_S = 300.0
FEWEST_UNDISTURBED_S = 5.0


def main() -> int:
    """Run the benchmark: the undisturbed period, then the copies."""
    args = _arguments()
    print_machine()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        versions = make_versions(folder / "made", args.swaps, _maker(args))
        repository = folder / "models"
        copy_into(repository, NAME, versions[0])
        page = _page(args)
        with run_server(_environ(args, folder)) as server:
            server.wait_for("READY in", count=WORKERS)
            senders = _senders(server, page, args.clients)
            texts = _texts(args, server, page, versions)
            with clients_running(senders, texts) as quiet:
                time.sleep(args.quiet_s)
            with clients_running(senders, texts) as disturbed:
                began_s = time.monotonic()
                for version in versions[1:]:
                    copy_into(repository, NAME, version)
                    _settle(server, version)
                spent_s = time.monotonic() - began_s
    return _report(args, quiet, disturbed, spent_s)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--isolation", choices=("thread", "process"), default="thread")
    parser.add_argument("--swaps", type=int, default=20, help="number of versions to copy")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--quiet-s", type=float, default=30.0, help="length of the undisturbed period")
    parser.add_argument("--burn-s", type=float, default=0.002, help="processor time of the fake engine per page")
    parser.add_argument("--latency-s", type=float, default=0.02, help="additional wait of the fake engine per page")
    parser.add_argument("--memory", help="OCRSVC_MODELS_MEMORY: 8388608 is room for one version in threads")
    parser.add_argument("--load-s", type=float, default=0.0, help="time to load a handle of the fake engine")
    parser.add_argument("--models", type=Path, help="a real model: det/det.onnx, rec/rec.onnx, rec/inference.yml")
    parser.add_argument("--slow", type=Path, help="a slower real model")
    return parser.parse_args()


def _maker(args: argparse.Namespace) -> Maker:
    if args.models is None:
        return fake_maker(args.burn_s, args.latency_s, args.load_s)
    return real_maker(parts_in(args.models), parts_in(args.slow))


def _environ(args: argparse.Namespace, folder: Path) -> dict[str, str]:
    memory = {} if args.memory is None else {"OCRSVC_MODELS_MEMORY": args.memory}
    return memory | {
        "OCRSVC_ENGINE": "ppocr" if args.models else "fake",
        "OCRSVC_MODELS": str(folder / "models"),
        "OCRSVC_MODELS_STATE": str(folder / "state"),
        "OCRSVC_MODELS_POLL_S": "0.5",
        "OCRSVC_MODEL": NAME,
        "OCRSVC_ISOLATION": args.isolation,
        "OCRSVC_WORKERS": str(WORKERS),
        "OCRSVC_GRPC_BIND": "127.0.0.1:0",
        "OCRSVC_QUEUE_SIZE": "64",
    }


def _page(args: argparse.Namespace) -> bytes:
    """The page that clients send: a white square, or our reference page."""
    if args.models is None:
        return cv2.imencode(".png", np.full((16, 16, 3), 255, np.uint8))[1].tobytes()
    root = Path(__file__).resolve().parents[1]
    return (root / "ocrsvc" / "engines" / "ppocr" / "reference_page.png").read_bytes()


def _senders(server: Server, page: bytes, count: int) -> list[Callable[[], tuple[str, str]]]:
    port = int(server.wait_for(r"Listening for gRPC at: 127\.0\.0\.1:(\d+)")[1])
    over_http = [http_sender(server.url, page) for _ in range(count - count // 2)]
    return over_http + [grpc_sender(port, page, NAME) for _ in range(count // 2)]


def _texts(
    args: argparse.Namespace, server: Server, page: bytes, versions: list[SwapVersion]
) -> Callable[[str], str | None]:
    """A function that returns the text of a good version, None for a bad one; all real versions read the same."""
    first = http_sender(server.url, page)()[1]
    good = {str(version.number) for version in versions if not version.fault}

    def of(number: str) -> str | None:
        if number not in good:
            return None
        return first if args.models else first.replace(text(1), text(int(number)))

    return of


def _settle(server: Server, version: SwapVersion) -> None:
    """Wait until all workers serve a good version, or a bad one was refused."""
    if version.fault:
        found = server.wait_for(rf"REFUSED {NAME}/{version.number} .*", timeout_s=SETTLE_S)
        print(f"{version.fault}: {found[0]}", flush=True)
    else:
        server.wait_for(rf"SERVING {NAME}/{version.number} ", count=WORKERS, timeout_s=SETTLE_S)


def _report(args: argparse.Namespace, quiet: Seen, disturbed: Seen, spent_s: float) -> int:
    print(f"| {args.isolation} | answers | failed | longest gap | slowest answer |\n|---|---|---|---|---|")
    for name, seen in (("undisturbed", quiet), (f"{args.swaps} versions in {spent_s:.0f} s", disturbed)):
        cells = (seen.answers.total(), seen.wrong.total(), seen.longest_gap_s(), seen.slowest_s)
        print("| {} | {} | {} | {:.3f} s | {:.3f} s |".format(name, *cells))
    for what, count in (quiet.wrong + disturbed.wrong).most_common(10):
        print(f"{count} x {what}")
    figures = {
        "isolation": args.isolation,
        "answers": disturbed.answers,
        "failed": dict(quiet.wrong + disturbed.wrong),
        "longest_gap_s": [quiet.longest_gap_s(), disturbed.longest_gap_s()],
        "slowest_s": [quiet.slowest_s, disturbed.slowest_s],
    }
    print(json.dumps(figures))
    return 1 if figures["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
