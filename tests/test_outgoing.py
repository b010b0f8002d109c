"""URLs from callers: which hosts are contacted, that only the checked address is connected to, and the limits."""

import gzip
import logging
import socket
import ssl
import threading
import time
import zlib
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
import trustme
from outgoing_support import local_policy, open_policy, redirect, response, serving
from support import data_of, read_data

from ocrsvc.connections.fetching import FetchedFile, fetch_file, post
from ocrsvc.connections.policy import (
    OutgoingPolicy,
    is_public,
    look_up,
    parse_url,
    policy_of_callbacks,
    policy_of_files,
)
from ocrsvc.errors import BodyTooLarge, ClientGone, DeadlineExceeded, OcrsvcError, QueueFull, UrlRefused, UrlUnavailable
from ocrsvc.settings.load import read_settings

ADDRESSES: dict[str, list[str]] = read_data("addresses.json")
""""not public" addresses lead to this machine, to private networks, or nowhere; "refused" URLs have no valid host."""
URLS = data_of("outgoing_urls")
REDIRECTS = [
    *((location, UrlUnavailable) for location in URLS["redirects"]["unreachable"]),
    *((location, UrlRefused) for location in [*URLS["redirects"]["refused"], "/" + "a" * 9000]),
]
REFUSED_URLS = [*ADDRESSES["refused"], "http://" + "a." * 127 + "org/", "http://example.org/" + "a" * 8192]


@pytest.mark.parametrize("address", [*ADDRESSES["public"], *ADDRESSES["not public"]])
def test_only_internet_addresses_are_public(address: str) -> None:
    assert is_public(ip_address(address)) is (address in ADDRESSES["public"])


@pytest.mark.parametrize("text", REFUSED_URLS)
def test_malformed_or_ambiguous_urls_are_refused(text: str) -> None:
    # The host ends at "#", so text after it must not count as the host.
    with pytest.raises(UrlRefused):
        open_policy("example.org").check_url(text)


@pytest.mark.parametrize(("text", "host", "port", "target"), URLS["parts"])
def test_a_url_is_split_into_host_port_and_target(text: str, host: str, port: int, target: str) -> None:
    url = parse_url(text)
    assert (url.host, url.port, url.target) == (host, port, target)


@pytest.mark.parametrize(("hosts", "allowed", "refused"), URLS["hosts"])
def test_only_allowed_hosts_are_contacted(hosts: str, allowed: list[str], refused: list[str]) -> None:
    policy = policy_of_files(read_settings({"OCRSVC_URL_HOSTS": hosts}))
    assert policy.is_on == bool(hosts)
    for text in allowed:
        policy.check_url(text)
    for text in refused:
        with pytest.raises(UrlRefused):
            policy.check_url(text)


def test_callbacks_have_separate_hosts_and_networks() -> None:
    settings = read_settings({"OCRSVC_CALLBACK_HOSTS": "a.example", "OCRSVC_CALLBACK_PRIVATE": "10.0.0.0/8"})
    assert not policy_of_files(settings).is_on
    policy = policy_of_callbacks(settings)
    assert policy.allows(ip_address("10.1.2.3"))
    assert not policy.allows(ip_address("192.168.1.1"))


@pytest.mark.parametrize("text", ["http://example.org", "example.org/a", "a b", "*.", "*example.org", "a:0", "a:b"])
def test_invalid_hosts_or_networks_in_settings_stop_the_start(text: str) -> None:
    for environ in ({"OCRSVC_URL_HOSTS": text}, {"OCRSVC_URL_PRIVATE": "10.0.0.1/8"}):
        with pytest.raises(OcrsvcError, match=next(iter(environ))):
            read_settings(environ)


def test_a_fetched_file_has_name_and_type_and_the_request_names_no_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    answer = response(b"page", "Content-Type: Image/PNG; a=b", 'Content-Disposition: inline; filename="../x/a b.png"')
    with serving(answer) as server:
        file = fetch_file(f"{server.url}/p?q=1#f", local_policy(), 60)
    assert file == FetchedFile(b"page", "a b.png", "image/png")
    lines = server.heads[0].decode().lower().split("\r\n")
    assert lines[0] == "get /p?q=1 http/1.1"
    assert sorted(line.partition(":")[0] for line in lines[1:] if line) == [
        *("accept", "accept-encoding", "connection", "host", "user-agent")
    ]


@pytest.mark.parametrize(("path", "name"), URLS["names"])
def test_a_file_is_named_by_the_end_of_its_path(path: str, name: str) -> None:
    with serving(response(b"x")) as server:
        assert fetch_file(server.url + path, local_policy(), 60).name == name


def test_names_are_resolved_by_the_system() -> None:
    assert ip_address("127.0.0.1") in look_up("localhost")
    with serving(response(b"found")) as server:
        url = server.url.replace("127.0.0.1", "localhost")
        assert fetch_file(url, local_policy("localhost"), 10.0).data == b"found"


