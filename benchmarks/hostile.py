"""Effect of one hostile client on other clients' latency and on the service's memory and processor time.

    python benchmarks/hostile.py [--format paddlex] [--only "text equals"] [--short] [--list]
    python benchmarks/hostile.py --key wrong [--against results/hostile.json]

Sends every entry of the table of hostile requests (tests/hostile_requests.py) to one worker with default settings, the
fake engine, every format and gRPC. Each entry is repeated for at least a second. Meanwhile an innocent client has 20
small images per second read, and another asks /healthz over a new connection 20 times per second, both from distinct
addresses. Prints for each entry whether the worker is still the same process, the slowest /healthz, the innocent
client's p99 compared with an undisturbed service, the peak growth of resident memory, and the time until it recovered.

With --key the service requires API keys: the innocent client has one, the attackers send none, a wrong or revoked one,
or one with the wrong scope, and none of their requests may be answered with a status below 300. --against compares the
processor time with that of an earlier run. Exit code 1 if a bound is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.attacker_keys import KINDS, AttackerKeys, attacker_keys
from bench.machine import print_machine
from bench.results import write_result
from bench.service import ROOT, Service, ask, form_with_file, free_port, started
from bench.watching import HEALTH, HOSTILE_SOURCE, INNOCENT, Watch, quantile_ms, watching

sys.path.insert(0, str(ROOT / "tests"))
from hostile_client import Answer, send
from hostile_files import jpeg
from hostile_requests import Entry, of_folder, table

INNOCENT_PER_S = 20.0
UNDISTURBED_S = 10.0
HEALTH_LIMIT_S = 1.0
P99_TIMES, P99_MORE_MS = 2.0, 100.0
MAX_REFUSED_SHARE = 0.1
BACK_S, BACK_MB = 60.0, 50.0
# A request with a timeout of 60 s may be answered this late.
ANSWER_LIMIT_S = 75.0
_PAUSE_S = 0.1
_REST_S = 0.2


@dataclass(frozen=True, slots=True)
class Baseline:
    """Figures of the service without an attack; `cpu_share` is the share of one core."""

    p50_ms: float
    p99_ms: float
    health_ms: float
    rss_mb: float
    cpu_share: float


@dataclass(frozen=True, slots=True)
class Row:
    """Effects of one entry.

    Attributes:
        title: Format and kind of the entry.
        sent: Number of connections.
        answers: Number of answers by status; 0 is no answer.
        slowest_s: Longest time until a connection ended.
        health_ms, p99_ms: The slowest /healthz, and the innocent client's p99.
        failed, refused: The innocent client's requests with no or a wrong answer, and those refused with 429 or 503.
        asked: All its requests meanwhile.
        growth_mb: Peak resident memory minus that before.
        back_s: Seconds until memory recovered; BACK_S if it did not.
        kept_mb: Growth that remained then.
        cpu_ms: Processor time of the service per connection, without that for the other clients.
        missed: The missed bounds.
    """

    title: str
    sent: int
    answers: dict[int, int]
    slowest_s: float
    health_ms: float
    p99_ms: float
    failed: int
    refused: int
    asked: int
    growth_mb: float
    back_s: float
    kept_mb: float
    cpu_ms: float
    missed: tuple[str, ...]


def innocent_message(service: Service, field: str) -> tuple[bytes, str]:
    """A request with a small JPEG in a form and the given header line, and a text that its answer contains."""
    body, content_type = form_with_file(jpeg(), "page.jpg", "image/jpeg")
    name, _, value = field.partition(": ")
    answer = ask(service.url, "POST", "/v1/ocr", body, content_type, headers={name: value} if name else None)
    if answer.status != 200:
        sys.exit(f"The innocent client got {answer.status}: {answer.text[:300]}")
    more = f"{field}\r\n" if field else ""
    head = (
        f"POST /v1/ocr HTTP/1.1\r\nHost: {service.host}:{service.port}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n{more}\r\n"
    )
    return head.encode() + body, json.dumps(json.loads(answer.text)["pages"][0]["text"], ensure_ascii=False)


def measure_undisturbed(service: Service, watch: Watch) -> Baseline:
    """Figures of the undisturbed service, after a second of warm-up."""
    time.sleep(1.0)
    from_s, used_s = time.monotonic(), service.processes.cpu_s()
    time.sleep(UNDISTURBED_S)
    to_s, cpu_s = time.monotonic(), service.processes.cpu_s() - used_s
    innocent, health = (watch.seen(kind, from_s, to_s) for kind in (INNOCENT, HEALTH))
    return Baseline(
        round(quantile_ms(innocent, 0.5), 1),
        round(quantile_ms(innocent, 0.99), 1),
        round(quantile_ms(health, 1.0), 1),
        round(service.processes.rss_mb(), 1),
        round(cpu_s / (to_s - from_s), 4),
    )


class Attack:
    """Sends entries to a watched service.

    Args:
        service: The service.
        rpc_port: Its gRPC port.
        watch: Records what the other clients see.
        undisturbed: Figures before the attack.
        options: The command line.
        field: Header line with the attacker's key; empty for none.
    """

    def __init__(
        self,
        service: Service,
        rpc_port: int,
        watch: Watch,
        undisturbed: Baseline,
        options: argparse.Namespace,
        field: bytes,
    ) -> None:
        self._service = service
        self._rpc_port = rpc_port
        self._watch = watch
        self._undisturbed = undisturbed
        self._options = options
        self._field = field

    def run(self, entry: Entry) -> Row:
        """Repeat one entry for its time, and judge the effects on the other clients."""
        processes = self._service.processes
        workers, before_mb, used_s = processes.workers(), processes.rss_mb(), processes.cpu_s()
        processes.forget_peak()
        from_s = time.monotonic()
        answers = list(self._send(entry, from_s + self._options.seconds))
        to_s, cpu_s = time.monotonic() + _REST_S, processes.cpu_s() - used_s
        innocent, health = (self._watch.seen(kind, from_s, to_s) for kind in (INNOCENT, HEALTH))
        peak_mb = max(processes.peak_mb(), self._watch.peak_mb(from_s, to_s))
        back_s, kept_mb = self._wait_for_memory(before_mb)
        lost = [pid for pid in workers if pid not in processes.workers()]
        figures: dict[str, Any] = {
            "title": entry.title,
            "sent": len(answers),
            "answers": dict(sorted(Counter(answer.status for answer in answers).items())),
            "slowest_s": round(max(answer.seconds for answer in answers), 2),
            "health_ms": round(quantile_ms(health, 1.0), 1),
            "p99_ms": round(quantile_ms(innocent, 0.99), 1),
            "failed": sum(seen.status not in {200, 429, 503} for seen in innocent + health),
            "refused": sum(seen.status in {429, 503} for seen in innocent),
            "asked": len(innocent),
            "growth_mb": round(max(0.0, peak_mb - before_mb), 1),
            "back_s": round(back_s, 1),
            "kept_mb": round(kept_mb, 1),
            "cpu_ms": round(1000 * (cpu_s - self._undisturbed.cpu_share * (to_s - from_s)) / len(answers), 2),
        }
        return Row(**figures, missed=tuple(self._missed(entry, figures, answers, lost)))

    def _send(self, entry: Entry, until_s: float) -> Iterator[Answer]:
        port = self._rpc_port if entry.format == "grpc" else self._service.port
        address = (self._service.host, port)
        while True:
            short, field = self._options.short, self._field
            yield from send(entry, address, short=short, limit_s=ANSWER_LIMIT_S, source=HOSTILE_SOURCE, field=field)
            if time.monotonic() >= until_s:
                return
            # Pause: the bounds are on the cost of one request, not on the rate of refusals.
            time.sleep(_PAUSE_S)

    def _wait_for_memory(self, before_mb: float) -> tuple[float, float]:
        """Seconds until memory has recovered, and the growth that remains."""
        began_s = time.monotonic()
        while (kept_mb := self._service.processes.rss_mb() - before_mb) > BACK_MB:
            if time.monotonic() - began_s > BACK_S:
                break
            time.sleep(0.1)
        return time.monotonic() - began_s, kept_mb

    def _missed(
        self, entry: Entry, figures: dict[str, Any], answers: Sequence[Answer], lost: Sequence[int]
    ) -> Iterator[str]:
        """The bounds that an entry misses."""
        most_p99_ms = P99_TIMES * self._undisturbed.p99_ms + P99_MORE_MS
        bounds = {
            f"worker {lost} lost": bool(lost),
            f"/healthz took {figures['health_ms']:.0f} ms": figures["health_ms"] > 1000 * HEALTH_LIMIT_S,
            f"p99 {figures['p99_ms']:.0f} ms over {most_p99_ms:.0f}": figures["p99_ms"] > most_p99_ms,
            f"{figures['failed']} failed": figures["failed"] > 0,
            f"{figures['refused']} of {figures['asked']} refused": (
                figures["refused"] > MAX_REFUSED_SHARE * figures["asked"]
            ),
            f"{figures['growth_mb']:.0f} MB over {entry.most_mb}": figures["growth_mb"] > entry.most_mb,
            f"{figures['kept_mb']:.0f} MB kept after {BACK_S:.0f} s": figures["kept_mb"] > BACK_MB,
            "answered 500": 500 in figures["answers"],
            "answered without a valid key": (
                self._options.key is not None
                and entry.format not in {"http", "grpc"}
                and any(200 <= status < 300 for status in figures["answers"])
            ),
            "not answered": any(not answer.ended for answer in answers) and _expects_an_end(entry),
        }
        yield from (bound for bound, missed in bounds.items() if missed)


def _expects_an_end(entry: Entry) -> bool:
    """Whether every connection sends a complete HTTP request and waits for the answer."""
    return entry.format != "grpc" and not any(
        conversation.pause_s or conversation.hold_s for conversation in entry.conversations
    )


def print_row(row: Row) -> None:
    """Print a row of the table."""
    verdict = "; ".join(row.missed) or "ok"
    print(
        f"{row.title:<52} {row.slowest_s:6.2f} {row.health_ms:7.0f} {row.p99_ms:7.0f} {row.refused:4d} "
        f"{row.growth_mb:6.0f} {row.back_s:5.1f}  {row.answers}  {verdict}",
        flush=True,
    )


def print_comparison(rows: Sequence[Row], file: Path) -> None:
    """Print the processor time of HTTP entries now and in an earlier run; gRPC has no keys."""
    before = {row["title"]: row["cpu_ms"] for row in json.loads(file.read_text("utf-8"))["rows"]}
    both = [row for row in rows if row.title in before and not row.title.startswith("grpc")]
    now_ms, before_ms = sum(row.cpu_ms for row in both), sum(before[row.title] for row in both)
    print(f"{len(both)} entries, one connection each: {now_ms:.0f} ms of processor time, earlier {before_ms:.0f} ms")


def attack_all(
    service: Service, rpc_port: int, entries: Sequence[Entry], options: argparse.Namespace, keys: AttackerKeys
) -> tuple[Baseline, list[Row]]:
    """Send all entries, one after the other."""
    message, expected = innocent_message(service, keys.innocent)
    with watching(service, message, expected, INNOCENT_PER_S) as watch:
        undisturbed = measure_undisturbed(service, watch)
        print(f"undisturbed: {asdict(undisturbed)}")
        print(f"{'entry':<52} {'slow s':>6} {'health':>7} {'p99 ms':>7} {'503':>4} {'MB':>6} {'back s':>5}  answers")
        attack = Attack(service, rpc_port, watch, undisturbed, options, keys.hostile.encode())
        rows = []
        for entry in entries:
            rows.append(attack.run(entry))
            print_row(rows[-1])
        return undisturbed, rows


def chosen(options: argparse.Namespace) -> list[Entry]:
    """The entries that the command line selects."""
    folder = options.shared / "bad"
    found = table() + (of_folder(folder) if folder.is_dir() else [])
    if not folder.is_dir():
        print(f"skipped: damaged files, because {folder} does not exist (--shared)")
    return [
        entry
        for entry in found
        if options.format in {None, entry.format} and (options.only is None or options.only in entry.title)
    ]


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", help="entries whose title, as printed by --list, contains this")
    parser.add_argument("--format", help="one wire format's name, native, http or grpc")
    parser.add_argument("--list", action="store_true", help="print the titles and exit")
    parser.add_argument("--short", action="store_true", help="short forms of the entries, as in the tests")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long an entry is repeated")
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="folder with bad/")
    parser.add_argument("--key", choices=KINDS, help="require API keys, and attack with no or an invalid key")
    parser.add_argument("--against", type=Path, help="JSON file of an earlier run to compare processor time with")
    parser.add_argument("--out", type=Path, help="JSON output file; default results/hostile.json")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0 if every bound is kept."""
    options = _arguments(arguments)
    entries = chosen(options)
    if options.list:
        print("\n".join(entry.title for entry in entries))
        return 0
    if not entries:
        sys.exit("No such entry; --list shows all.")
    print_machine()
    rpc_port = free_port()
    env = {"OCRSVC_ENGINE": "fake", "OCRSVC_WORKERS": "1", "OCRSVC_GRPC_BIND": f"127.0.0.1:{rpc_port}"}
    with attacker_keys(options.key) as keys, started({**env, **keys.env}) as service:
        undisturbed, rows = attack_all(service, rpc_port, entries, options, keys)
    missed = [row for row in rows if row.missed]
    print(f"{len(rows)} entries, {len(missed)} miss a bound")
    if options.against is not None:
        print_comparison(rows, options.against)
    figures: dict[str, object] = {
        "settings": env | {"OCRSVC_GRPC_BIND": "a free port of the loopback"},
        "short": options.short,
        "key": options.key,
        "undisturbed": asdict(undisturbed),
        "rows": [asdict(row) for row in rows],
    }
    write_result("hostile", figures, options.out)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
