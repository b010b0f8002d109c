"""Headers of every answer: browsers guess no types. Over TLS they come back over TLS only and tell no other site."""

from __future__ import annotations

from typing import Final

from flask import Flask, Response

from ocrsvc.settings.settings import Settings

_ALWAYS: Final = {"X-Content-Type-Options": "nosniff"}
_OVER_TLS: Final = {"Referrer-Policy": "no-referrer"}


def install_security_headers(app: Flask, settings: Settings) -> None:
    """Set them on every response that has not its own.

    Called before everything else that changes responses: Flask calls the first last.

    Args:
        app: The application.
        settings: Used are tls_certificate and tls_hsts_s.
    """
    headers = dict(_ALWAYS)
    if settings.tls_certificate is not None:
        headers |= _OVER_TLS
        if settings.tls_hsts_s:
            headers["Strict-Transport-Security"] = f"max-age={settings.tls_hsts_s}"

    @app.after_request
    def add_headers(response: Response) -> Response:
        for name, value in headers.items():
            response.headers.setdefault(name, value)
        return response