def test_resolved_addresses_are_unique_and_have_no_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, 0)) for address in ("fe80::1%eth0", "::1", "::1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_asked, **_how: found)
    assert look_up("a.example") == [ip_address("fe80::1"), ip_address("::1")]


def resolving(*answers: str) -> Any:
    """A look-up that returns these answers in turn, as an attacker's name server does."""
    left = list(answers)

    def look_up(_host: str) -> Any:
        return [ip_address(text) for text in left.pop(0).split()]

    return look_up


def test_a_name_is_looked_up_once_and_the_checked_address_is_connected_to() -> None:
    with serving(response(b"x"), host="127.0.0.2") as server:
        policy = replace(
            local_policy("rebind.example"), private=(ip_network("127.0.0.2/32"),), look_up=resolving("127.0.0.2")
        )
        # A second look-up would fail, because there is no second answer.
        assert fetch_file(f"http://rebind.example:{server.port}/", policy, 60).data == b"x"
        assert b"Host: rebind.example:%d\r\n" % server.port in server.heads[0]


@pytest.mark.parametrize(
    "addresses", ["127.0.0.1", "8.8.8.8 127.0.0.1", "8.8.8.8 ::1", "169.254.169.254", "::ffff:127.0.0.1", ""]
)
def test_a_name_with_a_private_address_is_not_connected_to(addresses: str) -> None:
    with serving(response(b"secret")) as server:
        policy = replace(open_policy("a.example"), look_up=resolving(addresses))
        with pytest.raises(UrlUnavailable):
            fetch_file(f"http://a.example:{server.port}/", policy, 60)
        assert server.heads == []


def test_a_public_address_of_this_machine_is_not_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    # Test machines have no public address, so treat a local one as public.
    monkeypatch.setattr("ocrsvc.connections.policy.is_public", lambda _address: True)
    with serving(response(b"secret")) as server, pytest.raises(UrlUnavailable):
        fetch_file(server.url, open_policy(), 60)
    assert server.heads == []


def test_private_hosts_get_one_error_and_the_log_hides_the_url(caplog: pytest.LogCaptureFixture) -> None:
    def unknown(_host: str) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    with serving(response(b"secret")) as server:
        cases = [
            (f"http://127.0.0.1:{server.port}/", open_policy()),
            ("http://127.0.0.1:1/hidden?token=hidden", open_policy()),
            ("http://10.255.255.1:1/", open_policy()),
            ("http://gone.example/", replace(open_policy(), look_up=unknown)),
            # Allowed, but the port is closed.
            ("http://127.0.0.1:1/", local_policy()),
        ]
        messages = set()
        for url, policy in cases:
            with caplog.at_level(logging.INFO, "ocrsvc.connections"), pytest.raises(UrlUnavailable) as caught:
                fetch_file(url, policy, 60)
            messages.add(str(caught.value))
    assert messages == {"The host of the URL cannot be reached. Check the address, or send the file itself."}
    assert "host=127.0.0.1" in caplog.text
    assert "hidden" not in caplog.text


@pytest.mark.parametrize(("location", "error"), REDIRECTS)
def test_redirect_targets_are_checked(location: str, error: type[OcrsvcError]) -> None:
    policy = local_policy("127.0.0.1", "169.254.169.254", "[::1]")
    with serving(redirect(location)) as server, pytest.raises(error):
        fetch_file(server.url, policy, 60)
    assert len(server.heads) == 1


def test_a_redirect_to_the_same_name_is_resolved_and_checked_again() -> None:
    with serving(redirect("http://a.example:1/")) as server:
        policy = replace(local_policy("a.example"), look_up=resolving("127.0.0.1", "10.0.0.1"))
        with pytest.raises(UrlUnavailable, match="cannot be reached"):
            fetch_file(f"http://a.example:{server.port}/", policy, 60)


def test_a_few_redirects_are_followed_and_a_loop_ends() -> None:
    def redirect_again(sock: socket.socket, head: bytes) -> None:
        left = int(head.split()[1][1:])
        sock.sendall(redirect(f"/{left - 1}") if left else response(b"x"))

    with serving(redirect_again) as server:
        assert fetch_file(f"{server.url}/3", local_policy(), 60).data == b"x"
        with pytest.raises(UrlUnavailable, match="more than 3 times"):
            fetch_file(f"{server.url}/9", local_policy(), 60)


def endless(piece: bytes) -> Any:
    def answer(sock: socket.socket, _head: bytes) -> None:
        sock.sendall(b"HTTP/1.1 200 OK\r\n")
        while True:
            sock.sendall(piece)

    return answer


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (response(b"x" * (1 << 20) + b"x"), BodyTooLarge),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", BodyTooLarge),
        (endless(b"\r\n" + b"x" * 65536), BodyTooLarge),
        (endless(b"Transfer-Encoding: chunked\r\n\r\n" + b"10000\r\n" + b"x" * 65536 + b"\r\n"), UrlUnavailable),
        (endless(b"A: " + b"b" * 1000 + b"\r\n"), UrlUnavailable),
        (endless(b"A: " + b"b" * 1000), UrlUnavailable),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 100_000, UrlUnavailable),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 1_000_000, UrlUnavailable),
        (response(gzip.compress(bytes(1 << 24), mtime=0), "Content-Encoding: gzip"), BodyTooLarge),
        (response(zlib.compress(bytes(1 << 24)), "Content-Encoding: deflate"), BodyTooLarge),
        (response(gzip.compress(b"x", mtime=0)[:-4], "Content-Encoding: gzip"), UrlUnavailable),
        (response(gzip.compress(b"x", mtime=0) * 2, "Content-Encoding: gzip"), UrlUnavailable),
        (response(b"x", "Content-Encoding: gzip"), UrlUnavailable),
        (response(b"x", "Content-Encoding: br"), UrlUnavailable),
        *((text.encode(), UrlUnavailable) for text in URLS["broken"]),
    ],
)
def test_a_too_large_or_broken_answer_is_refused_within_the_limit(answer: Any, error: type[OcrsvcError]) -> None:
    taken: list[int] = []
    with serving(answer) as server, pytest.raises(error):
        fetch_file(server.url, local_policy(), 60, take=taken.append)
    assert sum(taken) <= 1 << 20


