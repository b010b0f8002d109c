"""Kills, cuts off, drains and slows down three hosts behind a proxy under load, in network namespaces.

    python benchmarks/hosts.py --proxy haproxy --requests 20000 --protocol all
    python benchmarks/hosts.py --proxy none             ocrsvc.client with the addresses of all hosts, and no proxy
    python benchmarks/hosts.py --proxy nginx --faults   no faults, to compare with

Protocols are form, json, adapters, grpc, all, or a name from the printed table. The proxy runs with its configuration
from deploy/hosts/ on its own node, and so do the clients. The fake engine takes --page-s seconds per page. Needs root,
iproute2 and the proxy. The last line of stdout is the result as JSON; exit code 1 if any request failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from bench.host_faults import FAULTS, faults_happen, turns_of
from bench.host_protocols import Protocol, chosen
from bench.machine import describe, print_machine
from bench.pages import tiny_png

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import cv2
import numpy as np
from host_proxies import GRPC_PORT, HTTP_PORT, PROXIES, proxied
from network_hosts import Host, Network, Node, add_hosts, inside, serving

from ocrsvc.engines.fake import hash_text

_CLIENT = Path(__file__).with_name("bench") / "hosts_client.py"
_RIGHT = "right"
_LIBRARY = Protocol("ocrsvc.client", "http", "", "", b"")
_DRAIN_S = "3"
_LAST_ANSWERS_S = 60.0
_SLOWEST_PER_S = 5


def main() -> int:
    """Run the benchmark: send each protocol's requests, and print its row and the result."""
    args = _parser().parse_args()
    print_machine()
    print(f"settings: {json.dumps(vars(args))}")
    image = tiny_png()
    wanted = [_LIBRARY] if args.proxy == "none" else chosen(args.protocol, image)
    results = {}
    print("| protocol | requests | failed | p50 | p99 | slowest | in s | faults |\n|---|---|---|---|---|---|---|---|")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        network = stack.enter_context(closing(Network()))
        clients, proxy = network.add("clients"), network.add("proxy")
        env = {"OCRSVC_FAKE_LATENCY_S": str(args.page_s), "OCRSVC_DRAIN_S": _DRAIN_S, "OCRSVC_WORKERS": "1"}
        hosts = add_hosts(network, args.hosts, env)
        stack.enter_context(serving(hosts))
        if args.proxy != "none":
            stack.enter_context(proxied(network, proxy, args.proxy, folder))
        turns = turns_of([name.replace("-", " ") for name in args.faults], hosts)
        for protocol in wanted:
            plan = _plan(args, protocol, image, folder, _address(args.proxy, protocol, proxy, hosts))
            with faults_happen(turns, args.every_s) as happened:
                found = _ask(plan, clients, folder)
            results[protocol.name] = _summary(found) | {"faults": dict(happened)}
            print(_row(protocol.name, results[protocol.name]), flush=True)
    print(json.dumps({"machine": describe(), "settings": vars(args), "results": results}))
    return 1 if any(result["failed"] for result in results.values()) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--proxy", choices=[*PROXIES, "none"], required=True)
    parser.add_argument("--requests", type=int, default=2000, help="per protocol")
    parser.add_argument("--protocol", nargs="+", default=["form", "json", "grpc kserve_v2"])
    parser.add_argument("--clients", type=int, default=8, help="number of clients; each waits for its answer")
    parser.add_argument("--hosts", type=int, default=3, help="number of hosts; the files of deploy/hosts/ have three")
    parser.add_argument("--page-s", type=float, default=0.005, help="seconds the fake engine takes per page")
    parser.add_argument("--timeout-s", type=float, default=30.0, help="timeout of a request")
    parser.add_argument("--every-s", type=float, default=10.0, help="seconds from one fault to the next")
    parser.add_argument(
        "--faults", nargs="*", default=["kill", "cut-off"], choices=[name.replace(" ", "-") for name in FAULTS]
    )
    parser.add_argument("--no-grpc-retries", action="store_true", help="channels without a retry policy")
    return parser


def _address(proxy: str, protocol: Protocol, node: Node, hosts: list[Host]) -> str:
    if proxy == "none":
        return ",".join(host.url for host in hosts)
    return f"{node.address}:{HTTP_PORT if protocol.kind == 'http' else GRPC_PORT}"


def _plan(args: argparse.Namespace, protocol: Protocol, image: bytes, folder: Path, address: str) -> dict[str, Any]:
    body = folder / "body"
    body.write_bytes(image if args.proxy == "none" else protocol.body)
    return {
        "kind": "library" if args.proxy == "none" else protocol.kind,
        "address": address,
        "path": protocol.path,
        "content_type": protocol.content_type,
        "body": str(body),
        "expected": _second_line(image),
        "requests": args.requests,
        "clients": args.clients,
        "timeout_s": args.timeout_s,
        "pause_s": 0.0,
        "grpc_retries": not args.no_grpc_retries,
    }


def _second_line(image: bytes) -> str:
    """The second line of the fake engine's text: a checksum of the pixels."""
    pixels = cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_GRAYSCALE)
    assert pixels is not None
    return hash_text(pixels.astype(np.uint8))


def _ask(plan: dict[str, Any], clients: Node, folder: Path) -> dict[str, Any]:
    """Run the clients on their node; returns the result they print."""
    file = folder / "plan.json"
    file.write_text(json.dumps([plan]), "utf-8")
    limit_s = plan["requests"] / _SLOWEST_PER_S + _LAST_ANSWERS_S
    command = [*inside(clients), sys.executable, str(_CLIENT), str(file)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=limit_s)
    [found] = json.loads(done.stdout)
    return dict(found)


def _summary(found: dict[str, Any]) -> dict[str, Any]:
    latencies_s = sorted(found["latencies_s"])
    wrong = {outcome: count for outcome, count in found["outcomes"].items() if outcome != _RIGHT}
    return {
        "requests": len(latencies_s),
        "failed": sum(wrong.values()),
        "wrong": wrong,
        "p50_ms": round(latencies_s[len(latencies_s) // 2] * 1000, 1),
        "p99_ms": round(latencies_s[len(latencies_s) * 99 // 100] * 1000, 1),
        "slowest_ms": round(latencies_s[-1] * 1000, 1),
        "wall_s": round(found["wall_s"], 1),
    }


def _row(name: str, result: dict[str, Any]) -> str:
    failures = ", ".join(f"{count} {what}" for what, count in result["wrong"].items()) or "0"
    happened = ", ".join(f"{count} {what}" for what, count in result["faults"].items()) or "none"
    figures = " | ".join(f"{result[f'{part}_ms']:.1f} ms" for part in ("p50", "p99", "slowest"))
    return f"| {name} | {result['requests']} | {failures} | {figures} | {result['wall_s']} | {happened} |"


if __name__ == "__main__":
    sys.exit(main())
