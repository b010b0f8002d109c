"""Two clients that run while a service is under attack: one has small images read, one asks /healthz.

    python benchmarks/bench/watch_client.py PLAN.json

They run in a separate process, so that the attack's cost to its sender does not distort their latencies. Each request
has a due time and its latency counts from then, so a request delayed by an earlier one counts as late. Every finished
request is a JSON line on stdout: kind, due time and duration (on the monotonic clock, which all processes share), and
status. Status 0 is a broken connection or a timeout, 1 is a wrong answer.
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
    """Repeats one request, each time on a new connection."""

    def __init__(self, plan: dict[str, Any], kind: dict[str, Any], lock: threading.Lock) -> None:
        super().__init__(daemon=True)
        self._address = (plan["host"], plan["port"])
        self._limit_s = plan["limit_s"]
        self._message = Path(kind["message"]).read_bytes()
        self._expected = kind["expected"].encode()
        self._name, self._source, self._every_s = kind["name"], kind["source"], kind["every_s"]
        self._lock = lock

    def run(self) -> None:
        """Send requests until the process ends."""
        due_s = time.monotonic()
        while True:
            time.sleep(max(0.0, due_s - time.monotonic()))
            status = self._exchange()
            seconds = time.monotonic() - due_s
            with self._lock:
                print(json.dumps([self._name, due_s, seconds, status]), flush=True)
            due_s += self._every_s

    def _exchange(self) -> int:
        """The answer's status; 0 without an answer, 1 for a 200 without the expected text."""
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
    """Run the clients until stdin is closed."""
    plan = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    lock = threading.Lock()
    for kind in plan["kinds"]:
        _Client(plan, kind, lock).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
