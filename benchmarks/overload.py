"""Latency and refusals at ten times the service's capacity.

    python benchmarks/overload.py [--seconds 60] [--times 10]

The fake engine waits 100 ms per image, so two workers with two engine threads each can read 40 images/s; two cores can
send and refuse ten times as many. First the capacity is measured with enough clients to keep every thread busy. Then
requests arrive at --times that rate in an open loop: each is sent at its due time, whatever happened to the others. One
process sends them all from an event loop. Accepted requests have a deadline; every answer is compared with its image's
text. Exit code 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import sys
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from bench.client import text_of
from bench.load import Request, run_load
from bench.machine import print_machine
from bench.results import write_result
from bench.service import Service, started

LATENCY_S = 0.1
WORKERS, ENGINE_THREADS, PLACES = 2, 2, 16
DEADLINE_S = 5.0
GOODPUT_SHARE = 0.95
REFUSAL_MS = 50.0
RSS_SHARE = 0.02
PATH = "/v1/ocr"
_RECEIVE_BYTES = 1 << 16
_LAST_ANSWERS_S = DEADLINE_S + 5


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of the values does not exceed; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@dataclass(slots=True)
class Call:
    """A request in flight: its due time, expected text, and the answer received so far."""

    due_s: float
    text: str
    answer: bytearray = field(default_factory=bytearray)


@dataclass(slots=True)
class Tally:
    """Results of the requests; times count from each request's due time."""

    accepted_s: list[float] = field(default_factory=list)
    done_at_s: list[float] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)
    retry_after_s: Counter[int] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)


class OpenLoop:
    """Sends requests at their due times over as many kept-alive connections as needed."""

    def __init__(self, service: Service, messages: Sequence[tuple[bytes, str]], per_s: float) -> None:
        self._address = (service.host, service.port)
        self._messages = messages
        self._per_s = per_s
        self._poller = selectors.DefaultSelector()
        self._idle: deque[socket.socket] = deque()
        self._calls: dict[socket.socket, Call] = {}
        self.most_connections = 0
        self.tally = Tally()

    def run(self, seconds: float) -> Tally:
        """Send requests for `seconds`, and wait for all answers."""
        began_s = time.perf_counter()
        end_s, sent = began_s + seconds, 0
        while (now_s := time.perf_counter()) < end_s or (self._calls and now_s < end_s + _LAST_ANSWERS_S):
            due = int((min(now_s, end_s) - began_s) * self._per_s)
            for number in range(sent, due):
                self._send(began_s + number / self._per_s, *self._messages[number % len(self._messages)])
            sent = due
            for key, _ in self._poller.select(1 / self._per_s):
                self._receive(key.fileobj)  # type: ignore[arg-type]  # only sockets are registered
        self.tally.wrong["unanswered"] += len(self._calls)
        self._hang_up()
        return self.tally

    def _send(self, due_s: float, message: bytes, text: str) -> None:
        try:
            wire = self._idle.popleft() if self._idle else self._connect()
            self._calls[wire] = Call(due_s, text)
            # A message of a few hundred bytes never blocks.
            wire.sendall(message)
        except OSError as error:
            self.tally.wrong[type(error).__name__] += 1

    def _connect(self) -> socket.socket:
        wire = socket.create_connection(self._address, DEADLINE_S)
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._poller.register(wire, selectors.EVENT_READ)
        self.most_connections = max(self.most_connections, len(self._poller.get_map()))
        return wire

    def _receive(self, wire: socket.socket) -> None:
        try:
            piece = wire.recv(_RECEIVE_BYTES)
        except OSError:
            piece = b""
        call = self._calls.get(wire)
        if not piece:
            if call is not None:
                self.tally.wrong["closed before the answer"] += 1
            self._drop(wire)
            return
        assert call is not None, "an answer without a request"
        call.answer += piece
        end = call.answer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(call.answer[:end]).lower()
        length = int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
        if len(call.answer) >= end + 4 + length:
            self._note(call, head, bytes(call.answer[end + 4 :]))
            if b"\r\nconnection: close" in head:
                self._drop(wire)
            else:
                del self._calls[wire]
                self._idle.append(wire)

    def _note(self, call: Call, head: bytes, body: bytes) -> None:
        now_s = time.perf_counter()
        status = int(head.split(b" ", 2)[1])
        if status == 503:
            self.tally.refused_s.append(now_s - call.due_s)
            self.tally.retry_after_s[int(head.partition(b"\r\nretry-after:")[2].partition(b"\r\n")[0])] += 1
        elif status == 200 and text_of(body, "application/json") == call.text:
            self.tally.accepted_s.append(now_s - call.due_s)
            self.tally.done_at_s.append(now_s)
        else:
            self.tally.wrong[f"status {status}"] += 1

    def _drop(self, wire: socket.socket) -> None:
        self._calls.pop(wire, None)
        if wire in self._idle:
            self._idle.remove(wire)
        self._poller.unregister(wire)
        wire.close()

    def _hang_up(self) -> None:
        for key in list(self._poller.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]  # only sockets are registered
        self._poller.close()


def make_messages(count: int = 20) -> list[tuple[Request, str]]:
    """Small random images, each with the text that the fake engine returns for it."""
    random = np.random.default_rng(9)
    messages = []
    for number in range(count):
        pixels = random.integers(0, 256, (20, 20 + number), np.uint8)
        body = cv2.imencode(".png", pixels)[1].tobytes()
        text = f"{20 + number}x20\n{zlib.crc32(pixels.tobytes()):08x}"
        messages.append((Request(str(number), PATH, "image/png", body), text))
    return messages


