"""What Paddle Serving's pipeline package imports of its C++ client when it only calls a server.

The real package ends with Python 3.9. PipelineClient, which the tests call, uses nothing of it.
"""

from __future__ import annotations


class Client:
    """Never made."""
