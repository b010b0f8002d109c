"""A stand-in for servers with an OpenAI-compatible API. Its model reads the image's size, and fails on demand."""

import base64
import json
import os
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from support import QuietHandler, data_of, http_server

ANSWERS: dict[str, dict[str, Any]] = data_of("chat_answers")
"""Answers by name: a status with headers and a body, or the pieces of a stream."""


class ChatServer:
    """The requests that the stand-in received, and counts; `choose` names the answer for an image's size."""

    def __init__(self, choose: Callable[[str], str]) -> None:
        self.choose, self.url, self._lock = choose, "", threading.Lock()
        self.requests: list[dict[str, Any]] = []
        self.counts: Counter[str] = Counter()

    def count(self, name: str, by: int = 1) -> None:
        with self._lock:
            self.counts[name] += by


class ChatHandler(QuietHandler):
    """Serves one connection; a subclass sets `chat`."""

    protocol_version = "HTTP/1.1"
    chat: ChatServer

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        parts = {part["type"]: part for part in request["messages"][0]["content"]}
        encoded = parts["image_url"]["image_url"]["url"].removeprefix("data:image/png;base64,")
        size = "{}x{}".format(*struct.unpack(">II", base64.b64decode(encoded[:64])[16:24]))
        self.chat.requests.append(request | {"path": self.path, "key": self.headers["Authorization"], "size": size})
        name = self.chat.choose(size)
        self.chat.count("in progress")
        try:
            self.reply(name, size)
            self.chat.count("finished")
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            self.chat.count(name)
            self.chat.count("in progress", -1)

    def reply(self, name: str, size: str) -> None:
        if name == "die":
            os._exit(1)
        answer = ANSWERS[name]
        if "status" in answer:
            self.answer(answer["status"], answer["body"].encode(), answer.get("headers"))
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in answer["stream"] * answer.get("times", 1):
            data = piece.replace("$size", size).encode() + b"\n\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        end = answer.get("end", "whole")
        if end == "whole":
            self.wfile.write(b"0\r\n\r\n")
        elif end == "stall" and not self.connection.recv(1):
            self.chat.count("closed by the client")
        self.close_connection = end != "whole"


@contextmanager
def chat_server(choose: Callable[[str], str], port: int = 0) -> Iterator[ChatServer]:
    """Run a stand-in server during the block."""
    server = ChatServer(choose)
    handler = type("Handler", (ChatHandler,), {"chat": server})
    with http_server(handler, port=port) as server.url:
        yield server