def test_a_compressed_file_is_unpacked() -> None:
    data = bytes(range(256)) * 4096
    with serving(response(gzip.compress(data, mtime=0), "Content-Encoding: GZIP")) as server:
        assert fetch_file(server.url, local_policy(), 60).data == data


def drip(head: bytes) -> Any:
    def answer(sock: socket.socket, _head: bytes) -> None:
        sock.sendall(head)
        for _ in range(600):
            sock.sendall(b"x")
            time.sleep(0.05)

    return answer


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_slow_server_is_cut_off_at_the_deadline(head: bytes) -> None:
    with serving(drip(head)) as server:
        began_s = time.monotonic()
        with pytest.raises(UrlUnavailable, match="in time"):
            fetch_file(server.url, replace(local_policy(), max_s=0.15), 60)
        with pytest.raises(DeadlineExceeded):
            fetch_file(server.url, local_policy(), 0.15)
        # The server drips for 30 s.
        assert time.monotonic() - began_s < 15


def test_hanging_resolver_is_cut_off_at_the_deadline() -> None:
    hanging = threading.Event()

    def look_up(_host: str) -> Any:
        hanging.wait()

    policy = replace(local_policy("a.example"), look_up=look_up)
    with pytest.raises(DeadlineExceeded):
        fetch_file("http://a.example/", policy, 0.2)
    hanging.set()


def test_a_fetch_ends_if_the_client_disconnects_or_memory_runs_out() -> None:
    def check() -> None:
        if server.heads:
            raise ClientGone("The client has gone.")

    def take(_size_bytes: int) -> None:
        raise QueueFull("There is none.")

    with serving(drip(b"HTTP/1.1 200 OK\r\n\r\n")) as server, pytest.raises(ClientGone):
        fetch_file(server.url, local_policy(), 60, check=check)
    with serving(response(b"x")) as server, pytest.raises(QueueFull):
        fetch_file(server.url, local_policy(), 60, take=take)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def tls_policy(authority: trustme.CA, host: str) -> OutgoingPolicy:
    """A policy that trusts the authority and resolves every name to 127.0.0.1."""

    def make() -> ssl.SSLContext:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        return context

    return replace(local_policy(host), tls=make, look_up=lambda _host: [ip_address("127.0.0.1")])


@pytest.mark.parametrize(("certified", "is_good"), [("a.example", True), ("b.example", False), ("127.0.0.1", False)])
def test_a_certificate_must_match_the_name(authority: trustme.CA, certified: str, *, is_good: bool) -> None:
    context, names = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), list[str | None]()
    authority.issue_cert(certified).configure_cert(context)
    context.sni_callback = lambda _wire, name, _context: names.append(name)
    with serving(response(b"x"), tls=context) as server:
        url, policy = f"https://a.example:{server.port}/", tls_policy(authority, "a.example")
        if is_good:
            assert fetch_file(url, policy, 60).data == b"x"
        else:
            with pytest.raises(UrlUnavailable, match="certificate"):
                fetch_file(url, policy, 60)
    assert names == ["a.example"]


def test_a_redirect_from_https_to_http_is_not_followed(authority: trustme.CA) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("a.example").configure_cert(context)
    with serving(redirect("http://a.example/"), tls=context) as server, pytest.raises(UrlRefused):
        fetch_file(f"https://a.example:{server.port}/", tls_policy(authority, "a.example"), 60)


def test_a_post_returns_the_status_and_follows_no_redirect() -> None:
    with serving(redirect("http://127.0.0.1:1/")) as server:
        status = post(f"{server.url}/hook", b"{}", {"Content-Type": "application/json"}, local_policy(), 60)
    assert status == 302
    head = server.heads[0].decode()
    assert head.startswith("POST /hook HTTP/1.1\r\n")
    assert "Content-Length: 2\r\n" in head
    assert "Content-Type: application/json\r\n" in head
