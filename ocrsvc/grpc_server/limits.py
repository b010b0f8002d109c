"""Limits of the gRPC server: connections, loop time, HTTP/2 frames, calls and messages."""

from typing import Final

MAX_CONNECTIONS: Final = 1000
# Connections accepted although the memory budget is used up, for health checks.
EXEMPT_CONNECTIONS: Final = 32
# Memory to reserve per connection, calls excluded: unhandled bytes, an incomplete frame, h2's state.
CONNECTION_BYTES: Final = 1 << 17
# Time limit for a new connection to send its HTTP/2 settings.
FIRST_BYTES_S: Final = 10.0
# Connection age at which the client is asked to reconnect; otherwise it would never use new workers.
MAX_AGE_S: Final = 300.0
RECEIVE_BYTES: Final = 1 << 16
# Size of the output buffer; when it is full, answers wait in their calls, and the server stops reading.
MAX_UNSENT_BYTES: Final = 1 << 18
# A closing connection is still read for LINGER_S or LINGER_BYTES, because a TCP reset could lose the last response.
LINGER_S: Final = 2.0
LINGER_BYTES: Final = 1 << 20
# Longest wait for the ping's acknowledgement before the last GOAWAY is sent.
GOAWAY_PING_S: Final = 2.0
# After STALL_GRACE_S, a client must have read its answers at MIN_BYTES_PER_S or faster on average.
STALL_GRACE_S: Final = 10.0
MIN_BYTES_PER_S: Final = 1000.0

# Time for handling frames in one iteration of the event loop: ROUND_S for all connections together, and between
# MIN_TURN_S and TURN_S for one connection.
TURN_S: Final = 0.02
MIN_TURN_S: Final = 0.001
ROUND_S: Final = 0.02
CHECK_S: Final = 0.25  # interval between checks of time limits

# Open streams per connection; further calls wait in the client. h2 visits all streams when one opens or ends.
MAX_STREAMS: Final = 100
STREAM_WINDOW: Final = 4 << 20
CONNECTION_WINDOW: Final = 16 << 20
# Longest frame. Frames are buffered until complete, and h2 copies them several times: these fit into the CPU's cache.
MAX_FRAME: Final = 1 << 15
MAX_HEADERS: Final = 1 << 15
# CONTINUATION frames per header block; the largest allowed block fits into 2 frames of the usual size.
MAX_CONTINUATIONS: Final = 16
MAX_SETTINGS_BYTES: Final = 512
# Longest frame except DATA, header and SETTINGS frames; the longest in practice is a GOAWAY with a debug text.
MAX_OTHER_BYTES: Final = 1 << 12
# Largest HPACK table for sent headers, even if the client offers a larger one.
MAX_TABLE_BYTES: Final = 4096
# HTTP/2 settings stored per client, including unknown ones; 8 are defined.
MAX_SETTINGS: Final = 32
# Time limit of a frame or header block, from its first byte to its last.
FRAME_S: Final = 30.0

# Frames without payload that a connection may send in a burst; on average, it may send FRAMES_PER_S.
BURST_FRAMES: Final = 2000
FRAMES_PER_S: Final = 200
# Per this many payload bytes that a client sends, it may send one more frame without payload.
BYTES_PER_FRAME: Final = 128
# Additional frames allowed per answer, because clients send pings and window updates with calls.
ANSWER_FRAMES: Final = 8
# Per this many bytes that a client receives, it may send one more frame: the window updates that acknowledge them.
TAKEN_BYTES_PER_FRAME: Final = 512
# Header bytes that count as one frame; compressed and decompressed bytes are added.
HEADER_BYTES_PER_FRAME: Final = 128
# A reset counts as this many frames, because the work to start its call was wasted.
RESET_FRAMES: Final = 8

# Memory to reserve per call, messages excluded.
STREAM_BYTES: Final = 1 << 13
# Small calls of quick methods, such as health checks, that a connection may make when the memory is used up.
EXEMPT_CALLS: Final = 4
EXEMPT_BYTES: Final = STREAM_BYTES + (1 << 11)
# Larger messages are parsed in a pool thread even if their method is quick.
QUICK_BYTES: Final = 1 << 14
# Largest fraction of the memory for incomplete messages, because clients may never complete them.
ARRIVING_PART: Final = 0.25
# The loop waits this long after a call's deadline for the thread that answers the call, then ends the call itself.
DEADLINE_GRACE_S: Final = 0.5
# How long a stream may be idle; while its worker is being replaced, DRAINING_IDLE_S applies instead.
IDLE_S: Final = 300.0
DRAINING_IDLE_S: Final = 2.0

# Most fields and list elements per message, nested ones included; a request with 64 images has a few hundred.
MAX_FIELDS: Final = 10_000
# Maximum memory of a parsed field, its content excluded.
FIELD_BYTES: Final = 256
# Copies of a message's content while it is answered: the message, a field's value, and the list's elements.
CONTENT_COPIES: Final = 3
# Copies of an answer while it is serialized: the message, its bytes, and the bytes with their prefix.
ANSWER_COPIES: Final = 3
