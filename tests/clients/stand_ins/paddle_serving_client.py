"""Stand-in for Paddle Serving's C++ client, which its pipeline package imports.

The real client supports Python up to 3.9. PipelineClient, which the tests call, does not use it.
"""

from __future__ import annotations


class Client:
    """Never instantiated."""