def wire_form(request: Request, host: str) -> bytes:
    """The request as bytes, with its deadline."""
    head = (
        f"POST {request.path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {request.content_type}\r\n"
        f"X-Request-Timeout: {DEADLINE_S}\r\nContent-Length: {len(request.body)}\r\n\r\n"
    )
    return head.encode() + request.body


class MemoryWatch(threading.Thread):
    """Samples the service's resident memory twice per second."""

    def __init__(self, service: Service) -> None:
        super().__init__(name="memory")
        self._service = service
        self._done = threading.Event()
        self.samples_mb: list[float] = []

    def run(self) -> None:
        """Sample until stopped."""
        while not self._done.wait(0.5):
            self.samples_mb.append(self._service.processes.rss_mb())

    def stop(self) -> None:
        """Stop sampling."""
        self._done.set()
        self.join()

    def growth(self) -> float:
        """Growth from the second fifth of the run to the last, as a share; the first is warm-up. 0 for short runs."""
        fifth = len(self.samples_mb) // 5
        if not fifth:
            return 0.0
        early, late = self.samples_mb[fifth : 2 * fifth], self.samples_mb[-fifth:]
        return sum(late) / sum(early) - 1


def measure_capacity(service: Service, messages: Sequence[tuple[Request, str]], seconds: float) -> float:
    """Answers per second while every engine thread is busy and no request is refused."""
    # This many clients fit into the queue even if one worker gets all of them.
    clients = PLACES
    result = run_load(service, [request for request, _ in messages], clients, seconds, keep_alive=True)
    if wrong := result.wrong({request.name: text for request, text in messages}):
        sys.exit(f"WRONG {wrong[:3]}")
    return result.per_second


def overload(service: Service, seconds: float, times: float, capacity_s: float) -> dict[str, Any]:
    """Measure the capacity, then the overload; returns the figures."""
    messages = make_messages()
    capacity = measure_capacity(service, messages, capacity_s)
    print(f"capacity: {capacity:.1f}/s (expected from the settings: {WORKERS * ENGINE_THREADS / LATENCY_S:.0f}/s)")
    host = f"{service.host}:{service.port}"
    loop = OpenLoop(service, [(wire_form(request, host), text) for request, text in messages], capacity * times)
    watch = MemoryWatch(service)
    watch.start()
    cpu_s, own_s, began_s = service.processes.cpu_s(), time.process_time(), time.perf_counter()
    tally = loop.run(seconds)
    cpu_s, own_s = service.processes.cpu_s() - cpu_s, time.process_time() - own_s
    watch.stop()
    inside = sum(moment < began_s + seconds for moment in tally.done_at_s)
    return {
        "capacity_per_s": round(capacity, 1),
        "offered_per_s": round(capacity * times, 1),
        "accepted": len(tally.accepted_s),
        "refused": len(tally.refused_s),
        "wrong": dict(+tally.wrong),
        "goodput_share": round(inside / seconds / capacity, 3),
        "refusal_p50_ms": round(1000 * quantile(tally.refused_s, 0.5), 1),
        "refusal_p99_ms": round(1000 * quantile(tally.refused_s, 0.99), 1),
        "accepted_p50_ms": round(1000 * quantile(tally.accepted_s, 0.5), 1),
        "accepted_max_ms": round(1000 * max(tally.accepted_s, default=0.0), 1),
        "deadline_ms": 1000 * DEADLINE_S,
        "retry_after_s": dict(sorted(tally.retry_after_s.items())),
        "rss_mb": round(watch.samples_mb[-1], 1) if watch.samples_mb else None,
        "rss_growth": round(watch.growth(), 4),
        "connections": loop.most_connections,
        "cpu_cores": round(cpu_s / seconds, 2),
        "client_cpu_cores": round(own_s / seconds, 2),
    }


def missed(figures: dict[str, Any]) -> list[str]:
    """The missed goals."""
    goals = {
        f"goodput at least {GOODPUT_SHARE:.0%} of the capacity": figures["goodput_share"] >= GOODPUT_SHARE,
        f"refusals within {REFUSAL_MS:g} ms at the median": figures["refusal_p50_ms"] <= REFUSAL_MS,
        "accepted requests inside their deadline": figures["accepted_max_ms"] <= figures["deadline_ms"],
        f"memory flat within {RSS_SHARE:.0%}": figures["rss_growth"] <= RSS_SHARE,
        "every other answer a refusal": not figures["wrong"],
        "some refusals": figures["refused"] > 0,
    }
    return [goal for goal, met in goals.items() if not met]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0 if every goal is met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of the overload")
    parser.add_argument("--times", type=float, default=10.0, help="offered load over capacity")
    parser.add_argument("--capacity-seconds", type=float, default=5.0, help="duration of the capacity measurement")
    parser.add_argument("--out", type=Path, help="JSON output file; default results/overload.json")
    args = parser.parse_args(arguments)
    print_machine()
    env = {
        "OCRSVC_ENGINE": "fake",
        "OCRSVC_FAKE_LATENCY_S": str(LATENCY_S),
        "OCRSVC_WORKERS": str(WORKERS),
        "OCRSVC_ENGINE_THREADS": str(ENGINE_THREADS),
        "OCRSVC_QUEUE_SIZE": str(PLACES),
    }
    with started(env) as service:
        figures = overload(service, args.seconds, args.times, args.capacity_seconds)
    print(json.dumps(figures, indent=2))
    write_result("overload", figures, args.out)
    for goal in missed(figures):
        print(f"MISSED: {goal}")
    return 1 if missed(figures) else 0


if __name__ == "__main__":
    sys.exit(main())
