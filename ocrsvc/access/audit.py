"""The audit log: one line of JSON for each action of an operator, added to a file that nothing here ever shortens.

Who did what, to what, and when. A line is written in one call, so that lines of several processes do not mix. It never
holds a secret.
"""

from __future__ import annotations

import os
import pwd
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import orjson

from ocrsvc.access.opening import path_of
from ocrsvc.errors import OperatorError
from ocrsvc.settings.settings import Settings

_OWN_USER_ONLY: Final = 0o600


class AuditLog:
    """Adds lines to the file; for any thread and process.

    Args:
        path: Of the file, which is made when it is not there; None writes nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def check(self) -> None:
        """Raises OperatorError when a line could not be written: to be asked before the action."""
        if self.path is not None:
            os.close(self._open(self.path))

    def write(self, who: str, action: str, now_s: float, **facts: object) -> None:
        """Add a line, which is on the disk when this returns.

        Args:
            who: `key:NAME` or `user:NAME`, see `local_user`.
            action: What was done, such as `keys.add` or `workers.recycle`.
            now_s: When, Unix seconds.
            facts: To what, and how; plain values.

        Raises:
            OperatorError: It cannot be written.
        """
        if self.path is None:
            return
        line = {"time": _moment(now_s), "who": who, "action": action, **facts}
        file = self._open(self.path)
        try:
            os.write(file, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
            os.fsync(file)
        except OSError as error:
            raise _unwritable(self.path, error) from error
        finally:
            os.close(file)

    def _open(self, path: Path) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            return os.open(path, flags, _OWN_USER_ONLY)
        except OSError as error:
            raise _unwritable(path, error) from error


def audit_log_of(settings: Settings) -> AuditLog:
    """The log that the settings name, by default beside the file of the keys."""
    if settings.audit_log is not None or settings.keys is None:
        return AuditLog(settings.audit_log)
    path = path_of(settings.keys)
    return AuditLog(path.with_name(f"{path.name}.audit.jsonl") if path is not None else None)


def local_user() -> str:
    """Who runs this process, and by whose leave: `user:root (sudo by alice)`."""
    user = _name_of(os.getuid())
    sudo = os.environ.get("SUDO_USER", "")
    return f"user:{user} (sudo by {sudo})" if sudo else f"user:{user}"


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _moment(now_s: float) -> str:
    return datetime.fromtimestamp(now_s, UTC).isoformat(timespec="milliseconds")


def _unwritable(path: Path, error: OSError) -> OperatorError:
    return OperatorError(
        f"The audit log {path} cannot be written: {error.strerror}.",
        "Make its folder, let this user write there, or name another file with OCRSVC_AUDIT_LOG.",
    )
