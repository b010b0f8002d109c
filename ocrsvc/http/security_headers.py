"""The headers of a service over TLS: browsers come back over TLS only, guess no types and tell no other site."""

from __future__ import annotations

from typing import Final

from flask import Flask, Response

from ocrsvc.settings.settings import Settings

_HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}


def install_security_headers(app: Flask, settings: Settings) -> None:
    """Set them on every response that has not its own; without TLS responses stay as they are.

    Args:
        app: The application.
        settings: Used are tls_certificate and tls_hsts_s.
    """
    if settings.tls_certificate is None:
        return
    hsts = {"Strict-Transport-Security": f"max-age={settings.tls_hsts_s}"} if settings.tls_hsts_s else {}
    headers = {**_HEADERS, **hsts}

    @app.after_request
    def add_headers(response: Response) -> Response:
        for name, value in headers.items():
            response.headers.setdefault(name, value)
        return response
