"""Paths and errors as a log may have them: without anything that a client may have sent."""

from __future__ import annotations

import re
from typing import Final

from ocrsvc.errors import CallerError, OcrsvcError

_PLAIN: Final = re.compile(r"[A-Za-z0-9_.:~\-]{0,64}")
_HIDDEN: Final = "…"
_WITHOUT_MESSAGE: Final = "(its message may hold what was sent, and is not logged)"
# Of these the message is about this machine; of others it quotes the value that went wrong.
_ABOUT_THE_MACHINE: Final = (MemoryError, RuntimeError, ImportError)


def loggable_path(path: str) -> str:
    """The path of a request, with … in place of each part that may be the name of a file."""
    return "/".join(part if _PLAIN.fullmatch(part) else _HIDDEN for part in path.split("/"))


def loggable_error(error: BaseException) -> BaseException:
    """The error for a logger's `exc_info`: same name, stack and causes, and a message only where it is harmless."""
    kind = type(type(error).__name__, (Exception,), {"__module__": type(error).__module__})
    found: BaseException = kind(_message_of(error))
    found.__traceback__ = error.__traceback__
    found.__cause__ = None if error.__cause__ is None else loggable_error(error.__cause__)
    if error.__context__ is not None and error.__cause__ is None and not error.__suppress_context__:
        found.__context__ = loggable_error(error.__context__)
    return found


def _message_of(error: BaseException) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    about_the_service = isinstance(error, OcrsvcError) and not isinstance(error, CallerError)
    return str(error) if about_the_service or isinstance(error, _ABOUT_THE_MACHINE) else _WITHOUT_MESSAGE
