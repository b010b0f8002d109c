"""Settings of the service: addresses, TLS, API formats, keys, outgoing requests, log and traces."""

from __future__ import annotations

import re
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, PositiveFloat, StringConstraints, ValidationInfo

from ocrsvc.plugins import adapters
from ocrsvc.settings.group import ByteCount, ListOf, Names, SettingsGroup, setting

# The kinds of names in a client's certificate: the common name of its subject, and its alternative names.
_NAME_KINDS: Final = ("CN", "DNS", "URI", "EMAIL", "IP")
_BIND: Final = re.compile(r"unix:\S+|(?:\[[0-9a-fA-F:.]+\]|[^\s:\[\]]+):(\d{1,5})")
_ORIGIN: Final = r"^(?:\*|https?://(?:[a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?)$"
# The last colon divides, since a URI has some; names of keys have none.
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
        raise ValueError("a name twice")
    return entries


def _check_adapters(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names, each once; "none" alone is none. Raises ValueError for one that is not spoken."""
    if names == ("none",):
        return ()
    if unknown := set(names) - set(adapters()):
        raise ValueError(f"unknown dialects {sorted(unknown)}")
    return tuple(dict.fromkeys(names))


def _check_usual_ports(names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
    """The names, if each is spoken here and has a usual port, and `bind` has a host for it. Raises ValueError."""
    names = _check_adapters(names)
    portless = [name for name in names if adapters()[name].port is None or name not in info.data.get("dialects", names)]
    if portless or (names and str(info.data.get("bind", "")).startswith("unix:")):
        raise ValueError("no port can be bound for them")
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

_HOSTS_ACCEPTED: Final = (
    "hosts separated by commas (in the file a list), each a name, an address or *.example.org (not example.org "
    "itself), at the ports 80 and 443, or with :port or :* for others; * is every host"
)
_NETWORKS_ACCEPTED: Final = "networks separated by commas (in the file a list), such as 10.1.0.0/16 or 192.0.2.7/32"


class ServiceSettings(SettingsGroup, title="Service"):
    """Addresses, hosts, sites, metrics and the file of the process id."""

    bind: Address = setting(
        "127.0.0.1:8000", "Address to listen on; gunicorn's -b wins.", accepted="host:port, [IPv6]:port or unix:path"
    )
    grpc_bind: Addresses = setting(
        (),
        "Addresses to listen on for gRPC: KServe v2, TensorFlow Serving, Paddle Serving and TurboOCR at each of them.",
        accepted="addresses separated by commas (in the file a list), each host:port, [IPv6]:port or unix:path",
    )
    hosts: Hosts = setting(
        (),
        "Names and addresses, without ports, that requests may be for (header Host), or * for any; by default the "
        "loopback ones where the service listens on a loopback address, and any elsewhere. Behind a proxy on the same "
        "machine list the names that its clients use.",
        accepted="names and addresses separated by commas (in the file a list), or *",
    )
    cors: Origins = setting(
        (),
        "Web sites whose pages may read answers, such as https://app.example.com, or * for all; by default none.",
        accepted="origins separated by commas (in the file a list), each scheme://host or scheme://host:port, or *",
    )
    ops: Literal["open", "local", "off"] = setting(
        "local",
        "Who may ask for /metrics and /ops/…: everybody, callers on the same machine that do not come through a proxy, "
        "or nobody.",
    )
    drain_s: float = setting(
        0.0,
        "How long the service answers on after SIGTERM, and says that it is not ready, so that load balancers turn to "
        "other hosts before it stops accepting; a second SIGTERM ends the wait.",
        between=(0, 3600),
    )
    pidfile: Path | None = setting(
        None, "File that holds the arbiter's process id while the service runs; gunicorn's -p wins."
    )


class TlsSettings(SettingsGroup, title="TLS"):
    """TLS on every address but Unix sockets. None of it without a certificate."""

    tls_certificate: Path | None = setting(
        None,
        "File with the service's certificate, and those between it and its authority, in PEM; with it HTTP and gRPC "
        "are served over TLS, but for Unix sockets.",
    )
    tls_key: Path | None = setting(
        None,
        "File with the certificate's private key in PEM, without a password; by default the certificate's own file.",
    )
    tls_client_ca: Path | None = setting(
        None,
        "File with the authorities, in PEM, of which clients must have a certificate, and with their revocation lists "
        "if there are any; by default clients need no certificate.",
    )
    tls_clients: Literal["required", "optional"] = setting(
        "required",
        "Whether clients without a certificate are refused where tls_client_ca is set; a wrong certificate always is.",
    )
    tls_names: CertificateNames = setting(
        (),
        "Which key of OCRSVC_KEYS a client's certificate stands for, by one of its names, such as CN=loader:nightly or "
        "DNS=scan.example.com:scanner; a key that a request carries comes before it.",
        accepted="entries separated by commas (in the file a list), each KIND=NAME:KEY with one of the kinds "
        + ", ".join(_NAME_KINDS)
        + ", each name once",
    )
    tls_hsts_s: int = setting(
        31_536_000,
        "How long browsers are to ask for this host over TLS only (Strict-Transport-Security); 0 sends no such header.",
        between=(0, 10**9),
    )


class AdapterSettings(SettingsGroup, title="API adapters"):
    """The API adapters. `usual_ports` is checked against `bind`, so ServiceSettings come first."""

    dialects: AdapterNames = setting(
        lambda: tuple(adapters()),
        "Foreign wire formats that are spoken beside the native one; none switches them all off.",
        accepted=lambda: "none, or names separated by commas (in the file a list) out of " + ", ".join(adapters()),
    )
    usual_ports: UsualPorts = setting(
        (),
        "Dialects whose usual port is listened on as well, at the host of bind, for clients that have it hard-wired; "
        "gunicorn's -b wins.",
        accepted=lambda: (
            "names of dialects that are on, separated by commas (in the file a list), out of "
            + ", ".join(name for name, entry in adapters().items() if entry.port)
            + "; and no unix: address in bind"
        ),
    )
    trwebocr_boxes: Literal["rect", "poly"] = setting(
        "rect",
        "How /api/tr-run/ answers: rect as TrWebOCR does, poly as chineseocr_lite does, which has the same address.",
    )


class AccessSettings(SettingsGroup, title="Access"):
    """API keys and the audit log."""

    keys: StoreAddress | None = setting(
        None,
        "Where API keys and what is used of them are stored; once it is set everything but health wants a key, also "
        "while there is none.",
        accepted="sqlite:PATH, or for several machines redis://host:6379/0, rediss://… (over TLS) or unix://…",
    )
    audit_log: Path | None = setting(
        None,
        "File to which a line of JSON is added for each key that is added, revoked or rotated, and for each action of "
        "an operator; by default beside the file of the keys, its name with .audit.jsonl added, and none with Redis.",
    )


class OutgoingSettings(SettingsGroup, title="Outgoing requests"):
    """Addresses that callers name: files that are fetched, and callbacks."""

    url_hosts: HostPatterns = setting(
        (),
        "Hosts from which files are fetched when a caller sends a URL in place of a file; empty fetches none.",
        accepted=_HOSTS_ACCEPTED,
    )
    url_private: Networks = setting(
        (),
        "Networks from which files are fetched although they are not public: without this no address that is private, "
        "loopback, link-local, reserved or of this machine itself is connected to, whatever a name leads to.",
        accepted=_NETWORKS_ACCEPTED,
    )
    url_bytes: ByteCount = setting(
        64 * 2**20, "Largest file that is fetched; a larger one is answered 413.", between=(1024, 4 * 2**30)
    )
    url_s: PositiveFloat = setting(
        20.0, "Longest time for fetching a file, its redirects included; it never outlasts the request.", le=3600
    )
    url_fetches: int = setting(
        8,
        "Most files that each worker fetches at once, of its threads that hold requests, half of them for one "
        "caller; more are answered 503, or 429.",
        "requests",
        between=(1, 4096),
    )
    callback_hosts: HostPatterns = setting(
        (),
        "Hosts that are told when a job is over, where its caller asks for that; empty tells none.",
        accepted=_HOSTS_ACCEPTED,
    )
    callback_private: Networks = setting((), "As url_private, for the hosts of callbacks.", accepted=_NETWORKS_ACCEPTED)
    callback_s: PositiveFloat = setting(10.0, "Longest time for one try of a callback.", le=600)


class LoggingSettings(SettingsGroup, title="Logging"):
    """The service's own log and the access log."""

    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "The least serious events that are logged."
    )
    log_format: Literal["text", "json"] = setting(
        "text",
        "Of the service's log on stderr: lines for people, or one JSON object a line, as docs/operations.md says.",
    )
    access_log: Literal["off", "text", "json"] = setting(
        "off",
        "One line on stdout for each request, as key=value or as JSON, without its query and without any content.",
    )
    log_text: Literal["off", "masked"] = setting(
        "off",
        "Whether the service's own log has the recognised text of each page, at the level info: never, or with all "
        "that the rules of masking find as stars.",
    )


class TraceSettings(SettingsGroup, title="Traces"):
    """Traces of requests, by OpenTelemetry."""

    traces: Literal["off", "otlp"] = setting(
        "off",
        "Send the traces of requests to an OpenTelemetry collector over OTLP/HTTP, which needs the extra ocrsvc[otel]; "
        "OTEL_EXPORTER_OTLP_ENDPOINT and the other variables of OpenTelemetry's SDK say where to and how.",
    )
    trace_sample: float | None = setting(
        None,
        "Of the traces that begin here, the share that is recorded; of others their caller has decided. Left out, "
        "OTEL_TRACES_SAMPLER decides, and without that all are.",
        between=(0, 1),
    )
