"""Checks of the Host and Origin headers, CORS, and security headers for browsers.

Without them a web site could read a service on a visitor's localhost through the visitor's browser: by pointing its
own host name there (DNS rebinding), or through a wire format that allows all origins.
"""

from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import urlsplit

from flask import Flask, Response

from ocrsvc.access.local_callers import PROXY_HEADERS, is_local_peer, is_loopback
from ocrsvc.errors import CallerError
from ocrsvc.http.request import Request, current_request
from ocrsvc.settings.settings import Settings

ANY: Final = "*"
# PROXY_HEADERS as keys of the WSGI environ.
_FORWARDED: Final = frozenset("HTTP_" + name.upper().replace("-", "_") for name in PROXY_HEADERS)
_METHODS: Final = "GET, HEAD, POST, PUT, DELETE, OPTIONS"
_PREFLIGHT_S: Final = "600"


class HostNotAllowed(CallerError, status=403, code="host_not_allowed", title="Not for this host"):
    """The Host header names another host, or the request comes from another site's web page."""


def check_host(request: Request, hosts: Collection[str]) -> None:
    """Raises HostNotAllowed for a Host header that `is_host_allowed` rejects."""
    if not is_host_allowed(request.host, hosts, request.environ.get("SERVER_NAME", "")):
        raise HostNotAllowed(
            f"This service does not serve the host name {host_name(request.host)[:100]!r}.",
            "Use its address, or have the operator add the name to OCRSVC_HOSTS.",
        )


def check_origin() -> None:
    """Raises HostNotAllowed if another host's web page sent this thread's request."""
    request = current_request()
    origin = request.headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc != request.host:
        raise HostNotAllowed(
            "Other sites' web pages may not send this request.",
            "Send it without a browser, or from this service's page.",
        )


def install_browser_headers(app: Flask, settings: Settings) -> None:
    """Add security and CORS headers to every response. Call it before adding other after_request hooks, to run last."""
    headers = {"X-Content-Type-Options": "nosniff"}
    if settings.tls_certificate is not None:
        headers["Referrer-Policy"] = "no-referrer"
        if settings.tls_hsts_s:
            headers["Strict-Transport-Security"] = f"max-age={settings.tls_hsts_s}"

    @app.after_request
    def add_headers(response: Response) -> Response:
        for name, value in headers.items():
            response.headers.setdefault(name, value)
        request = current_request()
        origin, may_any = request.headers.get("Origin", ""), ANY in settings.cors
        if origin and (may_any or origin in settings.cors):
            response.headers["Access-Control-Allow-Origin"] = ANY if may_any else origin
            if not may_any:
                response.headers.add("Vary", "Origin")
            if request.method == "OPTIONS":
                response.headers["Access-Control-Allow-Methods"] = _METHODS
                if asked := request.headers.get("Access-Control-Request-Headers", ""):
                    response.headers["Access-Control-Allow-Headers"] = asked
                response.headers["Access-Control-Max-Age"] = _PREFLIGHT_S
        return response


def is_host_allowed(host: str, allowed: Collection[str], listens_at: str) -> bool:
    """Whether requests with this Host header are served; `listens_at` is empty for a Unix socket.

    If `allowed` is empty, a service on a loopback address serves only loopback names; any other service serves all.
    """
    name = host_name(host)
    if allowed:
        return ANY in allowed or name in allowed
    return not is_loopback(listens_at) or is_loopback(name)


def host_name(host: str) -> str:
    """The name or address in a Host header, in lower case, without its port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].rstrip(".").lower()


def is_local(environ: Mapping[str, object]) -> bool:
    """Whether a request comes from this machine, and not through a proxy."""
    return is_local_peer(str(environ.get("REMOTE_ADDR") or ""), is_forwarded=not _FORWARDED.isdisjoint(environ))
