"""The files that a tool is given: a path in a folder that may be read, base64, or an address."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ocrsvc.connections.fetching import fetch_file
from ocrsvc.connections.policy import OutgoingPolicy
from ocrsvc.errors import BadOption, BodyTooLarge, NothingSent
from ocrsvc.http.base64text import decode_base64


@dataclass(frozen=True, slots=True)
class Sources:
    """What may be read: files in these folders, links out of them excepted, and addresses that `policy` allows.

    `limit_s` is how long fetching from an address may take.
    """

    folders: Sequence[Path]
    most_bytes: int
    policy: OutgoingPolicy
    limit_s: float

    def load(self, path: str, base64: str, url: str) -> bytes:
        """The bytes of the one that is not empty.

        Raises BadOption (not exactly one, or a path out of the folders), NothingSent, BodyTooLarge, and as
        `decode_base64` and `fetch_file`.
        """
        if sum(map(bool, (path, base64, url))) != 1:
            raise BadOption("Exactly one of path, base64 and url is to be given.")
        if path:
            return self._file(path)
        if base64:
            # Four letters stand for three bytes; a data URI has a few more.
            self._check_size(len(base64) // 4 * 3 - 1024)
            return decode_base64(base64)
        if not self.policy.is_on:
            raise BadOption("Addresses are not fetched here.", "Save the file, and give its path.")
        return fetch_file(url, self.policy, self.limit_s).data

    def _file(self, path: str) -> bytes:
        """A file of a folder. What was opened is checked, not the name, which others may change meanwhile."""
        try:
            # A pipe would wait for a writer.
            full = Path(os.path.realpath(self.folders[0] / path if self.folders else Path(path)))
            self._check_within(full, path)
            opened = os.open(full, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "its name holds a null"
            raise NothingSent(f"{path[:200]} cannot be read: {reason}.", "Check its name.") from error
        try:
            self._check_within(Path(os.path.realpath(f"/proc/self/fd/{opened}")), path)
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                raise NothingSent(f"{path[:200]} is no file.")
            with os.fdopen(opened, "rb", closefd=False) as file:
                data = file.read(self.most_bytes + 1)
        finally:
            os.close(opened)
        self._check_size(len(data))
        return data

    def _check_within(self, full: Path, path: str) -> None:
        if not any(full.is_relative_to(folder.resolve()) for folder in self.folders):
            where = " or ".join(map(str, self.folders)) or "no folder: none is named with --folder"
            raise BadOption(f"{path[:200]} is not where files may be read, which is {where}.")

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self.most_bytes:
            raise BodyTooLarge(f"The file is larger than {self.most_bytes} bytes (--most-bytes).")
