"""The HTTP/2 settings that the server sends at the start of a connection."""

from __future__ import annotations

from typing import Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes, Settings

# Each frame that opens or ends a stream makes h2 check all that are open. A client's further calls wait in it.
MAX_STREAMS: Final = 100
STREAM_WINDOW: Final = 4 << 20
CONNECTION_WINDOW: Final = 16 << 20
# A frame is held until it is complete. h2 copies it several times, which costs less a byte while it fits into a cache.
MAX_FRAME: Final = 1 << 15
MAX_HEADERS: Final = 1 << 15


class _Connection(H2Connection):
    # It notes how each stream was closed, for frames that are late; 100 are under way at most.
    MAX_CLOSED_STREAMS = 2048


def open_h2() -> H2Connection:
    """The server's side of a connection, with its first settings ready to be sent."""
    h2 = _Connection(H2Configuration(client_side=False, header_encoding=None))
    h2.local_settings = Settings(
        client=False,
        initial_values={
            SettingCodes.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
            SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            SettingCodes.MAX_FRAME_SIZE: MAX_FRAME,
            SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEADERS,
        },
    )
    h2.max_inbound_frame_size = MAX_FRAME
    h2.decoder.max_header_list_size = MAX_HEADERS
    h2.initiate_connection()
    h2.increment_flow_control_window(CONNECTION_WINDOW)
    return h2
