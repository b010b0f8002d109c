"""`ocrsvc keys`: adds, lists, changes, revokes and rotates the API keys of a service, which need not be running."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, get_args

import click
import orjson

from ocrsvc.access.api_keys import SCOPES, KeyEntry, KeyPriority
from ocrsvc.access.audit_log import audit_log_of, local_user
from ocrsvc.access.key_store import KeyStore, Usage, day_of, usage_to_dict
from ocrsvc.access.manage_keys import add_key, change_key, key_named, open_store, revoke_key, rotate_key
from ocrsvc.cli.options import Group, Number, gathered, option
from ocrsvc.cli.output import table
from ocrsvc.errors import KeysUnavailable, OperatorError
from ocrsvc.jobs.callbacks import secret_of_key
from ocrsvc.plugins import adapters
from ocrsvc.settings.load import read_settings

_COLUMNS: Final = (
    *("name", "state", "scopes", "formats", "per second", "at once", "pages today", "this month"),
    *("priority", "cache", "ends"),
)
_NATIVE_API: Final = "api"
_SAID: Final = frozenset({"name", "revoked_at"})
"""What the audit log does not say again of an entry."""
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST_S: Final = 10 * 366 * 86_400
_MOST: Final = 10**12

Change = Callable[[KeyEntry, float], KeyEntry]
"""Changes an entry at a moment in Unix seconds. Raises OperatorError."""


def _change(
    scope: Sequence[str],
    adapter: Sequence[str],
    expires: str | None,
    priority: str | None,
    *,
    may_cache: bool | None,
    **limits: Any,
) -> Change:
    """The change that the options ask for; a new key has the defaults else."""
    given: dict[str, Any] = {"scopes": frozenset(scope) or None, "priority": priority, "may_cache": may_cache}
    given = {name: value for name, value in given.items() if value is not None}
    if adapter:
        known = ("all", _NATIVE_API, *adapters())
        if wrong := set(adapter) - set(known):
            raise OperatorError(f"--adapter is {min(wrong)[:40]!r}.", f"Accepted is {', '.join(known)}.")
        given["adapters"] = None if "all" in adapter else frozenset(adapter)
    most = {name: None if number == "none" else number for name, number in limits.items() if number is not None}

    def change(entry: KeyEntry, now_s: float) -> KeyEntry:
        end: dict[str, Any] = {"expires_at": _end_of(expires, now_s)} if expires else {}
        return replace(entry, limits=replace(entry.limits, **most), **given, **end)

    return change


def _end_of(text: str, now_s: float) -> float | None:
    """When a key ends, in Unix seconds; a date is its beginning, by default by UTC. Raises OperatorError."""
    if text == "never":
        return None
    try:
        if (seconds := _seconds_of(text)) is not None:
            end_s = now_s + seconds
        else:
            moment = datetime.fromisoformat(text)
            end_s = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except ValueError as error:
        raise OperatorError(f"--expires is {text[:40]!r}.", "Accepted is 90d, 12h, 2027-01-31, or never.") from error
    if end_s <= now_s:
        raise OperatorError(f"--expires is {text[:40]!r}, which is over.", "Name a time that is to come.")
    return end_s


def _seconds_of(text: str) -> float | None:
    """Seconds of "90s", "30m", "12h" or "7d"; None for what is none, or longer than ten years."""
    match = re.fullmatch(r"(\d{1,9})([smhd])", text)
    seconds = int(match[1]) * _UNITS_S[match[2]] if match else math.inf
    return float(seconds) if seconds <= _LONGEST_S else None


def _grace_of(_ctx: click.Context, _parameter: click.Parameter, text: str) -> float:
    if (seconds := _seconds_of(text)) is None:
        raise click.BadParameter(f"{text!r} is not 90s, 30m, 12h or 7d, up to ten years.")
    return seconds


_most: Final = partial(option, section="Limits", metavar="N|none")
_COUNT: Final = Number(int, 1, _MOST, "a whole number above 0, or none", "none")
_RATE: Final = Number(float, math.ulp(0.0), _MOST, "a number above 0, or none", "none")
_FORMATS: Final = (
    "A format it is for: a name in OCRSVC_DIALECTS, or api for the native one; all by default; repeatable."
)

_changes: Final = gathered(
    "change",
    _change,
    option("--scope", multiple=True, type=click.Choice(SCOPES), help="What it is for; read by default; repeatable."),
    option("--adapter", multiple=True, metavar="FORMAT", help=_FORMATS),
    option("--priority", type=click.Choice(get_args(KeyPriority)), help="Its highest; interactive by default."),
    option("--cache/--no-cache", "may_cache", default=None, help="Whether its pages may be kept; they may by default."),
    option("--expires", metavar="WHEN", help="90d, 12h, or a date (2027-01-31, by UTC); never by default."),
    _most("--requests-per-s", type=_RATE, help="Requests a second at most; none, the default, is no limit."),
    _most("--concurrency", type=_COUNT, help="Requests under way at once at most."),
    _most("--pages-a-day", type=_COUNT, help="Pages a day at most, by UTC."),
    _most("--pages-a-month", type=_COUNT, help="Pages a month at most, by UTC."),
)
_NAME: Final = click.argument("name", help="Name of the key.")


@click.group(
    cls=Group,
    examples=(
        "export OCRSVC_KEYS=sqlite:/var/lib/ocrsvc/keys.sqlite",
        "ocrsvc keys add acme --pages-a-day 1000 --expires 90d      prints its secret, once",
        "ocrsvc keys list",
        "ocrsvc keys rotate acme --grace 12h",
    ),
)
def keys() -> None:
    """Add, list, change, revoke and rotate API keys.

    They are in the store that OCRSVC_KEYS names. A running service follows in half a second.
    """


@contextmanager
def _opened() -> Iterator[KeyStore]:
    """The store of the keys. Raises OperatorError, KeysUnavailable."""
    address = read_settings().keys
    if address is None:
        raise OperatorError(
            "Nothing says where the keys are stored.",
            "Set OCRSVC_KEYS for the service and for this command, such as sqlite:/var/lib/ocrsvc/keys.sqlite.",
        )
    with closing(open_store(address)) as store:
        try:
            # Before anything else, so that what is wrong with it is said first.
            store.version()
            yield store
        except KeysUnavailable as error:
            raise KeysUnavailable(error.reason, "") from error


@contextmanager
def _audited(action: str, name: str) -> Iterator[tuple[KeyStore, float, dict[str, object]]]:
    """The store, the time, and facts for the audit log, written at the end of a block that raises nothing.

    A secret that was printed by then is valid even if the log cannot be written. Raises OperatorError, KeysUnavailable.
    """
    facts: dict[str, object] = {"name": name}
    with _opened() as store:
        log, now_s = audit_log_of(read_settings()), time.time()
        log.check()
        yield store, now_s, facts
        try:
            log.write(local_user(), f"keys.{action}", now_s, **facts)
        except OperatorError as error:
            raise OperatorError(f"{error.detail} It was done all the same.", error.remedy) from error


@keys.command("add", examples=("ocrsvc keys add acme --scope read --requests-per-s 5 --pages-a-month 20000",))
@_NAME
@_changes
def _add(name: str, change: Change) -> None:
    """Add a key, and print its secret once."""
    with _audited("add", name) as (store, now_s, facts):
        entry = change(KeyEntry(name, created_at=now_s), now_s)
        _print_secret(add_key(store, entry))
        facts["entry"] = {name: value for name, value in entry.as_dict().items() if name not in _SAID}


@keys.command("change", examples=("ocrsvc keys change acme --pages-a-month none --expires never",))
@_NAME
@_changes
def _edit(name: str, change: Change) -> None:
    """Change what is given of a key; its secret stays."""
    with _audited("change", name) as (store, now_s, facts):
        key = key_named(store, name)
        entry = change(key.entry, now_s)
        if entry == key.entry:
            print(f"The key {name} is so already: nothing is changed.", file=sys.stderr)
            raise click.exceptions.Exit
        change_key(store, key, entry)
        facts["entry"] = {name: value for name, value in entry.as_dict().items() if name not in _SAID}


@keys.command("list", examples=("ocrsvc keys list", "ocrsvc keys list --json"))
@option("--json", "as_json", is_flag=True, help="As JSON, one array.")
def _list(*, as_json: bool) -> None:
    """List the keys, and what is used of them."""
    now_s = time.time()
    with _opened() as store:
        found = [(key, store.usage(key.entry.name, day_of(now_s))) for key in store.keys()]  # noqa: SIM118  no dict
    if as_json:
        secrets = [[{"id": secret.id, "expires_at": secret.expires_at} for secret in key.secrets] for key, _ in found]
        dicts = [usage_to_dict(key.entry, usage, now_s) for key, usage in found]
        listed = [{**about, "secrets": own} for about, own in zip(dicts, secrets, strict=True)]
        print(orjson.dumps(listed, option=orjson.OPT_INDENT_2).decode())
        return
    print("\n".join(table(_COLUMNS, [_row(key.entry, usage, now_s) for key, usage in found])))


@keys.command("revoke", examples=("ocrsvc keys revoke acme",))
@_NAME
def _revoke(name: str) -> None:
    """End a key for good."""
    with _audited("revoke", name) as (store, now_s, _):
        revoke_key(store, name, now_s)


@keys.command("rotate", examples=("ocrsvc keys rotate acme --grace 12h",))
@_NAME
@option(
    "--grace",
    callback=_grace_of,
    default="0s",
    metavar="TIME",
    help="How long the old secret is accepted still, such as 90s, 30m, 12h or 7d; by default not at all.",
)
def _rotate(name: str, grace: float) -> None:
    """Give a key a new secret, and print it once."""
    with _audited("rotate", name) as (store, now_s, facts):
        _print_secret(rotate_key(store, name, grace, now_s))
        facts["grace_s"] = grace


@keys.command("callback-secret", examples=("ocrsvc keys callback-secret acme",))
@_NAME
def _callback_secret(name: str) -> None:
    """Print the secret that signs callbacks of a key's jobs.

    Jobs that name a secret of their own are signed with that.
    """
    service_secret = read_settings().callback_secret
    if service_secret is None:
        raise OperatorError(
            "OCRSVC_CALLBACK_SECRET is not set, from which the secret of a key's callbacks comes.",
            "Set it as for the service.",
        )
    with _audited("callback_secret", name) as (store, _, _):
        print(secret_of_key(service_secret, key_named(store, name).entry.identity), flush=True)


def _print_secret(text: str) -> None:
    print(text, flush=True)
    print("This is the only time it is shown: the store keeps its hash.", file=sys.stderr)


def _row(entry: KeyEntry, usage: Usage, now_s: float) -> Sequence[str]:
    limits = entry.limits
    return (
        entry.name,
        entry.state(now_s),
        ",".join(sorted(entry.scopes, key=SCOPES.index)),
        "all" if entry.adapters is None else ",".join(sorted(entry.adapters)),
        "-" if limits.requests_per_s is None else f"{limits.requests_per_s:g}",
        "-" if limits.concurrency is None else f"{usage.requests} of {limits.concurrency}",
        str(usage.today) if limits.pages_a_day is None else f"{usage.today} of {limits.pages_a_day}",
        str(usage.this_month) if limits.pages_a_month is None else f"{usage.this_month} of {limits.pages_a_month}",
        entry.priority,
        "yes" if entry.may_cache else "no",
        "never" if entry.expires_at is None else f"{datetime.fromtimestamp(entry.expires_at, UTC):%Y-%m-%d %H:%M}",
    )
