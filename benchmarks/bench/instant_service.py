"""A service that answers every page at once with forty lines, to measure the cost of its clients alone.

python benchmarks/bench/instant_service.py prints its port, and serves until it is killed
"""

from __future__ import annotations

import asyncio
import json
import re

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_LINES = 40


def answer() -> bytes:
    """A complete HTTP response."""
    lines = [
        {
            "text": f"第 {number} 行 line {number} of this page",
            "confidence": 0.9876,
            "box": [[10.5, 20.1 + number], [300.2, 20.1 + number], [300.2, 40.3 + number], [10.5, 40.3 + number]],
        }
        for number in range(_LINES)
    ]
    text = "\n".join(str(line["text"]) for line in lines)
    page = {"page": 1, "width": 1000, "height": 1400, "angle": 0, "text": text, "lines": lines}
    engine = {"name": "instant", "model": "none", "version": "1"}
    result = {"id": "1", "engine": engine, "pages": [page], "pages_total": 1, "timing": {"total_s": 0.1}}
    body = json.dumps(result, ensure_ascii=False).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


async def serve() -> None:
    """Print the port, and answer requests."""
    whole = answer()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = _LENGTH.search(head)
                await reader.readexactly(int(length[1]) if length else 0)
                writer.write(whole)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0, limit=1 << 20)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve())
