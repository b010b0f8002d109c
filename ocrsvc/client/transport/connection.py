"""One HTTP/1.1 connection over a socket that does not block; h11 writes and reads the protocol."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import h11

from ocrsvc.client.balancing.address import Address
from ocrsvc.client.transport.waits import Exchange, Wait
from ocrsvc.errors import ServerError

LONGEST_ANSWER_BYTES: Final = 1 << 28
_READ_BYTES: Final = 1 << 16
# The head and so much of the body go out in one packet train.
_FIRST_BYTES: Final = 1 << 15


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent.

    Attributes:
        method: GET or POST.
        target: Path and query, without the path of the service's address.
        headers: Host and Content-Length only if they are to differ from the address and the body.
        body: Empty for none.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    """What came: status, the header Retry-After, the whole body, and the address of the service that sent it."""

    status: int
    retry_after: str | None
    body: bytes
    url: str


def head_of(request: Request, address: Address) -> h11.Request:
    """Request line and headers for a service. Raises h11.LocalProtocolError for headers that cannot be sent."""
    sent = dict(request.headers)
    sent = {"Host": address.authority, "Content-Length": str(len(request.body))} | sent
    return h11.Request(method=request.method, target=address.path + request.target, headers=list(sent.items()))


class Connection:
    """A connection that is there; used for one exchange at a time.

    Args:
        wire: The socket, connected, which does not block.
        address: Of the service.
    """

    def __init__(self, wire: socket.socket, address: Address) -> None:
        self._wire, self._address = wire, address
        self._http = h11.Connection(h11.CLIENT)
        self._sent = True

    def is_idle(self) -> bool:
        """Whether the next request can use it: nothing has come since the last, not even its end."""
        poller = select.poll()
        poller.register(self._wire, select.POLLIN)
        return not poller.poll(0)

    def close(self) -> None:
        """The service notices, and drops what it still does for this connection."""
        self._wire.close()

    def exchange(self, request: Request) -> Exchange[Response]:
        """Send a request and receive its response.

        Raises:
            OSError: The connection broke, or what came is not HTTP.
            ServerError: The response is larger than any of this service.
        """
        self._sent = False
        yield from self._send(request)
        try:
            return (yield from self._receive())
        except h11.RemoteProtocolError as error:
            raise ConnectionError(str(error)) from error

    def reset(self) -> bool:
        """Make it ready for another request; False where it must be closed."""
        if not self._sent or self._http.their_state is not h11.DONE or self._http.our_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    def _send(self, request: Request) -> Exchange[None]:
        head = self._http.send(head_of(request, self._address))
        self._http.send_with_data_passthrough(h11.Data(data=request.body))
        self._http.send(h11.EndOfMessage())
        body = memoryview(request.body)
        for piece in (memoryview((head or b"") + bytes(body[:_FIRST_BYTES])), body[_FIRST_BYTES:]):
            if not (yield from self._send_piece(piece)):
                return
        self._sent = True

    def _send_piece(self, piece: memoryview) -> Exchange[bool]:
        """Whether it is sent; otherwise the service has answered before it had everything."""
        while piece:
            try:
                piece = piece[self._wire.send(piece) :]
            except BlockingIOError:
                yield Wait(self._wire.fileno(), select.POLLOUT | select.POLLIN)
                if not self.is_idle():
                    return False
            except ssl.SSLWantWriteError:
                # What TLS itself has to say is there to be read all the time.
                yield Wait(self._wire.fileno(), select.POLLOUT)
            except ssl.SSLWantReadError:
                yield Wait(self._wire.fileno(), select.POLLIN)
            except (BrokenPipeError, ConnectionResetError):
                # It may have said why before.
                return False
        return True

    def _receive(self) -> Exchange[Response]:
        head: h11.Response | None = None
        pieces: list[bytes] = []
        length = 0
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data((yield from self._received()))
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                pieces.append(bytes(event.data))
                length += len(event.data)
                if length > LONGEST_ANSWER_BYTES:
                    raise ServerError("The answer is larger than any of this service.", "Check the address.")
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                return Response(head.status_code, _header(head, b"retry-after"), b"".join(pieces), self._address.url)
            elif not isinstance(event, h11.InformationalResponse):
                raise ConnectionError("the connection was closed before an answer")

    def _received(self) -> Exchange[bytes]:
        while True:
            try:
                return self._wire.recv(_READ_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError):
                yield Wait(self._wire.fileno(), select.POLLIN)
            except ssl.SSLWantWriteError:
                yield Wait(self._wire.fileno(), select.POLLOUT)


def _header(head: h11.Response, name: bytes) -> str | None:
    return next((value.decode("latin-1") for each, value in head.headers if each == name), None)
