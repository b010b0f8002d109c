"""What happens to hosts while they are asked: one after the other is killed, cut off, drained and slowed down."""

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
    host.network.cut_off(host.node)
    return lambda: host.network.restore(host.node)


def _drain(host: Host) -> Callable[[], None]:
    host.ask_to_end()
    return lambda: _start_again(host)


def _slow(host: Host) -> Callable[[], None]:
    host.network.slow(host.node, _SLOW_BITS_PER_S)
    return lambda: host.network.quicken(host.node)


FAULTS: Final[Mapping[str, Callable[[Host], Callable[[], None]]]] = {
    "kill": _kill,
    "cut off": _cut_off,
    "drain": _drain,
    "slow": _slow,
}
"""Each begins, and gives what ends it."""


def turns_of(names: Sequence[str], hosts: Sequence[Host]) -> Iterator[tuple[str, Host]]:
    """The faults in turn, each to the next host, without end."""
    return zip(itertools.cycle(names), itertools.cycle(hosts), strict=False)


@contextmanager
def faults_happen(turns: Iterator[tuple[str, Host]], every_s: float) -> Iterator[Counter[str]]:
    """While the block runs, a fault begins every so many seconds, and ends in the middle between two. Counts them.

    The last one has ended when the block has.
    """
    done, happened = threading.Event(), Counter[str]()

    def go_on() -> None:
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

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield happened
    finally:
        done.set()
        thread.join()


def _wait(done: threading.Event, until_s: float) -> bool:
    """Wait until then, or until all is over; whether it is."""
    return done.wait(max(0.0, until_s - time.monotonic()))


def _start(host: Host) -> None:
    host.start()
    host.wait_until_ready()


def _start_again(host: Host) -> None:
    assert host.server is not None
    host.server.wait_for_exit()
    host.kill()
    _start(host)
