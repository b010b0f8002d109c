"""Removes clients' data from paths and errors, so that these can be logged."""

import re
from typing import Final

from ocrsvc.errors import CallerError, OcrsvcError

_PLAIN: Final = re.compile(r"[A-Za-z0-9_.:~\-]{0,64}")
_HIDDEN: Final = "…"
_WITHOUT_MESSAGE: Final = "(message not logged, as it may contain input)"
# Error types whose messages are about this machine; messages of others may quote a client's input.
_ABOUT_THE_MACHINE: Final = (MemoryError, RuntimeError, ImportError)


def loggable_path(path: str) -> str:
    """A request's path, with "…" in place of each part that may be a file name."""
    return "/".join(part if _PLAIN.fullmatch(part) else _HIDDEN for part in path.split("/"))


def loggable_error(error: BaseException) -> BaseException:
    """A copy of an error for `exc_info`, with name, stack and causes, but the message only if it quotes no input."""
    kind = type(type(error).__name__, (Exception,), {"__module__": type(error).__module__})
    copy: BaseException = kind(_message_of(error))
    copy.__traceback__ = error.__traceback__
    copy.__cause__ = None if error.__cause__ is None else loggable_error(error.__cause__)
    if error.__context__ is not None and error.__cause__ is None and not error.__suppress_context__:
        copy.__context__ = loggable_error(error.__context__)
    return copy


def _message_of(error: BaseException) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    about_the_service = isinstance(error, OcrsvcError) and not isinstance(error, CallerError)
    return str(error) if about_the_service or isinstance(error, _ABOUT_THE_MACHINE) else _WITHOUT_MESSAGE
