"""The names in a certificate, and the key that a client's certificate stands for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

# As Python's ssl calls the kinds, and as the setting tls_names does.
_ALTERNATIVE_KINDS: Final = {"DNS": "DNS", "URI": "URI", "email": "EMAIL", "IP Address": "IP"}


def names_of(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The names in a verified certificate, as `ssl` gives it: alternative names first, such as "DNS=a.example"."""
    return tuple(_names(certificate or {}))


def keys_by_name(entries: Iterable[str]) -> dict[str, str]:
    """The setting tls_names, taken apart: the name of a key by a certificate's name."""
    return {name: key for name, _, key in (entry.rpartition(":") for entry in entries)}


def key_of(names: Iterable[str], keys: Mapping[str, str]) -> str | None:
    """The name of the key that a certificate of these names stands for; None for none."""
    return next((keys[name] for name in names if name in keys), None)


def _names(certificate: Mapping[str, Any]) -> Iterator[str]:
    for kind, value in certificate.get("subjectAltName", ()):
        if kind in _ALTERNATIVE_KINDS:
            yield f"{_ALTERNATIVE_KINDS[kind]}={value}"
    for pairs in certificate.get("subject", ()):
        yield from (f"CN={value}" for kind, value in pairs if kind == "commonName")
