"""Local files, and objects at URLs through fsspec: requests are retried, and failures raised as OSError."""

import errno
import functools
import os
import random
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, cast
from urllib.parse import urlsplit

from ocrsvc.errors import BadOption

FILE: Final = "file://"
_EXTRA: Final = ".[objectstore]"
PACKAGES: Final = dict.fromkeys(("s3", "s3a", "http", "https", "memory"), _EXTRA) | {
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("az", "abfs"), "adlfs"),
    "hf": "huggingface_hub",
}
"""Supported protocols, each with the package to `pip install` for it."""
_OPENING: Final = threading.Lock()
_S3_CONFIG: Final[dict[str, Any]] = {"connect_timeout": 10, "read_timeout": 30, "max_pool_connections": 64}
_URL: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]{1,20})://")
_USER: Final = re.compile(r"(?<=://)[^/\s@]*@")
_QUERY: Final = re.compile(r"(?<=://)([^\s?'\"<>]*)\?[^\s'\"<>]+")
_SECRET: Final = re.compile(r"signature|token|credential|password|secret|api_?key|accesskey|^sig$|^auth$")
_UNHEARD_S: Final = 20.0
"""How long a request is retried if the server has never answered before."""
_FIRST_WAIT_S: Final = 0.2
_MAX_WAIT_S: Final = 10.0
_VERSION_KEYS: Final = ("generation", "ETag", "etag", "md5Hash", "content_md5", "updated", "LastModified", "mtime")
_FAULT_STATUS: Final = frozenset({408, 409, 425, 429})
# Error codes of S3's status 400 that report a transmission fault, so a retry may succeed.
_FAULT_CODES: Final = frozenset({"BadDigest", "IncompleteBody", "RequestTimeout", "XAmzContentSHA256Mismatch"})
_ANSWERS: Final = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)
# Programming errors, which are raised unchanged.
_MISTAKES: Final = (TypeError, AttributeError, AssertionError, NameError)
# Exception classes by name, because the libraries that define them may not be installed.
_NO_CREDENTIALS: Final = ("NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError")


def protocol_of(url: str) -> str:
    """The part of a URL before `://`, in lower case; "" if the text has no `://`."""
    match = _URL.match(url)
    return match[1].lower() if match else ""


def without_secrets(text: str) -> str:
    """Mask users, passwords and queries, which may contain tokens, in the URLs of a text."""
    return _QUERY.sub(r"\1?***", _USER.sub("***@", text))


def check_no_secrets(url: str) -> None:
    """Raises BadOption for a URL with a password or a token, as the plan and the report would show it."""
    parts = urlsplit(url)
    if "@" in parts.netloc:
        what = f"{without_secrets(url)} holds a user or password, which would be written into the plan and the report."
        raise BadOption(what, "Leave it out: see docs/batch.md for where to give it, such as AWS_… or ~/.netrc.")
    if any(_SECRET.search(name.partition("=")[0].lower()) for name in parts.query.split("&")):
        raise BadOption(
            f"{without_secrets(url)} is signed, and the signature would be written into the plan and the report.",
            "Name the object by its own URL, such as s3://bucket/name, with credentials in the environment.",
        )


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A file, object or object folder: path or URL, size in bytes, and a `version` that changes with its content."""

    url: str
    size: int
    version: str
    is_folder: bool = False


def is_local(address: str) -> bool:
    """Whether an address is a local path or a file:// URL."""
    return protocol_of(address) in ("", "file")


def look_at(address: str) -> StoredObject:
    """Current size and version of the file at a path or URL. Raises OSError, and BadOption for an unsupported URL."""
    if not is_local(address):
        return open_objects(address).look_at(address)
    path = address.removeprefix(FILE)
    status = os.stat(path)  # noqa: PTH116  a Path for each of a million files costs more
    if not stat.S_ISREG(status.st_mode):
        raise OSError(0, "It is not a file")
    return StoredObject(path, status.st_size, f"{status.st_size}-{status.st_mtime_ns}")


def open_file(address: str) -> BinaryIO:
    """Open the file at a path or URL for reading with `seek`, unbuffered if local. Raises OSError and BadOption."""
    if not is_local(address):
        return open_objects(address).open(address)
    # O_NONBLOCK: if a pipe has replaced the file, opening it must not block.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    return os.fdopen(os.open(address.removeprefix(FILE), flags), "rb", buffering=0)


