"""Sends an entry of the table of hostile requests to a server and reports the responses."""

import contextlib
import re
import select
import socket
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

from hostile_requests import Entry
from hostile_wire import Conversation

Address = tuple[str, int]

_RECEIVE_BYTES: Final = 1 << 16
_SEND_BYTES: Final = 1 << 18
_LINGER_S: Final = 1.0
_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
_REQUEST_LINE: Final = re.compile(rb"[A-Z]+ [^ \r\n]+ HTTP/1\.1\r\n")
_HEAD_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class Answer:
    """The response on one connection: its final HTTP status or 0; `ended` is False if the client gave up."""

    status: int
    seconds: float
    received_bytes: int
    ended: bool


def send(
    entry: Entry,
    address: Address,
    *,
    short: bool,
    limit_s: float,
    source: str = "",
    most_hold_s: float = 1e9,
    field: bytes = b"",
) -> Iterator[Answer]:
    """Run the conversations of an entry one after another and yield the answer of each connection.

    Connections come from the address `source` and wait up to `limit_s` for a response; those that expect none stay open
    for `most_hold_s`. `field` is added to the header of the first request on each connection.
    """
    for conversation in entry.conversations:
        count = conversation.short_connections if short else conversation.connections
        size = conversation.short if short else conversation.size
        pieces = with_field(conversation.pieces(size), field) if field else conversation.pieces(size)
        sent = list(pieces) if count > 1 else pieces
        connect = partial(_Connection, conversation, limit_s, most_hold_s)
        with ThreadPoolExecutor(count, "hostile") as pool:
            yield from pool.map(lambda _, new=connect, sent=sent: new().run(address, source, sent), range(count))


def with_field(pieces: Iterable[bytes], field: bytes) -> Iterator[bytes]:
    """Add a header line after the request line of the first request, if that is HTTP."""
    for number, piece in enumerate(pieces):
        line = _REQUEST_LINE.match(piece) if number == 0 else None
        yield piece[: line.end()] + field + b"\r\n" + piece[line.end() :] if line else piece


class _Connection:
    """Runs a conversation on one connection."""

    def __init__(self, conversation: Conversation, limit_s: float, most_hold_s: float) -> None:
        self._conversation = conversation
        self._limit_s = limit_s
        self._most_hold_s = most_hold_s
        self._status = self._received_bytes = 0
        self._ended = False
        self._tail = b""

    def run(self, address: Address, source: str, pieces: Iterable[bytes]) -> Answer:
        began_s = time.monotonic()
        try:
            with socket.create_connection(address, self._limit_s, (source, 0) if source else None) as wire:
                wire.setblocking(False)
                self._send(wire, pieces, began_s)
                self._wait(wire, time.monotonic())
        except OSError:
            self._ended = True
        return Answer(self._status, time.monotonic() - began_s, self._received_bytes, self._ended)

    def _send(self, wire: socket.socket, pieces: Iterable[bytes], began_s: float) -> None:
        for piece in pieces:
            left = memoryview(piece)
            while left and not self._ended:
                if time.monotonic() - began_s > self._limit_s:
                    return
                left = left[self._exchange(wire, left) :]
            if self._ended or self._is_over(began_s):
                return
            if self._conversation.pause_s:
                self._receive_for(wire, self._conversation.pause_s)

    def _is_over(self, began_s: float) -> bool:
        return bool(self._conversation.pause_s) and time.monotonic() - began_s > self._most_hold_s

    def _exchange(self, wire: socket.socket, data: memoryview) -> int:
        readers = [wire] if self._conversation.reads else []
        readable, writable, _ = select.select(readers, [wire], [], 0.1)
        if readable:
            self._receive(wire)
        if not writable or self._ended:
            return 0
        try:
            return wire.send(data[:_SEND_BYTES])
        except BlockingIOError:
            return 0
        except OSError:
            self._receive_for(wire, _LINGER_S)
            self._ended = True
            return 0

    def _wait(self, wire: socket.socket, sent_s: float) -> None:
        hold_s = self._conversation.hold_s or (1.0 if self._conversation.pause_s else self._limit_s)
        if self._conversation.pause_s or self._conversation.hold_s:
            hold_s = min(hold_s, self._most_hold_s)
        while not self._ended and (left_s := sent_s + hold_s - time.monotonic()) > 0:
            if self._conversation.reads:
                self._receive_for(wire, left_s)
            else:
                time.sleep(min(left_s, 0.1))

    def _receive_for(self, wire: socket.socket, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while not self._ended and (left_s := until_s - time.monotonic()) > 0:
            if not self._conversation.reads:
                time.sleep(left_s)
            elif select.select([wire], [], [], left_s)[0]:
                self._receive(wire)

    def _receive(self, wire: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            data = wire.recv(_RECEIVE_BYTES)
            self._ended = not data
            self._received_bytes += len(data)
            if not self._status or self._tail:
                self._note_status(data)

    def _note_status(self, data: bytes) -> None:
        self._tail = (self._tail + data)[: 8 * _HEAD_BYTES]
        for status in _STATUS.findall(self._tail):
            if not status.startswith(b"1"):
                self._status, self._tail = int(status), b""
                return
