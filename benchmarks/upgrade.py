"""Upgrades under load: the package is replaced while eight clients check every answer, again and again.

    python benchmarks/upgrade.py                three upgrades in each of four ways
    python benchmarks/upgrade.py --rounds 10

The ways: SIGHUP after the files were replaced; a restart of the whole service on a socket that is held meanwhile, as
systemd does it; and two hosts behind nginx and behind HAProxy, one after the other. The fake engine takes 0.1 s an
image. The last line of stdout is the result as JSON; the exit code is 1 when any request failed. A new version that
does not answer ends the program.
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

from proxies import CLIENTS, ENV, PROXIES, asking, proxied, texts_of
from upgrade_support import HeldSocket, replace_package, serving, version_of, write_package

SETTINGS = {**ENV, "OCRSVC_FAKE_LATENCY_S": "0.1"}
SETTLE_S = 120.0


def settle(outcomes: Counter[str], url: str, version: str) -> None:
    """Wait for three answers for each client; the version must answer. Raises TimeoutError, AssertionError."""
    wanted, end_s = outcomes.total() + 3 * CLIENTS, time.monotonic() + SETTLE_S
    while outcomes.total() < wanted:
        if time.monotonic() > end_s:
            raise TimeoutError(f"no answers: {outcomes}")
        time.sleep(0.05)
    found = version_of(url)
    assert found == version, f"{found} answers, not {version}"


def versions(rounds: int) -> list[str]:
    """The version of each round."""
    return [f"0.{number}.0" for number in range(2, rounds + 2)]


def by_sighup(folder: Path, rounds: int) -> Counter[str]:
    """The files are replaced, and the arbiter gets SIGHUP."""
    write_package(folder, "0.1.0")
    with serving(folder, SETTINGS) as server, asking(server.url, texts_of(server.url)) as outcomes:
        for count, version in enumerate(versions(rounds), 1):
            replace_package(folder, version)
            os.kill(server.pid, signal.SIGHUP)
            server.wait_for("RECYCLED worker .*: reload", count=2 * count, timeout_s=SETTLE_S)
            settle(outcomes, server.url, version)
    return outcomes


def by_restart(folder: Path, rounds: int) -> Counter[str]:
    """The service ends, and another one starts on the same socket."""
    write_package(folder, "0.1.0")
    with closing(HeldSocket(folder, SETTINGS)) as held:
        service = held.start()
        try:
            with asking(held.url, texts_of(held.url)) as outcomes:
                for version in versions(rounds):
                    held.stop(service)
                    replace_package(folder, version)
                    service = held.start()
                    settle(outcomes, held.url, version)
        finally:
            held.stop(service)
    return outcomes


def by_hosts(name: str, folder: Path, rounds: int) -> Counter[str]:
    """Two hosts behind a proxy end one after the other, and each has a successor at its address."""
    (folder / "proxy").mkdir()
    write_package(folder / "0.1.0", "0.1.0")
    with ExitStack() as stack:
        hosts = [stack.enter_context(serving(folder / "0.1.0", SETTINGS, free_port())) for _ in range(2)]
        url = stack.enter_context(proxied(PROXIES[name], folder / "proxy", free_port(), *hosts))
        with asking(url, texts_of(hosts[0].url)) as outcomes:
            for version in versions(rounds):
                write_package(folder / version, version)
                for index, host in enumerate(hosts):
                    port = int(host.url.rpartition(":")[2])
                    host.stop()
                    hosts[index] = stack.enter_context(serving(folder / version, SETTINGS, port))
                settle(outcomes, url, version)
    return outcomes


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


WAYS: Mapping[str, Callable[[Path, int], Counter[str]]] = {
    "SIGHUP": by_sighup,
    "restart on a held socket": by_restart,
    **{f"two hosts behind {name}": partial(by_hosts, name) for name in PROXIES},
}


def main() -> int:
    """Each way, a row of the table, and the result."""
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
        said = ", ".join(f"{count} {what}" for what, count in outcomes.items()) or "0"
        print(f"| {name} | {time.monotonic() - began_s:.0f} | {right} | {said} |", flush=True)
    print(json.dumps(results))
    return 1 if any(result["failed"] for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
