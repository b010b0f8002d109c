"""Calls the tool of an MCP server over stdio with the standard library only, and prints the results.

python mcp_stdio.py IMAGE COMMAND…
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def ask(server: subprocess.Popen[str], number: int, method: str, params: dict[str, Any]) -> Any:
    send(server, {"id": number, "method": method, "params": params})
    assert server.stdout is not None
    for line in server.stdout:
        answer = json.loads(line)
        if answer.get("id") == number:
            return answer["result"]
    sys.exit("the server closed stdout without a response")


def send(server: subprocess.Popen[str], message: dict[str, Any]) -> None:
    assert server.stdin is not None
    server.stdin.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
    server.stdin.flush()


def main() -> None:
    """Find the tool, call it in both output modes, and print the results."""
    image, *command = sys.argv[1:]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ) as server:
        client = {"name": "test", "version": "1"}
        ask(server, 0, "initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
        send(server, {"method": "notifications/initialized"})
        assert [tool["name"] for tool in ask(server, 1, "tools/list", {})["tools"]] == ["ocr"]
        for number, mode in enumerate(("simple", "detailed"), 2):
            arguments = {"input_data": image, "output_mode": mode}
            result = ask(server, number, "tools/call", {"name": "ocr", "arguments": arguments})
            assert not result.get("isError"), result
            print(result["content"][0]["text"])  # noqa: T201  the test reads it
        assert server.stdin is not None
        server.stdin.close()


main()
