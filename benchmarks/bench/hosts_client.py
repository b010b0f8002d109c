"""The clients of hosts.py, in a process on the clients' node.

    python hosts_client.py PLANS.json [--until-eof]

Each plan runs a number of client threads. Each thread has its own connection, repeats one request, and checks every
answer for the expected text. A plan ends when its requests are sent; with --until-eof also when standard input ends.
Counts and latencies go to stdout as a JSON list with one entry per plan.
"""

from __future__ import annotations

import http.client
import itertools
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

# The retry policy that docs/many_hosts.md recommends for channels: resend a call that no host has answered.
RETRIES = {
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "0.1s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}
RIGHT = "right"
_MESSAGE_BYTES = 120
Ask = Callable[[], str]


class HttpClient:
    """A connection that is reopened when the proxy has closed it."""

    def __init__(self, plan: dict[str, Any], body: bytes) -> None:
        self._plan, self._body, self._expected = plan, body, plan["expected"].encode()
        self._connection = http.client.HTTPConnection(plan["address"], timeout=plan["timeout_s"] + 5)

    def ask(self) -> str:
        """Send the request; returns RIGHT or what was wrong."""
        plan = self._plan
        headers = {"Content-Type": plan["content_type"], "X-Request-Timeout": str(plan["timeout_s"])}
        try:
            self._connection.request("POST", plan["path"], self._body, headers)
            response = self._connection.getresponse()
            found = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            return type(error).__name__
        if response.status != http.client.OK:
            return f"status {response.status} {found[:_MESSAGE_BYTES].decode('ascii', 'replace')}"
        return RIGHT if self._expected in found else "another text"


class GrpcClient:
    """A channel with its own connection."""

    def __init__(self, plan: dict[str, Any], body: bytes) -> None:
        import grpc

        self._plan, self._body, self._expected = plan, body, plan["expected"].encode()
        # Without this option all channels of a process share a connection.
        options: list[tuple[str, Any]] = [("grpc.use_local_subchannel_pool", 1)]
        if plan["grpc_retries"]:
            options.append(("grpc.service_config", json.dumps(RETRIES)))
        else:
            options.append(("grpc.enable_retries", 0))
        self._call = grpc.insecure_channel(plan["address"], options).unary_unary(plan["path"])
        self._failure = grpc.RpcError

    def ask(self) -> str:
        """Send the request; returns RIGHT or what was wrong."""
        try:
            found: bytes = self._call(self._body, timeout=self._plan["timeout_s"])
        except self._failure as error:
            return f"{error.code()} {error.details()}"[:_MESSAGE_BYTES]
        return RIGHT if self._expected in found else "another text"


class LibraryClient:
    """One `ocrsvc.client` with the URLs of all hosts, shared by all threads."""

    def __init__(self, plan: dict[str, Any], body: bytes) -> None:
        from ocrsvc.client import Client
        from ocrsvc.errors import OcrsvcError

        self._body, self._expected, self._failure = body, plan["expected"], OcrsvcError
        self._client = Client(plan["address"].split(","), timeout_s=plan["timeout_s"])

    def ask(self) -> str:
        """Send the request; returns RIGHT or what was wrong."""
        try:
            found = self._client.read(self._body).text
        except self._failure as error:
            return type(error).__name__
        return RIGHT if self._expected in found else "another text"


class Load:
    """The running threads of one plan."""

    def __init__(self, plan: dict[str, Any], done: threading.Event) -> None:
        self._plan, self._done = plan, done
        self._numbers = itertools.count()
        self._outcomes: Counter[str] = Counter()
        self._latencies_s: list[float] = []
        asks = _clients(plan, Path(plan["body"]).read_bytes())
        self._threads = [threading.Thread(target=self._keep_asking, args=(ask,)) for ask in asks]
        self._began_s = time.perf_counter()
        for thread in self._threads:
            thread.start()

    def result(self) -> dict[str, Any]:
        """Wait for the threads, and return outcomes and latencies."""
        for thread in self._threads:
            thread.join()
        wall_s = time.perf_counter() - self._began_s
        return {"outcomes": self._outcomes, "latencies_s": self._latencies_s, "wall_s": wall_s}

    def _keep_asking(self, ask: Ask) -> None:
        while next(self._numbers) < self._plan["requests"] and not self._done.wait(self._plan["pause_s"]):
            began_s = time.perf_counter()
            outcome = ask()
            self._latencies_s.append(time.perf_counter() - began_s)
            self._outcomes[outcome] += 1


def main() -> None:
    """Run all plans at the same time."""
    done = threading.Event()
    loads = [Load(plan, done) for plan in json.loads(Path(sys.argv[1]).read_text("utf-8"))]
    if "--until-eof" in sys.argv:
        sys.stdin.read()
        done.set()
    print(json.dumps([load.result() for load in loads]))


def _clients(plan: dict[str, Any], body: bytes) -> list[Ask]:
    if plan["kind"] == "library":
        return [LibraryClient(plan, body).ask] * plan["clients"]
    kind = HttpClient if plan["kind"] == "http" else GrpcClient
    return [kind(plan, body).ask for _ in range(plan["clients"])]


if __name__ == "__main__":
    main()
