"""Opens the objects of a URL through fsspec, and says which package is missing."""

from __future__ import annotations

import functools
import os
from typing import Any, Final

from ocrsvc.batch.objects.contract import Objects
from ocrsvc.batch.objects.fsspec_objects import FsspecObjects
from ocrsvc.batch.objects.http_objects import HttpObjects
from ocrsvc.batch.objects.retry import Retries
from ocrsvc.batch.objects.s3_objects import S3Objects
from ocrsvc.batch.objects.url import check_no_secrets, protocol_of
from ocrsvc.errors import BadOption

_EXTRA: Final = "ocrsvc[objectstore]"
PACKAGES: Final = {
    "s3": _EXTRA,
    "s3a": _EXTRA,
    "http": _EXTRA,
    "https": _EXTRA,
    "memory": _EXTRA,
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "hf": "huggingface_hub",
}
"""The protocols, each with what `pip install` needs for it."""

_S3: Final = ("s3", "s3a")
_HTTP: Final = ("http", "https")
_CONNECT_S: Final = 10
_ANSWER_S: Final = 30
_CONNECTIONS: Final = 64


def path_of(url: str) -> str:
    """What stands behind `protocol://`: bucket and name."""
    return url.partition("://")[2]


def open_objects(url: str) -> Objects:
    """What reads and writes the objects of a URL's protocol; one for each process.

    Raises:
        BadOption: The protocol is not known, its package is missing, or the URL holds a password.
    """
    check_no_secrets(url)
    protocol = protocol_of(url)
    if protocol not in PACKAGES:
        raise BadOption(f"{protocol}:// is not known: accepted are {', '.join(f'{name}://' for name in PACKAGES)}.")
    # Its connections belong to the process that opened them.
    return _objects_of(protocol, os.getpid())


@functools.cache
def _objects_of(protocol: str, _pid: int) -> Objects:
    system = _open_system(protocol)
    kind = S3Objects if protocol in _S3 else HttpObjects if protocol in _HTTP else FsspecObjects
    return kind(protocol, system, Retries())


def _open_system(protocol: str) -> Any:
    """The file system, whose listings are not cached: other processes write there too."""
    try:
        import fsspec

        options = _s3_options() if protocol in _S3 else _http_options(protocol)
        system = fsspec.filesystem(protocol, skip_instance_cache=True, use_listings_cache=False, **options)
    except ImportError as error:
        raise BadOption(
            f"{protocol}:// needs a package that is not installed: {error}.",
            f"pip install '{PACKAGES[protocol]}'" + (f" '{_EXTRA}'" if PACKAGES[protocol] != _EXTRA else ""),
        ) from error
    if protocol in _S3:
        # Requests are sent again by `Retries`, which knows a bound.
        system.retries = 1
    return system


def _s3_options() -> dict[str, Any]:
    from fsspec.config import conf

    own = {
        "connect_timeout": _CONNECT_S,
        "read_timeout": _ANSWER_S,
        "max_pool_connections": _CONNECTIONS,
        "retries": {"total_max_attempts": 1},
    }
    return {"config_kwargs": own | conf.get("s3", {}).get("config_kwargs", {})}


def _http_options(protocol: str) -> dict[str, Any]:
    # For the names and passwords in ~/.netrc, and for proxies.
    return {"client_kwargs": {"trust_env": True}} if protocol in _HTTP else {}
