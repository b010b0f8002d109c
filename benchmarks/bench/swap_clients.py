"""HTTP and gRPC clients that send requests without pause, and check the version and text of each answer."""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import grpc

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from grpc_support import V2, infer_request, raw_outputs, strings, unary

LIMIT_S = 60.0

Send = Callable[[], tuple[str, str]]
"""Sends one request; returns the answer's version and text. Raises any failure."""


@dataclass
class Seen:
    """Results of the clients.

    Attributes:
        answers: Number of right answers by version.
        wrong: Number of failures by message.
        at_s: Monotonic seconds at which each answer came.
        slowest_s: Duration of the slowest request.
    """

    answers: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    at_s: list[float] = field(default_factory=list)
    slowest_s: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def longest_gap_s(self) -> float:
        """Longest time between two consecutive answers."""
        times_s = sorted(self.at_s)
        return max((later - earlier for earlier, later in pairwise(times_s)), default=0.0)


@contextmanager
def clients_running(senders: list[Send], texts: Callable[[str], str | None]) -> Iterator[Seen]:
    """Run clients that send requests until the block ends.

    Args:
        senders: One per client.
        texts: Returns the expected text of a version; None if it must not answer.
    """
    seen, done = Seen(), threading.Event()
    clients = [threading.Thread(target=_keep_sending, args=(send, texts, seen, done)) for send in senders]
    for client in clients:
        client.start()
    try:
        yield seen
    finally:
        done.set()
        for client in clients:
            client.join()


def _keep_sending(send: Send, texts: Callable[[str], str | None], seen: Seen, done: threading.Event) -> None:
    while not done.is_set():
        began_s, fault = time.monotonic(), ""
        try:
            version, text = send()
            wanted = texts(version)
            if wanted is None:
                fault = f"version {version} answered, but must not serve"
            elif text != wanted:
                fault = f"version {version} answered with a wrong text: {text[:100]}"
        except Exception as error:  # noqa: BLE001  whatever fails is a failed request
            version, fault = "", f"{type(error).__name__}: {str(error)[:200]}"
        now_s = time.monotonic()
        with seen.lock:
            seen.answers[version] += not fault
            seen.wrong.update([fault] if fault else [])
            seen.at_s.append(now_s)
            seen.slowest_s = max(seen.slowest_s, now_s - began_s)


def http_sender(url: str, page: bytes) -> Send:
    """A client of the native API on a kept-alive connection."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port or 80, timeout=LIMIT_S)

    def send() -> tuple[str, str]:
        connection.request("POST", "/v1/ocr", page, {"Content-Type": "image/png"})
        response = connection.getresponse()
        body = response.read()
        if response.status != http.client.OK:
            raise RuntimeError(f"status {response.status}: {body[:200].decode('utf-8', 'replace')}")
        answer = json.loads(body)
        return str(answer["engine"]["version"]), str(answer["pages"][0]["text"])

    return send


def grpc_sender(port: int, page: bytes, model: str) -> Send:
    """A KServe v2 client on its own channel."""
    channel = grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)])
    infer = unary(channel, V2 + "ModelInfer", "inference.ModelInferResponse")
    request = infer_request(page, model=model)

    def send() -> tuple[str, str]:
        response = infer(request, timeout=LIMIT_S, wait_for_ready=True)
        [text] = strings(raw_outputs(response)["text"])
        return str(response.model_version), text

    return send
