"""What does Paddle Serving's pipeline package want of its C++ client, when it is imported only to call a server? This.

The real package ends with Python 3.9. PipelineClient, which the tests call, uses nothing of it.
"""

from __future__ import annotations


class Client:
    """Never made."""
