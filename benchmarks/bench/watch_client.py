"""Two clients that run while a service is under attack: one has small images read, one asks /healthz.

    python benchmarks/bench/watch_client.py PLAN.json

A process of its own, so that what the attack costs its sender does not count. Each request is due at its own time and
its latency counts from then, so that requests held up by one before them count as late. Every request is a line of JSON
on stdout as soon as it is over: its kind, when it was due and how long it took (both on the monotonic clock, which all
processes share), and its status; 0 is a connection that broke or was not answered in time, 1 a wrong answer.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

_RECEIVE_BYTES = 1 << 16
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


class _Client(threading.Thread):
    """Sends one request again and again, each over a connection of its own."""

    def __init__(self, plan: dict[str, Any], kind: dict[str, Any], lock: threading.Lock) -> None:
        super().__init__(daemon=True)
        self._address = (plan["host"], plan["port"])
        self._limit_s = plan["limit_s"]
        self._message = Path(kind["message"]).read_bytes()
        self._expected = kind["expected"].encode()
        self._name, self._source, self._every_s = kind["name"], kind["source"], kind["every_s"]
        self._lock = lock

    def run(self) -> None:
        """Until the process ends."""
        due_s = time.monotonic()
        while True:
            time.sleep(max(0.0, due_s - time.monotonic()))
            status = self._exchange()
            seconds = time.monotonic() - due_s
            with self._lock:
                print(json.dumps([self._name, due_s, seconds, status]), flush=True)
            due_s += self._every_s

    def _exchange(self) -> int:
        """The status; 0 when there was none, 1 when an answer of 200 does not hold what it should."""
        try:
            with socket.create_connection(self._address, self._limit_s, (self._source, 0)) as wire:
                wire.sendall(self._message)
                answer = b""
                while data := wire.recv(_RECEIVE_BYTES):
                    answer += data
        except OSError:
            return 0
        found = _STATUS.match(answer)
        status = int(found[1]) if found else 0
        return 1 if status == 200 and self._expected not in answer else status


def main() -> None:
    """Until stdin is closed."""
    plan = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    lock = threading.Lock()
    for kind in plan["kinds"]:
        _Client(plan, kind, lock).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
