"""The load generator: a process that runs many HTTP clients.

    python benchmarks/bench/client.py PLAN.json

Each client is a thread with a raw socket that sends prepared requests. A request costs about 0.2 ms of processor time
here, which leaves the cores to the service under test. The results go to stdout as JSON.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

_SOCKET_LIMIT_S = 60.0
_RECEIVE_BYTES = 1 << 16


def text_of(body: bytes, content_type: str) -> str:
    """The text in an answer: the pages' texts if it is JSON (without times and ids), else the body."""
    plain = body.decode("utf-8", "replace")
    if "json" not in content_type:
        return plain
    answer = json.loads(plain)
    if "pages" in answer:
        return "\f".join(page.get("text", "") for page in answer["pages"])
    if "raw_out" in answer.get("data", {}):
        return "\n".join(line[1] for line in answer["data"]["raw_out"])
    return plain


class _Client(threading.Thread):
    """A client that sends a request, waits for the whole answer, and repeats."""

    def __init__(
        self, plan: dict[str, Any], sends: Sequence[tuple[str, bytes]], first: int, go: threading.Barrier
    ) -> None:
        super().__init__()
        self._address = (plan["host"], plan["port"])
        self._keep_alive = plan["keep_alive"]
        self._seconds = plan["seconds"]
        self._sends = sends
        self._turn = first
        self._go = go
        self._socket: socket.socket | None = None
        self.latencies_s: list[float] = []
        self.answers: Counter[tuple[str, bytes, bytes]] = Counter()

    def run(self) -> None:
        """Send requests until the time is over."""
        self._go.wait()
        end_s = time.perf_counter() + self._seconds
        while (began_s := time.perf_counter()) < end_s:
            name, message = self._sends[self._turn % len(self._sends)]
            self._turn += 1
            answer = self._exchange(message)
            self.latencies_s.append(time.perf_counter() - began_s)
            self.answers[(name, *answer)] += 1
        self._hang_up()

    def _exchange(self, message: bytes) -> tuple[bytes, bytes]:
        """Head and body of the answer; the head is empty when the connection broke."""
        try:
            if self._socket is None:
                self._socket = socket.create_connection(self._address, _SOCKET_LIMIT_S)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.sendall(message)
            head, body = _receive(self._socket)
        except OSError as error:
            self._hang_up()
            return b"", repr(error).encode()
        if not self._keep_alive or b"\r\nconnection: close" in head.lower():
            self._hang_up()
        return head, body

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _receive(connection: socket.socket) -> tuple[bytes, bytes]:
    """One whole answer with a Content-Length. Raises OSError when the connection closes early."""
    data = b""
    while (end := data.find(b"\r\n\r\n")) < 0:
        data += _more(connection)
    head, body = data[:end], data[end + 4 :]
    length = int(head.lower().partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += _more(connection)
    return head, body


def _more(connection: socket.socket) -> bytes:
    data = connection.recv(_RECEIVE_BYTES)
    if not data:
        raise ConnectionError("the service closed the connection before the end of its answer")
    return data


def _messages(plan: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    connection = "keep-alive" if plan["keep_alive"] else "close"
    for request in plan["requests"]:
        body = Path(request["body"]).read_bytes()
        head = (
            f"POST {request['path']} HTTP/1.1\r\nHost: {plan['host']}:{plan['port']}\r\nConnection: {connection}\r\n"
            f"Content-Type: {request['content_type']}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        yield request["name"], head.encode() + body


def _understand(answers: Counter[tuple[str, bytes, bytes]]) -> list[dict[str, Any]]:
    """Counts of answers by name, status and text. Runs after the load, because parsing would slow the clients down."""
    kinds: Counter[tuple[str, int, str]] = Counter()
    for (name, head, body), count in answers.items():
        status = int(head.split(b" ", 2)[1]) if head else 0
        content_type = head.lower().partition(b"\r\ncontent-type:")[2].partition(b"\r\n")[0].decode("latin-1")
        kinds[name, status, text_of(body, content_type)] += count
    return [
        {"name": name, "status": status, "text": text, "count": count} for (name, status, text), count in kinds.items()
    ]


def _send(plan: dict[str, Any]) -> dict[str, Any]:
    sends = list(_messages(plan))
    go = threading.Barrier(plan["clients"] + 1)
    clients = [_Client(plan, sends, first, go) for first in range(plan["clients"])]
    for client in clients:
        client.start()
    go.wait()
    began_s, cpu_before_s = time.perf_counter(), time.process_time()
    for client in clients:
        client.join()
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_before_s
    answers: Counter[tuple[str, bytes, bytes]] = Counter()
    for client in clients:
        answers.update(client.answers)
    latencies_s = [latency_s for client in clients for latency_s in client.latencies_s]
    return {"latencies_s": latencies_s, "wall_s": wall_s, "cpu_s": cpu_s, "seen": _understand(answers)}


if __name__ == "__main__":
    json.dump(_send(json.loads(Path(sys.argv[1]).read_text("utf-8"))), sys.stdout)
