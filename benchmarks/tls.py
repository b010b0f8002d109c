"""TLS: handshakes per minute, effect of incomplete handshakes, cost of a request, replacement of a certificate.

    python benchmarks/tls.py [--seconds 10] [--rounds 5]

The fake engine waits 0 ms. Clients and service share the machine, so the rate of handshakes is lower than the service
could reach alone; that rate is computed from the processor time per handshake. Figures to compare are measured in turn
in one run. If testssl (or testssl.sh) and sslyze are installed, they run as well, and their findings are printed. Exit
code 1 if a request failed or a scanner found something.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bench.certificates import Authority, Kind
from bench.machine import cores, print_machine
from bench.pages import tiny_png
from bench.results import write_result
from bench.service import Service, connect, started
from bench.tls_clients import LoadClients, half_handshakes, handshakes, latencies_s

GOAL_A_MINUTE = 5000
KINDS: Final[tuple[Kind, ...]] = ("ECDSA", "RSA")
# Data that is not an image is received and refused: decoding would take most of the time, and vary more than TLS costs.
BODIES: Final = (
    ("a tiny PNG", tiny_png()),
    ("no image", b"no image" * (1 << 14)),
    ("no image", b"no image" * (1 << 18)),
)
_HALF = 200
_CHECKS = 300
_SCAN_S = 600.0
_LIMIT_S = 30.0
_FAKE = {"OCRSVC_ENGINE": "fake", "OCRSVC_WORKERS": "2", "OCRSVC_OPS": "open"}
# Findings about this benchmark's own authority, and curves that Python cannot exclude.
_ACCEPTED: Final = re.compile(
    r"neither CRL nor OCSP|certificate_path_validation"
    r"|tls_curves: TLS curves {('secp521r1', 'X448'|'X448', 'secp521r1')}"
)


def measure_handshakes(authority: Authority, kind: Kind, clients: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Measure handshakes; yields a row per TLS version."""
    with started({**_FAKE, **authority.issue(kind)}) as service:
        for version in (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2):
            before_s, began_s = service.processes.cpu_s(), time.monotonic()
            made = handshakes(service, version, clients, seconds)
            # The clients' processes start in this time too, but make no handshakes yet.
            spent_s, wall_s = service.processes.cpu_s() - before_s, min(seconds, time.monotonic() - began_s)
            row = {
                "key": kind,
                "version": version.name,
                "a_minute": round(made * 60 / wall_s),
                "cpu_ms": round(spent_s * 1000 / made, 3),
                "alone_a_minute": round(cores() * 60 * made / spent_s),
            }
            print(
                f"handshakes, {kind} {version.name}: {row['a_minute']} per minute with {clients} clients on the same "
                f"cores; {row['cpu_ms']} ms CPU each, so {row['alone_a_minute']} on {cores()} cores alone "
                f"(goal: {GOAL_A_MINUTE})"
            )
            yield row


def quantile_ms(found_s: Sequence[float], share: float) -> float:
    """The milliseconds that this share of the values did not exceed."""
    return round(sorted(found_s)[min(len(found_s) - 1, int(share * len(found_s)))] * 1000, 2)


def measure_half_handshakes(authority: Authority, rounds: int) -> dict[str, Any]:
    """Latencies of health checks with and without incomplete handshakes, in turn."""
    without: list[float] = []
    beside: list[float] = []
    with started({**_FAKE, **authority.issue("RSA")}) as service:
        for _ in range(rounds):
            without += latencies_s(service, _CHECKS)
            with half_handshakes(service, _HALF):
                beside += latencies_s(service, _CHECKS)
    found = {
        name: {"p50_ms": quantile_ms(times_s, 0.5), "p99_ms": quantile_ms(times_s, 0.99)}
        for name, times_s in (("without", without), ("beside", beside))
    }
    print(f"{_HALF} incomplete handshakes (RSA), {rounds * _CHECKS} health checks with and without: {found}")
    return found


def request_cpu_ms(service: Service, body: bytes, requests: int) -> float:
    """Processor time of the service per page on a kept-alive connection."""
    connection = connect(service.url, _LIMIT_S)
    before_s = 0.0
    for number in range(requests + 10):
        if number == 10:
            before_s = service.processes.cpu_s()
        connection.request("POST", "/v1/ocr", body)
        assert connection.getresponse().read()
    connection.close()
    return (service.processes.cpu_s() - before_s) * 1000 / requests


def measure_requests(authority: Authority, rounds: int) -> list[dict[str, Any]]:
    """Processor time per request with and without TLS, in turn; the fastest round of each."""
    rows = []
    with started(_FAKE) as plain, started({**_FAKE, **authority.issue("ECDSA")}) as tls:
        for name, body in BODIES:
            found: dict[str, list[float]] = {"plain": [], "tls": []}
            for _ in range(rounds):
                for which, service in (("plain", plain), ("tls", tls)):
                    found[which].append(request_cpu_ms(service, body, 300))
            row = {
                "body": name,
                "bytes": len(body),
                **{f"{which}_ms": round(min(ms), 3) for which, ms in found.items()},
            }
            rows.append(row)
            print(
                f"a request on a kept-alive connection, {name} of {len(body)} bytes: {row['plain_ms']} ms CPU plain, "
                f"{row['tls_ms']} ms with TLS"
            )
    return rows


