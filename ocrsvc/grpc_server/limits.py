"""Limits of the gRPC server: connections, loop time, HTTP/2 frames, calls and messages."""

from typing import Final

MAX_CONNECTIONS: Final = 1000
# Connections that are accepted without memory, for health checks.
EXEMPT_CONNECTIONS: Final = 32
# Memory of a connection without its calls: unhandled bytes, an incomplete frame, h2's state.
CONNECTION_BYTES: Final = 1 << 17
# Time for a new connection to send its HTTP/2 settings.
FIRST_BYTES_S: Final = 10.0
# Age at which a client is asked to reconnect: otherwise its channel would never reach new workers.
MAX_AGE_S: Final = 300.0
RECEIVE_BYTES: Final = 1 << 16
# Above this, answers wait in their calls and nothing more is read.
MAX_UNSENT_BYTES: Final = 1 << 18
# A closing connection is still read and the bytes discarded, so that its client receives the reason.
LINGER_S: Final = 2.0
LINGER_BYTES: Final = 1 << 20
# How long the last GOAWAY waits for the ping's acknowledgement.
GOAWAY_PING_S: Final = 2.0
# After the grace period, a client must read its answers at this average rate.
STALL_GRACE_S: Final = 10.0
MIN_BYTES_PER_S: Final = 1000.0

# A connection's turn, its minimum, a round of all connections, and the interval of time limit checks.
TURN_S: Final = 0.02
MIN_TURN_S: Final = 0.001
ROUND_S: Final = 0.02
CHECK_S: Final = 0.25

# h2 checks all open streams for each one that opens or ends. Further calls wait in the client.
MAX_STREAMS: Final = 100
STREAM_WINDOW: Final = 4 << 20
CONNECTION_WINDOW: Final = 16 << 20
# A frame is buffered until it is complete. h2 copies it several times, which is cheaper within the CPU's cache.
MAX_FRAME: Final = 1 << 15
MAX_HEADERS: Final = 1 << 15
# Per header block; the largest one fits into 2 frames of the usual size.
MAX_CONTINUATIONS: Final = 16
MAX_SETTINGS_BYTES: Final = 512
# A frame of another type; the longest in use is a GOAWAY with a debug text.
MAX_OTHER_BYTES: Final = 1 << 12
# HPACK table of sent headers, even if the client offers more.
MAX_TABLE_BYTES: Final = 4096
# Settings stored per client, including unknown ones; 8 exist.
MAX_SETTINGS: Final = 32
# Time for a frame or header block from its first byte to its last.
FRAME_S: Final = 30.0

# Allowed frames without payload: at once, and per second.
BURST_FRAMES: Final = 2000
FRAMES_PER_S: Final = 200
# Payload of a DATA frame that allows one more frame.
BYTES_PER_FRAME: Final = 128
# Additional frames per answer: calls come with pings and window updates.
ANSWER_FRAMES: Final = 8
# Bytes sent to the client that allow one more frame: it acknowledges them.
TAKEN_BYTES_PER_FRAME: Final = 512
# Header bytes, compressed and decompressed, that count as one frame.
HEADER_BYTES_PER_FRAME: Final = 128
# Cost of a reset, because the call was started in vain.
RESET_FRAMES: Final = 8

# Memory of a call without its messages.
STREAM_BYTES: Final = 1 << 13
# Calls per connection that are answered without memory: health checks with few headers.
EXEMPT_CALLS: Final = 4
EXEMPT_BYTES: Final = STREAM_BYTES + (1 << 11)
# A larger message is parsed in a pool thread even if its method is quick.
QUICK_BYTES: Final = 1 << 14
# Share of the memory for messages still arriving, which a client might never finish.
ARRIVING_PART: Final = 0.25
# The loop ends a call this long after its deadline, so that its own thread usually does first.
DEADLINE_GRACE_S: Final = 0.5
# How long a stream may be idle, normally and while its worker is being replaced.
IDLE_S: Final = 300.0
DRAINING_IDLE_S: Final = 2.0

# Fields and elements per message, including nested ones; a request with 64 images has a few hundred.
MAX_FIELDS: Final = 10_000
# Maximum memory of a parsed field without its content.
FIELD_BYTES: Final = 256
# Copies of the content while a message is answered: the message, a field's value, the elements in that value.
CONTENT_COPIES: Final = 3
# Copies of an answer while it is packed: the message, its bytes, and the bytes with their prefix.
ANSWER_COPIES: Final = 3
