"""Checks that one worker keeps five Tr threads busy, and measures its own cost, with a double of libtr.so.

    python benchmarks/tr_double.py [--seconds 10] [--clients 20] [--adapter native|trwebocr_cpp]

The double of libtr from the tests sleeps 40 ms per call, so five engine threads can answer 125 requests per second.
Twenty clients send pages of about 135 kB, on new and then on kept-alive connections; every answer is compared with the
answer that the same page got alone. Exit code 1 on a wrong answer or a missed bar. Needs `cc`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.client import text_of
from bench.load import Request, Result, as_dict, run_load, summarise
from bench.machine import print_machine
from bench.pages import scan
from bench.results import write_result
from bench.service import ROOT, Service, ask, form_with_file, started

SLEEP_MS = 40
ENGINE_THREADS = 5
PAGES = 6
PATHS = {"native": "/v1/ocr", "trwebocr_cpp": "/api/trocr"}

BAR_PER_SECOND = 120.0
BAR_P99_MS = 250.0
BAR_CPU_MS = 4.0


def requests_for(adapter: str) -> list[Request]:
    """A request for each page, all different."""
    forms = (form_with_file(scan(number), "page.jpg", "image/jpeg") for number in range(PAGES))
    return [
        Request(f"page {number}", PATHS[adapter], content_type, body)
        for number, (body, content_type) in enumerate(forms)
    ]


def read_alone(service: Service, requests: Sequence[Request]) -> dict[str, str]:
    """The text of each page, requested alone.

    Exits if one is refused, or if two texts are equal, because then swapped answers could not be detected.
    """
    answers = {
        request.name: ask(service.url, "POST", request.path, request.body, request.content_type) for request in requests
    }
    if refused := [answer for answer in answers.values() if answer.status != 200]:
        sys.exit(f"A page sent alone got {refused[0].status}: {refused[0].text[:300]}")
    kind = "text/plain" if requests[0].path == PATHS["trwebocr_cpp"] else "application/json"
    texts = {name: text_of(answer.text.encode(), kind) for name, answer in answers.items()}
    if len(set(texts.values())) < len(texts) or not all(texts.values()):
        sys.exit(f"Two pages have the same text: {texts}")
    return texts


def missed(result: Result, expected: dict[str, str]) -> Iterator[str]:
    """Wrong answers and missed bars of a load."""
    for seen in result.wrong(expected):
        yield f"WRONG {seen.count} x status {seen.status} for {seen.name}: {seen.text[:120]!r}"
    if result.per_second < BAR_PER_SECOND:
        yield f"MISSED {result.per_second:.1f} req/s is below {BAR_PER_SECOND:.0f}"
    if result.quantile_ms(0.99) > BAR_P99_MS:
        yield f"MISSED p99 of {result.quantile_ms(0.99):.0f} ms is above {BAR_P99_MS:.0f}"
    if result.cpu_ms > BAR_CPU_MS:
        yield f"MISSED {result.cpu_ms:.2f} ms of CPU per request is above {BAR_CPU_MS:.0f}"


def compare(service: Service, adapter: str, clients: int, seconds: float) -> tuple[dict[str, object], int]:
    """Load both kinds of connections; returns figures by kind, and the number of complaints."""
    requests = requests_for(adapter)
    expected = read_alone(service, requests)
    figures: dict[str, object] = {}
    complaints: list[str] = []
    for name, keep_alive in (("new connections", False), ("kept-alive connections", True)):
        result = run_load(service, requests, clients, seconds, keep_alive=keep_alive)
        print(f"{name}: {summarise(result)}")
        found = list(missed(result, expected))
        print("\n".join(f"  {line}" for line in found) or "  every answer is right, every bar is met")
        figures[name] = as_dict(result) | {"complaints": found}
        complaints += found
    return figures, len(complaints)


def main() -> int:
    """Run the benchmark; returns 0 if every answer is right and every bar is met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="per kind of connection")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--adapter", choices=PATHS, default="native")
    parser.add_argument("--out", type=Path, help="JSON output file; default results/tr_double_ADAPTER.json")
    args = parser.parse_args()
    print_machine()
    print(
        f"load: {args.clients} clients, {PAGES} pages of {len(scan(0)) // 1000} kB, {args.adapter}, {args.seconds:g} s"
    )
    with tempfile.TemporaryDirectory() as home:
        subprocess.run([sys.executable, str(ROOT / "tests" / "doubles" / "tr_home.py"), home], check=True)
        env = {
            "OCRSVC_ENGINE": "tr",
            "OCRSVC_ISOLATION": "thread",
            "OCRSVC_TR_HOME": home,
            "OCRSVC_WORKERS": "1",
            "OCRSVC_ENGINE_THREADS": str(ENGINE_THREADS),
            "LIBTR_DOUBLE_SLEEP_MS": str(SLEEP_MS),
        }
        with started(env) as service:
            figures, complaints = compare(service, args.adapter, args.clients, args.seconds)
    write_result(f"tr_double_{args.adapter}", {"clients": args.clients, "loads": figures}, args.out)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
