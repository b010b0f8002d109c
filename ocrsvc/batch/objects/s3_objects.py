"""Objects of S3 and of what speaks like it: one request for each call, listings page by page."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

from ocrsvc.batch.objects.contract import StoredObject
from ocrsvc.batch.objects.faults import is_beyond_end
from ocrsvc.batch.objects.fsspec_objects import PUT_BYTES
from ocrsvc.batch.objects.retry import Retries, attempt_s

_DELETE_AT_ONCE: Final = 1000
_WRITER: Final = "ocrsvc-writer"
_ABORT_S: Final = 20.0
_LEFT_OVER: Final = timedelta(days=1)


class S3Objects:
    """The objects that an s3fs file system reaches; that one holds credentials and connections.

    Args:
        protocol: For messages.
        system: An S3FileSystem that sends each request once.
        retries: Sends requests again.
        part_bytes: What is written at once; a larger file goes in parts of so many bytes. S3 wants 5 MiB or more.
    """

    checks_versions = True

    def __init__(self, protocol: str, system: Any, retries: Retries, part_bytes: int = PUT_BYTES) -> None:
        self._protocol, self._system, self._retries, self._part_bytes = protocol, system, retries, part_bytes
        self._cleaned: set[str] = set()

    def get(self, path: str, begin: int = 0, end: int | None = None, version: str = "") -> bytes:
        """As Objects.get."""
        if end is not None and end <= begin:
            return b""
        asked: dict[str, Any] = _names(path)
        if begin or end is not None:
            asked["Range"] = f"bytes={begin}-{'' if end is None else end - 1}"
        if version:
            asked["IfMatch"] = f'"{version.partition("-")[2]}"'
        size = None if end is None else end - begin
        data: bytes = self.send("GET", path, partial(self._run, size, self._read, asked))
        return data

    def put(self, path: str, data: bytes) -> None:
        """As Objects.put."""
        self._send("PUT", path, "put_object", **_names(path), Body=data)

    def put_new(self, path: str, data: bytes) -> bool:
        """As Objects.put_new, by a conditional write.

        A try whose answer was lost may have written the object, and the HTTP library sends some requests again by
        itself: so the object says which caller wrote it.
        """
        names, writer = _names(path), {_WRITER: secrets.token_hex(8)}
        try:
            self._send("PUT", path, "put_object", **names, Body=data, IfNoneMatch="*", Metadata=writer)
        except FileExistsError:
            return bool(self._send("HEAD", path, "head_object", **names).get("Metadata") == writer)
        return True

    def put_file(self, path: str, file: Path) -> None:
        """As Objects.put_file; a piece is sent again by itself."""
        size = file.stat().st_size
        if size <= self._part_bytes:
            self.put(path, file.read_bytes())
            return
        self._abort_left_over(path)
        upload = self._send("POST", path, "create_multipart_upload", **_names(path))["UploadId"]
        try:
            with file.open("rb") as data:
                parts = list(self._put_parts(path, upload, data))
            self._complete(path, upload, parts, size)
        except BaseException:
            # What it holds would be paid for until it is removed.
            with contextlib.suppress(OSError):
                self._send_for(_ABORT_S, "DELETE", path, "abort_multipart_upload", **_names(path), UploadId=upload)
            raise

    def look_at(self, path: str) -> StoredObject:
        """As Objects.look_at."""
        answer = self._send("HEAD", path, "head_object", **_names(path))
        return StoredObject(path, answer["ContentLength"], _version_of(answer["ContentLength"], answer["ETag"]))

    def listing(self, prefix: str) -> Iterator[Sequence[StoredObject]]:
        """As Objects.listing: 1,000 at a time, one request each."""
        bucket, _, key = prefix.partition("/")
        asked: dict[str, Any] = {"Bucket": bucket, "Prefix": key}
        while True:
            answer = self._send("LIST", prefix, "list_objects_v2", **asked)
            yield [
                StoredObject(f"{bucket}/{found['Key']}", found["Size"], _version_of(found["Size"], found["ETag"]))
                for found in answer.get("Contents", [])
            ]
            if not answer.get("IsTruncated"):
                return
            asked["ContinuationToken"] = answer["NextContinuationToken"]

    def below(self, folder: str) -> Iterator[StoredObject]:
        """As Objects.below, in the order of their paths."""
        for some in self.listing(f"{folder}/"):
            # What ends so is a folder that a browser of buckets made.
            yield from (found for found in some if not found.path.endswith("/"))

    def delete(self, paths: Sequence[str]) -> None:
        """As Objects.delete: 1,000 with one request."""
        for begin in range(0, len(paths), _DELETE_AT_ONCE):
            some = paths[begin : begin + _DELETE_AT_ONCE]
            bucket = some[0].partition("/")[0]
            what = {"Objects": [{"Key": path.partition("/")[2]} for path in some], "Quiet": True}
            answer = self._send("DELETE", some[0], "delete_objects", Bucket=bucket, Delete=what)
            for failed in answer.get("Errors", []):
                raise OSError(5, f"DELETE {self._protocol}://{bucket}/{failed.get('Key')}: {failed.get('Code')}")

    def send(self, verb: str, path: str, request: Any, total_s: float | None = None) -> Any:
        """Send a request of these objects, again if need be."""
        return self._retries.send(f"{verb} {self._protocol}://{path}", request, total_s)

    def _put_parts(self, path: str, upload: str, data: BinaryIO) -> Iterator[dict[str, Any]]:
        for number, part in enumerate(iter(partial(data.read, self._part_bytes), b""), 1):
            answer = self._send(
                "PUT", path, "upload_part", **_names(path), UploadId=upload, PartNumber=number, Body=part
            )
            yield {"PartNumber": number, "ETag": answer["ETag"]}

    def _complete(self, path: str, upload: str, parts: list[dict[str, Any]], size: int) -> None:
        try:
            self._send(
                "POST",
                path,
                "complete_multipart_upload",
                **_names(path),
                UploadId=upload,
                MultipartUpload={"Parts": parts},
            )
        except FileNotFoundError:
            # An earlier try whose answer was lost has completed it: then there is an object of these parts.
            answer = self._send("HEAD", path, "head_object", **_names(path))
            if answer["ContentLength"] != size or not answer["ETag"].strip('"').endswith(f"-{len(parts)}"):
                raise

    def _abort_left_over(self, path: str) -> None:
        """Remove uploads that processes which died left below the same folder, more than a day ago; once a folder."""
        folder = path.rpartition("/")[0]
        if folder in self._cleaned:
            return
        self._cleaned.add(folder)
        bucket, _, prefix = folder.partition("/")
        # Stores and roles that do not allow it keep what is left over.
        with contextlib.suppress(OSError):
            asked = {"Bucket": bucket, "Prefix": f"{prefix}/" if prefix else ""}
            answer = self._send_for(_ABORT_S, "LIST", folder, "list_multipart_uploads", **asked)
            for found in answer.get("Uploads", []):
                if found["Initiated"] < datetime.fromtimestamp(time.time(), UTC) - _LEFT_OVER:
                    self._send_for(
                        _ABORT_S,
                        "DELETE",
                        folder,
                        "abort_multipart_upload",
                        Bucket=bucket,
                        Key=found["Key"],
                        UploadId=found["UploadId"],
                    )

    def _send(self, verb: str, path: str, method: str, **asked: Any) -> Any:
        return self.send(verb, path, partial(self._call, method, **asked))

    def _send_for(self, total_s: float, verb: str, path: str, method: str, **asked: Any) -> Any:
        return self.send(verb, path, partial(self._call, method, **asked), total_s)

    def _call(self, method: str, **asked: Any) -> Any:
        return self._run(len(asked.get("Body", b"")), self._system._call_s3, method, **asked)  # noqa: SLF001  fsspec's name for "asynchronous"

    def _run(self, size: int | None, coroutine: Any, *args: Any, **asked: Any) -> Any:
        """One try, of a request that carries so many bytes."""
        from fsspec.asyn import sync

        return sync(self._system.loop, coroutine, *args, timeout=attempt_s(size), **asked)

    async def _read(self, asked: dict[str, Any]) -> bytes:
        try:
            answer = await self._system._call_s3("get_object", **asked)  # noqa: SLF001  as in _call
        except OSError as error:
            if is_beyond_end(error):
                return b""
            raise
        body = answer["Body"]
        try:
            data: bytes = await body.read()
        finally:
            body.close()
        return data


def _names(path: str) -> dict[str, str]:
    bucket, _, key = path.partition("/")
    return {"Bucket": bucket, "Key": key}


def _version_of(size: int, etag: str) -> str:
    return f"{size}-{etag.strip(chr(34))}"
