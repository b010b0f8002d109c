"""Upgrades the service repeatedly under load, while eight clients check every answer.

    python benchmarks/upgrade.py                three upgrades in each of four ways
    python benchmarks/upgrade.py --rounds 10

The ways are SIGHUP after the files are replaced; a restart of the whole service while its socket stays open, as with
systemd; and two hosts, replaced one after the other, behind nginx and behind HAProxy. The fake engine takes 0.1 s per
image. The last line of stdout is the result as JSON; exit code 1 if any request failed. The program stops if a new
version does not answer.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from bench.machine import print_machine

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from proxies import CLIENTS, ENV, PROXIES, proxied, reading_clients, texts_of
from upgrade_support import HeldSocket, replace_package, serving, version_of, write_package

SETTINGS = {**ENV, "OCRSVC_FAKE_LATENCY_S": "0.1"}
SETTLE_S = 120.0


def settle(outcomes: Counter[str], url: str, version: str) -> None:
    """Wait for three answers per client, then check the version. Raises TimeoutError or AssertionError."""
    wanted, end_s = outcomes.total() + 3 * CLIENTS, time.monotonic() + SETTLE_S
    while outcomes.total() < wanted:
        if time.monotonic() > end_s:
            raise TimeoutError(f"no answers: {outcomes}")
        time.sleep(0.05)
    found = version_of(url)
    assert found == version, f"version {found} answers instead of {version}"


def versions(rounds: int) -> list[str]:
    """The version of each round."""
    return [f"0.{number}.0" for number in range(2, rounds + 2)]


def by_sighup(folder: Path, rounds: int) -> Counter[str]:
    """Replace the files, and send SIGHUP to the arbiter."""
    write_package(folder, "0.1.0")
    with serving(folder, SETTINGS) as server, reading_clients(server.url, texts_of(server.url)) as outcomes:
        for count, version in enumerate(versions(rounds), 1):
            replace_package(folder, version)
            os.kill(server.pid, signal.SIGHUP)
            server.wait_for("RECYCLED worker .*: reload", count=2 * count, timeout_s=SETTLE_S)
            settle(outcomes, server.url, version)
    return outcomes


def by_restart(folder: Path, rounds: int) -> Counter[str]:
    """Stop the service, and start the next one on the same socket."""
    write_package(folder, "0.1.0")
    with closing(HeldSocket(folder, SETTINGS)) as held:
        service = held.start()
        try:
            with reading_clients(held.url, texts_of(held.url)) as outcomes:
                for version in versions(rounds):
                    held.stop(service)
                    replace_package(folder, version)
                    service = held.start()
                    settle(outcomes, held.url, version)
        finally:
            held.stop(service)
    return outcomes


def by_hosts(name: str, folder: Path, rounds: int) -> Counter[str]:
    """Replace two hosts behind a proxy one after the other, each at the same address."""
    (folder / "proxy").mkdir()
    write_package(folder / "0.1.0", "0.1.0")
    with ExitStack() as stack:
        hosts = [stack.enter_context(serving(folder / "0.1.0", SETTINGS, free_port())) for _ in range(2)]
        url = stack.enter_context(proxied(PROXIES[name], folder / "proxy", free_port(), *hosts))
        with reading_clients(url, texts_of(hosts[0].url)) as outcomes:
            for version in versions(rounds):
                write_package(folder / version, version)
                for index, host in enumerate(hosts):
                    port = int(host.url.rpartition(":")[2])
                    host.stop()
                    hosts[index] = stack.enter_context(serving(folder / version, SETTINGS, port))
                settle(outcomes, url, version)
    return outcomes


def free_port() -> int:
    """A free TCP port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


WAYS: Mapping[str, Callable[[Path, int], Counter[str]]] = {
    "SIGHUP": by_sighup,
    "restart on a held socket": by_restart,
    **{f"two hosts behind {name}": partial(by_hosts, name) for name in PROXIES},
}


def main() -> int:
    """Run the benchmark: upgrade each way and print its row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="upgrades in each way")
    args = parser.parse_args()
    print_machine()
    print(f"| {args.rounds} upgrades by | in s | answered | failed |\n|---|---|---|---|", flush=True)
    results = {}
    for name, upgrade in WAYS.items():
        with tempfile.TemporaryDirectory() as folder:
            began_s = time.monotonic()
            outcomes = upgrade(Path(folder), args.rounds)
        right = outcomes.pop("right", 0)
        results[name] = {"answered": right, "failed": dict(outcomes)}
        failures = ", ".join(f"{count} {what}" for what, count in outcomes.items()) or "0"
        print(f"| {name} | {time.monotonic() - began_s:.0f} | {right} | {failures} |", flush=True)
    print(json.dumps(results))
    return 1 if any(result["failed"] for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
