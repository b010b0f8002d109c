"""The Python client: `Client` for synchronous and `AsyncClient` for asynchronous programs.

They are imported at first use, because they need httpx; building requests works without it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ocrsvc.client.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ocrsvc.client import client

    return getattr(client, name)
