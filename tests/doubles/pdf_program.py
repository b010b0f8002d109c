"""Replaces ocrsvc.imaging.pdf.child, and misbehaves as the file says.

After `%PDF-` the file is JSON. It maps `ready` and the names of requests to the text sent as the answer, or to a fault
such as "!exit" (see `answer`). Other requests are answered as for a PDF of two gray pages, one inch square.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys

from ocrsvc.system.child_program import MESSAGE_BYTES, apply_limits

USUAL = {"ready": "ready 0 0", "open": "pages 2", "size": "points 72 72", "image": "image 0 0", "draw": "drawn"}


def answer(reply: str) -> None:
    match reply:
        case "!exit":
            sys.exit(3)
        case "!crash":
            os.abort()
        case "!silent":
            while True:
                signal.pause()
        case "!stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "!flood":
            while True:
                os.write(0, b"pages 1")
        case _:
            os.write(0, reply.encode("latin-1"))


def main() -> None:
    file, canvas = apply_limits()
    replies = USUAL | json.loads(mmap.mmap(file, 0, access=mmap.ACCESS_COPY)[5:])
    answer(replies["ready"])
    if replies["ready"] == "!stop":
        answer(USUAL["ready"])
    while request := os.read(0, MESSAGE_BYTES).split():
        if request[1] == b"draw":
            size = os.fstat(canvas).st_size
            mmap.mmap(canvas, size)[:] = b"\x7f" * size
        answer(replies[request[1].decode()])


if __name__ == "__main__":
    main()
