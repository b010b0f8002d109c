"""Faults of hosts under load: killed, cut off from the network, drained, and slowed down."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from network_hosts import Host

_SLOW_BITS_PER_S: Final = 1_000_000


def _kill(host: Host) -> Callable[[], None]:
    host.kill()
    return lambda: _start(host)


def _cut_off(host: Host) -> Callable[[], None]:
    host.network.disconnect(host.node)
    return lambda: host.network.reconnect(host.node)


def _drain(host: Host) -> Callable[[], None]:
    host.terminate()
    return lambda: _start_again(host)


def _slow(host: Host) -> Callable[[], None]:
    host.network.throttle(host.node, _SLOW_BITS_PER_S)
    return lambda: host.network.unthrottle(host.node)


FAULTS: Final[Mapping[str, Callable[[Host], Callable[[], None]]]] = {
    "kill": _kill,
    "cut off": _cut_off,
    "drain": _drain,
    "slow": _slow,
}
"""Faults by name. Each function injects the fault and returns a function that lifts it."""


def turns_of(names: Sequence[str], hosts: Sequence[Host]) -> Iterator[tuple[str, Host]]:
    """Repeat the faults in turn, each on the next host, without end."""
    return zip(itertools.cycle(names), itertools.cycle(hosts), strict=False)


@contextmanager
def faults_happen(turns: Iterator[tuple[str, Host]], every_s: float) -> Iterator[Counter[str]]:
    """While the block runs, inject a fault every `every_s` seconds and lift it half that time later.

    Yields the number of faults by name. The last fault is lifted before the block ends.
    """
    done, happened = threading.Event(), Counter[str]()

    def inject_faults() -> None:
        next_s = time.monotonic() + every_s / 2
        while not _wait(done, next_s):
            turn = next(turns, None)
            if turn is None:
                return
            name, host = turn
            end = FAULTS[name](host)
            happened[name] += 1
            _wait(done, next_s + every_s / 2)
            end()
            next_s += every_s

    thread = threading.Thread(target=inject_faults)
    thread.start()
    try:
        yield happened
    finally:
        done.set()
        thread.join()


def _wait(done: threading.Event, until_s: float) -> bool:
    """Wait until `until_s` or until `done` is set; returns whether it is set."""
    return done.wait(max(0.0, until_s - time.monotonic()))


def _start(host: Host) -> None:
    host.start()
    host.wait_until_ready()


def _start_again(host: Host) -> None:
    assert host.server is not None
    host.server.wait_for_exit()
    host.kill()
    _start(host)
