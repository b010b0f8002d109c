"""Service settings: addresses, TLS, adapters, API keys, outgoing requests, logs and traces."""

import re
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, PositiveFloat, StringConstraints, ValidationInfo

from ocrsvc.plugins import adapters
from ocrsvc.settings.group import ByteCount, ListOf, Names, SettingsGroup, setting

# Kinds of names in a client certificate: the subject's common name (CN), and alternative names.
_NAME_KINDS: Final = ("CN", "DNS", "URI", "EMAIL", "IP")
_BIND: Final = re.compile(r"unix:\S+|(?:\[[0-9a-fA-F:.]+\]|[^\s:\[\]]+):(\d{1,5})")
_ORIGIN: Final = r"^(?:\*|https?://(?:[a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?)$"
# KIND=NAME:KEY. The last colon separates KEY, an API key's name without colons; a URI as NAME may contain colons.
_CERTIFICATE_NAME: Final = rf"^(?:{'|'.join(_NAME_KINDS)})=\S(?:.*\S)?:[^\s:=]+$"
_LABEL: Final = "[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_PATTERN: Final = rf"^(?:\*|(?:\*\.)?{_LABEL}(?:\.{_LABEL})*|\[[0-9A-Fa-f:.]{{2,45}}\])(?::(?:[1-9][0-9]{{0,4}}|\*))?$"


def _check_bind(value: str) -> str:
    match = _BIND.fullmatch(value)
    if match is None or int(match[1] or 0) > 65535:
        raise ValueError("not an address")
    return value


def _check_certificate_names(entries: tuple[str, ...]) -> tuple[str, ...]:
    if len({entry.rpartition(":")[0] for entry in entries}) < len(entries):
        raise ValueError("duplicate name")
    return entries


def _check_adapters(names: tuple[str, ...]) -> tuple[str, ...]:
    """Remove duplicate names; ("none",) means no adapter. Raises ValueError for an unknown adapter."""
    if names == ("none",):
        return ()
    if unknown := set(names) - set(adapters()):
        raise ValueError(f"unknown adapters {sorted(unknown)}")
    return tuple(dict.fromkeys(names))