class Objects:
    """Objects of one protocol; any thread of one process may call. Requests are retried for `retry_s`."""

    def __init__(
        self,
        protocol: str,
        system: Any,
        retry_s: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._protocol, self._system, self._retry_s = protocol, system, retry_s
        self._clock, self._sleep = clock, sleep
        self._was_heard = False

    def look_at(self, url: str) -> StoredObject:
        """Current size and version of an object."""
        info = self._send("HEAD", url, lambda system, path: system.info(path))
        if info.get("type") == "directory":
            raise FileNotFoundError(errno.ENOENT, f"{url} is no object")
        if info.get("size") is None:
            raise OSError(errno.ENOTSUP, f"HEAD {without_secrets(url)}: the server does not say how large it is")
        return _object_of(url, info)

    def read(self, url: str, begin: int | None = None, end: int | None = None) -> bytes:
        """Read an object, or its bytes from `begin` up to `end`."""
        data: bytes = self._send("GET", url, lambda system, path: system.cat_file(path, start=begin, end=end))
        if begin and end is not None and len(data) > end - begin:
            # The server ignored the requested range, and sent the whole object.
            raise OSError(errno.ENOTSUP, f"GET {url}: the server gives whole files only; download the archive first")
        return data if end is None else data[: end - (begin or 0)]

    def open(self, url: str) -> BinaryIO:
        """Open an object for reading with `seek`; one MiB is read ahead."""
        from fsspec.spec import AbstractBufferedFile

        class ObjectFile(AbstractBufferedFile):  # type: ignore[misc]
            _fetch_range = staticmethod(functools.partial(self.read, url))

        size = self.look_at(url).size
        return cast("BinaryIO", ObjectFile(self._system, url, block_size=1 << 20, size=size))

    def listing(self, url: str) -> list[StoredObject]:
        """The objects and folders directly in a folder, sorted by URL; empty if the folder does not exist."""
        try:
            entries = self._send("LIST", url, lambda system, path: system.ls(path, detail=True))
        except FileNotFoundError:
            return []
        root = f"{self._protocol}://"
        found = (_object_of(root + str(entry["name"]).removeprefix(root).lstrip("/"), entry) for entry in entries)
        # Some stores include the folder itself in its listing.
        return sorted((each for each in found if each.url.rstrip("/") != url.rstrip("/")), key=lambda each: each.url)

    def below(self, url: str) -> Iterator[StoredObject]:
        """All objects below a folder, depth first; memory holds the listing of one folder per level."""
        for entry in self.listing(url):
            yield from self.below(entry.url.rstrip("/")) if entry.is_folder else (entry,)

    def put_file(self, url: str, file: Path, *, replace: bool = True) -> None:
        """Upload a file atomically. Raises FileExistsError if the object exists, unless `replace`."""
        mode = "overwrite" if replace else "create"
        self._send("PUT", url, lambda system, path: system.put_file(str(file), path, mode=mode))

    def delete(self, url: str) -> None:
        """Delete an object if it exists."""
        with suppress(FileNotFoundError):
            self._send("DELETE", url, lambda system, path: system.rm_file(path))

    def _send(self, verb: str, url: str, call: Callable[[Any, str], Any]) -> Any:
        """Run `call` with the file system and a URL's path, and retry it after transient failures. Raises OSError."""
        path = str(self._system._strip_protocol(url))  # noqa: SLF001  fsspec's own convention
        began, wait_s = self._clock(), _FIRST_WAIT_S
        while True:
            try:
                result = call(self._system, path)
                self._was_heard = True
                return result
            except _MISTAKES:
                raise
            except Exception as failure:  # noqa: BLE001  raised as OSError
                error = _cause_of(failure)
                self._was_heard = self._was_heard or _answer(error)[0] is not None or isinstance(error, _ANSWERS)
                max_s = self._retry_s if self._was_heard else min(_UNHEARD_S, self._retry_s)
                if not is_transient(error) or self._clock() - began + wait_s > max_s:
                    raise os_error_of(error, f"{verb} {without_secrets(url)}") from error
            self._sleep(wait_s * random.uniform(0.5, 1.0))  # noqa: S311  no secret
            wait_s = min(2 * wait_s, _MAX_WAIT_S)


def _cause_of(failure: Exception) -> Exception:
    """The original error: fsspec reports every failed HTTP HEAD request as FileNotFoundError."""
    cause = failure.__cause__
    is_other = isinstance(cause, Exception) and not isinstance(cause, FileNotFoundError | KeyError)
    return cause if isinstance(failure, FileNotFoundError) and is_other else failure  # type: ignore[return-value]


def open_objects(url: str) -> Objects:
    """The `Objects` for a URL's protocol. Raises BadOption: unknown protocol, missing package, or secret in the URL."""
    check_no_secrets(url)
    protocol = protocol_of(url)
    if protocol not in PACKAGES:
        raise BadOption(f"{protocol}:// is not known: accepted are {', '.join(f'{name}://' for name in PACKAGES)}.")
    with _OPENING:
        # Each process gets its own `Objects`, because connections do not work after a fork.
        return _objects_of(protocol, os.getpid())


@functools.cache
def _objects_of(protocol: str, _pid: int) -> Objects:
    """Open the file system of a protocol, without a cache of listings, as other processes write there too."""
    try:
        import fsspec
        from fsspec.config import conf

        options: dict[str, Any] = {}
        if protocol in ("s3", "s3a"):
            # No retries in botocore: `Objects` retries, for a bounded time.
            own = _S3_CONFIG | {"retries": {"total_max_attempts": 1}}
            options["config_kwargs"] = own | conf.get("s3", {}).get("config_kwargs", {})
        elif protocol in ("http", "https"):
            # Use passwords from ~/.netrc, and proxies from the environment.
            options["client_kwargs"] = {"trust_env": True}
        system = fsspec.filesystem(protocol, skip_instance_cache=True, use_listings_cache=False, **options)
    except ImportError as error:
        more = "" if PACKAGES[protocol] == _EXTRA else f" '{_EXTRA}'"
        what = f"{protocol}:// needs a package that is not installed: {error}."
        raise BadOption(what, f"pip install '{PACKAGES[protocol]}'{more}") from error
    if protocol in ("s3", "s3a"):
        system.retries = 1
    return Objects(protocol, system)


def is_transient(error: BaseException) -> bool:
    """Whether a retry may succeed: after timeouts, lost connections, overload and server faults."""
    status, code = _answer(error)
    if status is not None:
        return status >= 500 or status in _FAULT_STATUS or code in _FAULT_CODES
    # fsspec raises NotImplementedError for what a store cannot do, such as creating without replacing.
    is_refused = isinstance(error, (*_ANSWERS, ValueError, NotImplementedError))
    return not is_refused and type(error).__name__ not in (*_NO_CREDENTIALS, "ParamValidationError")


def os_error_of(error: BaseException, what: str) -> OSError:
    """Convert a request's error to OSError; to FileExistsError if the request was to create an object that exists."""
    if isinstance(error, FileExistsError) or _answer(error)[0] == 412:
        number = errno.EEXIST
    elif isinstance(error, FileNotFoundError):
        number = errno.ENOENT
    elif isinstance(error, PermissionError) or type(error).__name__ in _NO_CREDENTIALS:
        number = errno.EACCES
    else:
        number = errno.ETIMEDOUT if is_transient(error) else getattr(error, "errno", None) or errno.EIO
    # OSError(number, ...) makes an instance of the subclass for this number.
    return OSError(number, without_secrets(f"{what}: {str(error) or type(error).__name__}")[:600])


def _answer(error: BaseException) -> tuple[int | None, str | None]:
    """HTTP status and S3 error code of the response that caused an error; None where unknown."""
    for found in (error, error.__cause__):
        response = getattr(found, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return status, response.get("Error", {}).get("Code")
        for name in ("status_code", "status", "code"):
            status = getattr(found, name, None)
            if isinstance(status, int) or (isinstance(status, str) and status.isdecimal()):
                return int(status), None
    return None, None


def _object_of(url: str, info: dict[str, Any]) -> StoredObject:
    """Convert fsspec's description of an object; its version is the first of _VERSION_KEYS that has a value."""
    size = int(info.get("size") or 0)
    known = next((str(info[key]) for key in _VERSION_KEYS if info.get(key)), "").strip('"')
    return StoredObject(url, size, f"{size}-{known}" if known else str(size), info.get("type") == "directory")
