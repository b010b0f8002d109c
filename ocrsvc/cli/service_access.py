"""How commands ask a service: with which API key, and with which certificates."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ocrsvc.cli.options import FILE, Decorator, gathered, option
from ocrsvc.errors import OperatorError
from ocrsvc.settings.api_key import API_KEY_VARIABLE

if TYPE_CHECKING:
    from ocrsvc.client import Client

_MOST_CHARACTERS: Final = 1000
_SECTION: Final = "Service"


@dataclass(frozen=True, slots=True)
class Access:
    """What the options say; files are read when they are needed."""

    key_file: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    cert_key: Path | None = None

    @property
    def certificate(self) -> tuple[Path, Path] | None:
        """The files of this side's certificate and of its key."""
        return None if self.cert is None else (self.cert, self.cert_key or self.cert)

    def read_key(self) -> str:
        """The API key. Raises OperatorError."""
        return read_key(self.key_file)

    def context(self) -> ssl.SSLContext | None:
        """What TLS is spoken with; None where the options say nothing of it. Raises OperatorError."""
        from ocrsvc.tls.client_context import client_context

        return client_context(self.ca, self.cert, self.cert_key)

    def client(self, addresses: str) -> Client:
        """A client of the services at these addresses, with commas between. Raises OperatorError."""
        try:
            from ocrsvc.client import Client
        except ModuleNotFoundError as error:
            raise OperatorError(
                f"A service is asked with the package {error.name}.", "Install the extra: ocrsvc[client]."
            ) from error
        urls: str | list[str] = addresses.split(",") if "," in addresses else addresses
        return Client(urls, api_key=self.read_key(), ca=self.ca, certificate=self.certificate)


def read_key(file: Path | None) -> str:
    """The key in the file, or else in the environment; empty where there is none. Raises OperatorError."""
    if file is None:
        return os.environ.get(API_KEY_VARIABLE, "").strip()
    try:
        key = file.read_text(encoding="ascii").strip()
    except OSError as error:
        raise OperatorError(
            f"The key file {file} cannot be read: {error.strerror}.", "Check its name and permissions."
        ) from error
    except UnicodeDecodeError:
        key = ""
    if not key or len(key) > _MOST_CHARACTERS or len(key.split()) != 1:
        raise OperatorError(f"{file} does not hold one key.", "Put the key into it as `ocrsvc keys add` printed it.")
    return key


def _file(name: str, meaning: str) -> Decorator:
    return option(name, type=FILE, section=_SECTION, metavar="FILE", help=meaning)


_KEY: Final = _file("--key-file", f"Its API key, in a file; by default in the variable {API_KEY_VARIABLE}.")
_TLS: Final = (
    _file("--ca", "Authority of its certificate, in PEM."),
    _file("--cert", "Certificate of this side, in PEM."),
    _file("--cert-key", "Key of that certificate, in PEM; by default in the same file."),
)

tls_access: Final = gathered("access", Access, *_TLS)
service_access: Final = gathered("access", Access, _KEY, *_TLS)