def _check_usual_ports(names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
    """Check that each adapter is on and has a usual port, and that `bind` has a host. Raises ValueError."""
    names = _check_adapters(names)
    portless = [name for name in names if adapters()[name].port is None or name not in info.data.get("adapters", names)]
    if portless or (names and str(info.data.get("bind", "")).startswith("unix:")):
        raise ValueError("cannot bind a usual port")
    return names


Address = Annotated[str, AfterValidator(_check_bind)]
Addresses = ListOf[Address]
HostName = Annotated[
    str,
    AfterValidator(lambda name: name.lower().strip("[]")),
    StringConstraints(pattern=r"^(?:\*|[a-z0-9._-]{1,253}|[0-9a-f:.]{2,45})$"),
]
Hosts = ListOf[HostName]
Origins = ListOf[Annotated[str, StringConstraints(pattern=_ORIGIN)]]
CertificateNames = Annotated[
    ListOf[Annotated[str, StringConstraints(pattern=_CERTIFICATE_NAME)]], AfterValidator(_check_certificate_names)
]
AdapterNames = Annotated[Names, AfterValidator(_check_adapters)]
UsualPorts = Annotated[Names, AfterValidator(_check_usual_ports)]
StoreAddress = Annotated[
    str, StringConstraints(pattern=r"^(?:sqlite:[^\s?]\S*|rediss?://[^\s/]+(/\d*)?(\?\S*)?|unix://\S+)$")
]
HostPatterns = ListOf[Annotated[str, StringConstraints(pattern=_PATTERN, to_lower=True)]]
Networks = ListOf[Annotated[str, AfterValidator(lambda name: str(ip_network(name)))]]

_ADDRESS: Final = "host:port, [IPv6]:port or unix:path, with a port up to 65535"
_HOSTS_ACCEPTED: Final = (
    "hosts separated by commas (in the file a list), each a name, an address or *.example.org (not example.org "
    "itself), at the ports 80 and 443, or with :port or :* for others; * is every host"
)
_NETWORKS_ACCEPTED: Final = "networks separated by commas (in the file a list), such as 10.1.0.0/16 or 192.0.2.7/32"


class ServiceSettings(SettingsGroup, title="Service"):
    """Addresses, host names, CORS, operators' routes and shutdown."""

    bind: Address = setting("127.0.0.1:8000", "Listening address; gunicorn's -b overrides.", accepted=_ADDRESS)
    grpc_bind: Addresses = setting(
        (),
        "Addresses to listen on for gRPC, each for KServe v2, TensorFlow Serving, Paddle Serving and TurboOCR.",
        accepted=f"addresses separated by commas (in the file a list), each {_ADDRESS}",
    )
    hosts: Hosts = setting(
        (),
        "Host names and addresses, without ports, that are accepted in the Host header, or * for any; by default "
        "loopback names if the service listens on a loopback address, else any. Behind a proxy on the same machine "
        "list the names that clients use.",
        accepted="names and addresses separated by commas (in the file a list), or *",
    )
    cors: Origins = setting(
        (),
        "Origins whose web pages may read responses (CORS), such as https://app.example.com, or * for all; by default "
        "none.",
        accepted="origins separated by commas (in the file a list), each scheme://host or scheme://host:port, or *",
    )
    ops: Literal["open", "local", "off"] = setting(
        "local", "Access to /metrics and /ops/…: all, callers on this machine and not through a proxy, or none."
    )
    drain_s: float = setting(
        0.0,
        "How long the service keeps serving after SIGTERM while /readyz fails, so that load balancers switch to other "
        "hosts before it stops accepting; a second SIGTERM ends the wait.",
        between=(0, 3600),
    )
    pidfile: Path | None = setting(None, "File for the arbiter's process id; overridden by gunicorn's -p.")


class TlsSettings(SettingsGroup, title="TLS"):
    """TLS on all addresses except Unix sockets, if there is a certificate."""

    tls_certificate: Path | None = setting(
        None, "PEM file with the certificate chain; it switches on TLS for HTTP and gRPC, except on Unix sockets."
    )
    tls_key: Path | None = setting(
        None, "PEM file with the certificate's private key, without a password; by default the certificate's file."
    )
    tls_client_ca: Path | None = setting(
        None,
        "PEM file with the authorities for client certificates, and with their revocation lists if they have any; by "
        "default clients need no certificate.",
    )
    tls_clients: Literal["required", "optional"] = setting(
        "required", "Whether clients need a certificate if tls_client_ca is set; wrong certificates are always refused."
    )
    tls_names: CertificateNames = setting(
        (),
        "API keys of client certificates, by a name in the certificate, such as CN=loader:nightly or "
        "DNS=scan.example.com:scanner; a key in the request takes precedence.",
        accepted="entries separated by commas (in the file a list), each KIND=NAME:KEY with one of the kinds "
        + ", ".join(_NAME_KINDS)
        + ", each name once",
    )
    tls_hsts_s: int = setting(
        31_536_000,
        "max-age of Strict-Transport-Security: how long browsers use only TLS for this host; 0 sends no such header.",
        between=(0, 10**9),
    )


class AdapterSettings(SettingsGroup, title="API adapters"):
    """The API adapters. The check of `usual_ports` needs `bind`, so ServiceSettings must be validated first."""

    adapters: AdapterNames = setting(
        lambda: tuple(adapters()),
        "Adapters (other products' wire formats) that are on; none switches all off.",
        accepted=lambda: "none, or names separated by commas (in the file a list) out of " + ", ".join(adapters()),
    )
    usual_ports: UsualPorts = setting(
        (),
        "Adapters whose usual port is also listened on, at the host of bind, for clients that cannot use another port; "
        "overridden by gunicorn's -b.",
        accepted=lambda: (
            "names of adapters that are on, separated by commas (in the file a list), out of "
            + ", ".join(name for name, entry in adapters().items() if entry.port)
            + "; and no unix: address in bind"
        ),
    )
    trwebocr_boxes: Literal["rect", "poly"] = setting(
        "rect", "Boxes of /api/tr-run/: rect as TrWebOCR, poly as chineseocr_lite, which has the same path."
    )


class AccessSettings(SettingsGroup, title="Access"):
    """API keys and the audit log."""

    keys: StoreAddress | None = setting(
        None,
        "Store of API keys and their usage; if it is set, all routes except health checks need a key.",
        accepted="sqlite:PATH, or for several machines redis://host:6379/0, rediss://… (over TLS) or unix://…",
    )
    audit_log: Path | None = setting(
        None,
        "File with a line of JSON for each change of a key and each action of an operator; by default beside the key "
        "file, with .audit.jsonl added to its name, and none with Redis.",
    )


class OutgoingSettings(SettingsGroup, title="Outgoing requests"):
    """Requests to callers' URLs: files to fetch, and callbacks."""

    url_hosts: HostPatterns = setting(
        (),
        "Hosts from which files are fetched if a request has a URL in place of a file; empty fetches none.",
        accepted=_HOSTS_ACCEPTED,
    )
    url_private: Networks = setting(
        (),
        "Networks that are not public from which files may be fetched; all other private, loopback, link-local and "
        "reserved addresses, and this machine's own, are never connected to, whatever a host name resolves to.",
        accepted=_NETWORKS_ACCEPTED,
    )
    url_bytes: ByteCount = setting(
        64 * 2**20, "Largest file that is fetched; a larger one is answered 413.", between=(1024, 4 * 2**30)
    )
    url_s: PositiveFloat = setting(
        20.0, "Longest time for fetching a file, including redirects; at most the request's own time.", le=3600
    )
    url_fetches: int = setting(
        8,
        "Most concurrent fetches in each worker, which block request threads; half of them for one caller; more are "
        "answered 503, or 429.",
        "requests",
        between=(1, 4096),
    )
    callback_hosts: HostPatterns = setting(
        (), "Hosts to which callbacks of jobs are sent; empty sends none.", accepted=_HOSTS_ACCEPTED
    )
    callback_private: Networks = setting((), "As url_private, for the hosts of callbacks.", accepted=_NETWORKS_ACCEPTED)
    callback_s: PositiveFloat = setting(10.0, "Longest time of one try of a callback.", le=600)


class LoggingSettings(SettingsGroup, title="Logging"):
    """The service's own log and the access log."""

    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "The lowest level that is logged.")
    log_format: Literal["text", "json"] = setting(
        "text", "Format of the log on stderr: text for people, or one JSON object a line (see docs/operations.md)."
    )
    access_log: Literal["off", "text", "json"] = setting(
        "off", "One line on stdout per request, as key=value or JSON, without the query and any content."
    )
    log_text: Literal["off", "masked"] = setting(
        "off",
        "Whether the log has the recognised text of each page, at level info: never, or with all matches of the "
        "masking rules as stars.",
    )


class TraceSettings(SettingsGroup, title="Traces"):
    """Traces of requests, with OpenTelemetry."""

    traces: Literal["off", "otlp"] = setting(
        "off",
        "Send traces of requests to an OpenTelemetry collector over OTLP/HTTP, with the extra otel; "
        "OTEL_EXPORTER_OTLP_ENDPOINT and the SDK's other variables configure the exporter.",
    )
    trace_sample: float | None = setting(
        None,
        "Fraction of the traces that is recorded, of those that begin here; for others their caller decides. Without "
        "it OTEL_TRACES_SAMPLER decides, and without that all are recorded.",
        between=(0, 1),
    )
