"""The audit log: one line of JSON per action of an operator, appended to a file.

Each line is written in one call, so that lines of several processes do not mix. It never holds a secret.
"""

import os
import pwd
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import orjson

from ocrsvc.access.manage_keys import path_of
from ocrsvc.errors import OperatorError
from ocrsvc.settings.settings import Settings

_OWNER_ONLY: Final = 0o600


class AuditLog:
    """Appends lines to a file, created if missing; with `path` None it writes nothing. For any thread and process."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def check(self) -> None:
        """Raises OperatorError if lines cannot be written; call it before the action."""
        self._append(b"")

    def write(self, who: str, action: str, now_s: float, **facts: object) -> None:
        """Append a line and sync it. `who` is `key:NAME` or `user:NAME`, `action` such as `keys.add`.

        Raises OperatorError.
        """
        moment = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="milliseconds")
        line = {"time": moment, "who": who, "action": action, **facts}
        self._append(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def _append(self, line: bytes) -> None:
        if self.path is None:
            return
        try:
            with open(self.path, "ab", buffering=0, opener=_open_for_owner) as file:
                if line:
                    file.write(line)
                    os.fsync(file)
        except OSError as error:
            raise OperatorError(
                f"The audit log {self.path} cannot be written: {error.strerror}.",
                "Create its folder, give this user access, or set OCRSVC_AUDIT_LOG to another file.",
            ) from error


def audit_log_of(settings: Settings) -> AuditLog:
    """The audit log that the settings name; by default a file beside the key file."""
    if settings.audit_log is not None or settings.keys is None:
        return AuditLog(settings.audit_log)
    path = path_of(settings.keys)
    return AuditLog(path.with_name(f"{path.name}.audit.jsonl") if path is not None else None)


def _open_for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, _OWNER_ONLY)


def local_user() -> str:
    """The user of this process and of sudo, such as `user:root (sudo by alice)`."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    sudo = os.environ.get("SUDO_USER", "")
    return f"user:{user} (sudo by {sudo})" if sudo else f"user:{user}"
