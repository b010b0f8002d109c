"""Reads the key of encrypted models from a setting, from a file descriptor or from a command's output."""

import ctypes
import os
import select
import shlex
import subprocess
import time
from collections.abc import Callable
from typing import Final

from ocrsvc.engines.model.encryption import ACCEPTED, ModelKey, parse_key
from ocrsvc.errors import SettingsError
from ocrsvc.settings.describe import variable_of
from ocrsvc.settings.settings import Settings
from ocrsvc.system.sandbox import forbid_core_dumps

LIMIT_S: Final = 10.0  # time limit for the command, and for reading the descriptor
KEY_SETTINGS: Final = ("models_key", "models_key_fd", "models_key_command")
_MAX_BYTES: Final = 4096


def read_model_key(settings: Settings) -> ModelKey | None:
    """Read the key that the settings name; None if they name none. A descriptor can be read only once.

    Disables core dumps if there is a key. Raises SettingsError, which never quotes the key, if several settings name a
    key, or if it cannot be read or parsed.
    """
    named = [name for name in KEY_SETTINGS if getattr(settings, name) is not None]
    if len(named) > 1:
        raise SettingsError(
            f"{' and '.join(map(variable_of, named))} are set, and each names the key of the models.",
            "Set only one of them.",
        )
    if not named:
        return None
    forbid_core_dumps()
    if settings.models_key is not None:
        text = settings.models_key.get_secret_value()
    elif settings.models_key_fd is not None:
        text = _read_descriptor(settings.models_key_fd)
    else:
        assert settings.models_key_command is not None, "one of the three is named"
        text = _run(settings.models_key_command.get_secret_value())
    try:
        return parse_key(text)
    except ValueError:
        raise SettingsError(f"{variable_of(named[0])} is not a model key: accepted are {ACCEPTED}.") from None


def is_read_again(settings: Settings) -> bool:
    """Whether the key can be read again later; a descriptor cannot, because it was closed."""
    return settings.models_key is not None or settings.models_key_command is not None


def hide_key_variable() -> None:
    """Remove the key from this process's environment: children do not inherit it, and /proc shows stars instead.

    The original environment must be overwritten in memory, because /proc shows that memory. The process that started
    this one, and a container's configuration, still have the key.
    """
    variable = variable_of("models_key")
    value = os.environ.get(variable)
    if value is None:
        return
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    place = getenv(os.fsencode(variable))
    if place:
        ctypes.memset(place, ord("*"), len(os.fsencode(value)))
    del os.environ[variable]


def _read_descriptor(descriptor: int, clock: Callable[[], float] = time.monotonic) -> str:
    """Read a descriptor up to its end, and close it. Raises SettingsError."""
    variable, end_s, content, poll = variable_of("models_key_fd"), clock() + LIMIT_S, b"", select.poll()
    try:
        os.fstat(descriptor)
        poll.register(descriptor, select.POLLIN)
        while len(content) <= _MAX_BYTES:
            if not poll.poll(1000 * max(0.0, end_s - clock())):
                raise SettingsError(f"{variable} is {descriptor}, which did not reach its end within {LIMIT_S:g} s.")
            piece = os.read(descriptor, _MAX_BYTES)
            if not piece:
                break
            content += piece
        os.close(descriptor)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{variable} is {descriptor}, which cannot be read: {error}.") from error
    return content.decode("ascii", "replace")


def _run(command: str) -> str:
    """Run a command; returns its output. Errors quote only the program, because the arguments may contain secrets."""
    variable = variable_of("models_key_command")
    try:
        arguments = shlex.split(command)
        ended = subprocess.run(  # noqa: S603  the operator's own command, without a shell
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise SettingsError(f"{variable}: {arguments[0]} did not end within {LIMIT_S:g} s.") from None
    except (OSError, ValueError, IndexError):
        raise SettingsError(f"{variable} cannot be run.", "Set it to a program and its arguments.") from None
    if ended.returncode:
        raise SettingsError(f"{variable}: {arguments[0]} ended with code {ended.returncode}.")
    return ended.stdout[: _MAX_BYTES + 1].decode("ascii", "replace")