def measure_replacement(authority: Authority, seconds: float) -> dict[str, Any]:
    """Replace the certificate repeatedly under load, between ECDSA and RSA, while workers are replaced as well."""
    env = {**_FAKE, **authority.issue("ECDSA"), "OCRSVC_MAX_REQUESTS": "300"}
    replaced, until_s = 0, time.monotonic() + seconds
    with started(env) as service, LoadClients(service, tiny_png(), clients=8) as clients_under_load:
        while time.monotonic() < until_s:
            fresh = authority.issue("RSA" if replaced % 2 == 0 else "ECDSA")
            if replaced % 2 == 0:
                for name in env.keys() & fresh.keys():
                    shutil.copyfile(fresh[name], env[name])
            replaced += 1
            time.sleep(2.5)
        numbers = _numbers(service)
    found = {
        "replaced": replaced,
        "answers": clients_under_load.answers,
        "failed": len(clients_under_load.failures),
        **numbers,
    }
    print(f"certificate replaced under load: {found} {clients_under_load.failures[:3] or ''}")
    return found


def _numbers(service: Service) -> dict[str, float]:
    connection = connect(service.url, _LIMIT_S)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    wanted = {
        "read_again": r'^ocrsvc_tls_certificate_reads_total{outcome="ok"} (\S+)',
        "workers_replaced": r'^ocrsvc_recycles_total{reason="max_requests"} (\S+)',
    }
    found = {name: re.search(pattern, text, re.MULTILINE) for name, pattern in wanted.items()}
    return {name: float(match[1]) if match else 0.0 for name, match in found.items()}


def scan_with_testssl(service: Service, ca: Path) -> list[str]:
    """Run testssl; returns the lines with findings."""
    program = shutil.which("testssl") or shutil.which("testssl.sh")
    if program is None:
        print("testssl: not installed")
        return []
    quiet = ("--quiet", "--color", "0", "--warnings", "batch")
    command = [program, *quiet, "--add-ca", str(ca), f"{service.host}:{service.port}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SCAN_S, check=False)
    bad = [
        line.strip()
        for line in done.stdout.splitlines()
        if re.search(r"NOT ok|VULNERABLE \(NOT|WARN|Fatal", line) and not _ACCEPTED.search(line)
    ]
    print(f"testssl: {done.stdout.count('(OK)')} checks are OK, {len(bad)} are not {bad or ''}")
    return bad if "(OK)" in done.stdout else ["testssl did not run"]


def scan_with_sslyze(service: Service) -> list[str]:
    """Run sslyze; returns deviations from Mozilla's intermediate configuration."""
    program = shutil.which("sslyze")
    if program is None:
        print("sslyze: not installed")
        return []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.json")
        command = [program, "--mozilla_config=intermediate", f"--json_out={out}", f"{service.host}:{service.port}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SCAN_S, check=False)
        status = json.loads(out.read_text())["server_scan_results"][0]["scan_status"]
    verdict = done.stdout[done.stdout.find("COMPLIANCE") :]
    found = re.findall(r"^ +\* (\w+: .*)$", verdict, re.MULTILINE)
    print(f"sslyze: {status}, compared with Mozilla's intermediate configuration: {found or 'compliant'}")
    return [line for line in found if not _ACCEPTED.search(line)] + ([] if status == "COMPLETED" else [status])


def scan_all(authority: Authority) -> list[str]:
    """Findings of the scanners with each kind of key."""
    found = []
    for kind in KINDS:
        with started({**_FAKE, **authority.issue(kind)}) as service:
            found += [*scan_with_testssl(service, authority.file), *scan_with_sslyze(service)]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0 if nothing failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="per load")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each comparison")
    parser.add_argument("--clients", type=int, default=4, help="number of clients for the handshakes")
    parser.add_argument("--out", type=Path, help="JSON output file; default results/tls.json")
    args = parser.parse_args(arguments)
    print_machine()
    print(
        f"load: clients on the same machine; {args.seconds:g} s per load, {args.rounds} rounds; {ssl.OPENSSL_VERSION}"
    )
    with contextlib.ExitStack() as stack:
        authority = Authority(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        rows = [row for kind in KINDS for row in measure_handshakes(authority, kind, args.clients, args.seconds)]
        half = measure_half_handshakes(authority, args.rounds)
        requests = measure_requests(authority, args.rounds)
        replacement = measure_replacement(authority, 4 * args.seconds)
        found = scan_all(authority)
    figures = {"handshakes": rows, "half_handshakes": half, "requests": requests, "replacement": replacement}
    write_result("tls", {**figures, "scanners": found}, args.out)
    return 1 if replacement["failed"] or found else 0


if __name__ == "__main__":
    sys.exit(main())
