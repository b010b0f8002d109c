"""The limits of the gRPC server: connections, the loop's time, HTTP/2 frames, calls and messages."""

from __future__ import annotations

from typing import Final

MAX_CONNECTIONS: Final = 1000
# Connections that are accepted where no memory is left, for health checks.
EXEMPT_CONNECTIONS: Final = 32
# Memory of a connection beside its calls: bytes received and not handled, an incomplete frame, what h2 keeps.
CONNECTION_BYTES: Final = 1 << 17
# How long a connection may take to say that it speaks HTTP/2.
FIRST_BYTES_S: Final = 10.0
# Age at which a client is asked to connect anew: channels stay open for ever, and never meet a new worker.
MAX_AGE_S: Final = 300.0
RECEIVE_BYTES: Final = 1 << 16
# While more waits for the socket, answers wait in their calls, and nothing is read that would make yet more.
MAX_UNSENT_BYTES: Final = 1 << 18
# A connection that ends is still read, and the bytes discarded, so that its client reads the reason.
LINGER_S: Final = 2.0
LINGER_BYTES: Final = 1 << 20
# How long the last GOAWAY waits for the client to see the first.
GOAWAY_PING_S: Final = 2.0
# After the grace a client must read its answers at this average rate: a byte now and then is no reading.
STALL_GRACE_S: Final = 10.0
LEAST_BYTES_PER_S: Final = 1000.0

# Time of one connection before the others are served, and of all together; and between checks of time limits.
TURN_S: Final = 0.02
LEAST_TURN_S: Final = 0.001
ROUND_S: Final = 0.02
CHECK_S: Final = 0.25

# Each frame that opens or ends a stream makes h2 check all open ones. A client's further calls wait in the client.
MAX_STREAMS: Final = 100
STREAM_WINDOW: Final = 4 << 20
CONNECTION_WINDOW: Final = 16 << 20
# A frame is held until it is complete. h2 copies it several times, which costs less a byte while it fits the cache.
MAX_FRAME: Final = 1 << 15
MAX_HEADERS: Final = 1 << 15
# Of one header block: 2 frames of the usual size hold the largest one.
MAX_CONTINUATIONS: Final = 16
MAX_SETTINGS_BYTES: Final = 512
# A frame of any other type; the longest in use is a GOAWAY with a text for people.
MAX_OTHER_BYTES: Final = 1 << 12
# HPACK table of sent headers, however large a table the client offers.
MAX_TABLE_BYTES: Final = 4096
# Settings that are kept for a client, unknown ones included; 8 are in use.
MAX_SETTINGS: Final = 32
# How long a frame or a header block may take from its first byte to its last.
FRAME_S: Final = 30.0

# Frames without payload that may come at once, and for each second.
BURST_FRAMES: Final = 2000
FRAMES_PER_S: Final = 200
# Payload of a DATA frame that allows one frame more.
BYTES_PER_FRAME: Final = 128
# Frames more for each answer: a call comes with a few pings and window updates.
ANSWER_FRAMES: Final = 8
# Bytes sent to the client that allow one frame more: it acknowledges them.
TAKEN_BYTES_PER_FRAME: Final = 512
# Headers, packed and unpacked, cost time by their size: this many bytes count as one frame.
HEADER_BYTES_PER_FRAME: Final = 128
# A call that is reset was started for nothing.
RESET_FRAMES: Final = 8

# Memory of a call beside its bytes.
STREAM_BYTES: Final = 1 << 13
# Calls of a connection that are answered where no memory is left: health checks with few headers.
EXEMPT_CALLS: Final = 4
EXEMPT_BYTES: Final = STREAM_BYTES + (1 << 11)
# A larger message is parsed in a pool thread, however quick its answer is.
QUICK_BYTES: Final = 1 << 14
# Part of the memory for messages that are not being answered yet: a client need not finish them.
ARRIVING_PART: Final = 0.25
# The loop ends a call this long after its deadline; its own thread comes first.
DEADLINE_GRACE_S: Final = 0.5
# How long a stream of requests may be silent, ever and while its worker is replaced.
IDLE_S: Final = 300.0
DRAINING_IDLE_S: Final = 2.0

# Fields and elements in one message, nested ones included; a request for 64 images has a few hundred.
MAX_FIELDS: Final = 10_000
# Memory of a parsed field at most, beside its content.
FIELD_BYTES: Final = 256
# Copies of the content while a message is answered: parsed, as a field's value, as the elements in that value.
CONTENT_COPIES: Final = 3
# Copies of an answer while it is packed: the message, its bytes, and those with their prefix.
ANSWER_COPIES: Final = 3
