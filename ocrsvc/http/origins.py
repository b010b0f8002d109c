"""Host names that the service answers to, web pages that may call it, and the headers for browsers.

Without these checks a foreign site could read a service on localhost from a browser there: by pointing its own name to
it (DNS rebinding), or where a format opens itself to all sites.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import urlsplit

from flask import Flask, Response

from ocrsvc.errors import CallerError
from ocrsvc.http.request import Request, current_request
from ocrsvc.settings.settings import Settings

ANY: Final = "*"
# The headers in which proxies name their caller; with any of these the peer is not the caller.
_FORWARDED: Final = ("HTTP_FORWARDED", "HTTP_X_FORWARDED_FOR", "HTTP_X_REAL_IP", "HTTP_VIA")
_METHODS: Final = "GET, HEAD, POST, PUT, DELETE, OPTIONS"
_PREFLIGHT_S: Final = "600"


class HostNotAllowed(CallerError, status=403, code="host_not_allowed", title="Not for this host"):
    """The request names a host that this service is not, or comes from a foreign web page."""


def check_host(request: Request, hosts: Collection[str]) -> None:
    """Raises HostNotAllowed for a name that is none of these; see `is_host_allowed`."""
    if not is_host_allowed(request.host, hosts, request.environ.get("SERVER_NAME", "")):
        raise HostNotAllowed(
            f"This service does not answer to the name {host_name(request.host)[:100]!r}.",
            "Ask it by its address, or have the operator list the name in OCRSVC_HOSTS.",
        )


def check_origin() -> None:
    """Raises HostNotAllowed when a web page of another host asks; for operators' routes."""
    request = current_request()
    origin = request.headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc != request.host:
        raise HostNotAllowed(
            "Pages of other sites may not ask for this.", "Ask without a browser, or from a page of this service."
        )


def install_browser_headers(app: Flask, settings: Settings) -> None:
    """Add the security headers and those of CORS. To be called first, for Flask calls the first one last."""
    headers = {"X-Content-Type-Options": "nosniff"}
    if settings.tls_certificate is not None:
        headers["Referrer-Policy"] = "no-referrer"
        if settings.tls_hsts_s:
            headers["Strict-Transport-Security"] = f"max-age={settings.tls_hsts_s}"

    @app.after_request
    def add_headers(response: Response) -> Response:
        for name, value in headers.items():
            response.headers.setdefault(name, value)
        if settings.cors:
            _open_to_pages(current_request(), response, settings.cors)
        return response


def is_host_allowed(host: str, allowed: Collection[str], listens_at: str) -> bool:
    """Whether requests for this host, with or without a port, are answered.

    Where no names are allowed, a service at a loopback address answers to loopback names only, and any other to all; a
    Unix socket's address is empty.
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


def is_loopback(name: str) -> bool:
    """Whether a name or an address means the machine itself."""
    return name == "localhost" or name.endswith(".localhost") or is_loopback_address(name)


def is_loopback_address(name: str) -> bool:
    """Whether this is an address of the machine itself."""
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def is_local(environ: Mapping[str, object]) -> bool:
    """Whether the peer is on this machine (loopback, or a Unix socket) and is the caller itself, not a proxy."""
    if any(name in environ for name in _FORWARDED):
        return False
    peer = str(environ.get("REMOTE_ADDR") or "")
    return not peer or is_loopback_address(peer)


def _open_to_pages(request: Request, response: Response, sites: Collection[str]) -> None:
    """The headers of CORS, if a page of one of these sites asks."""
    origin = request.headers.get("Origin", "")
    if not origin or not (ANY in sites or origin in sites):
        return
    response.headers["Access-Control-Allow-Origin"] = ANY if ANY in sites else origin
    if ANY not in sites:
        response.headers.add("Vary", "Origin")
    if request.method == "OPTIONS":
        response.headers["Access-Control-Allow-Methods"] = _METHODS
        if headers := request.headers.get("Access-Control-Request-Headers", ""):
            response.headers["Access-Control-Allow-Headers"] = headers
        response.headers["Access-Control-Max-Age"] = _PREFLIGHT_S
