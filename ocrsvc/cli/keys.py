"""`ocrsvc keys`: adds, lists, changes, revokes and rotates API keys in their store; no service needs to run."""

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
from ocrsvc.cli.options import Number, gathered, group, option
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
_NOT_AUDITED: Final = frozenset({"name", "revoked_at"})
"""Members of a key's entry that the audit log omits."""
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_MAX_S: Final = 10 * 366 * 86_400
_MAX_LIMIT: Final = 10**12

Change = Callable[[KeyEntry, float], KeyEntry]
"""A function that changes a key's entry at a time in Unix seconds. Raises OperatorError."""


def _change(
    scope: Sequence[str],
    adapter: Sequence[str],
    expires: str | None,
    priority: str | None,
    *,
    may_cache: bool | None,
    **limits: Any,
) -> Change:
    """Make the function that applies the command's options to a key's entry. Raises OperatorError."""
    fields: dict[str, Any] = {"scopes": frozenset(scope) or None, "priority": priority, "may_cache": may_cache}
    fields = {name: value for name, value in fields.items() if value is not None}
    if adapter:
        known = ("all", _NATIVE_API, *adapters())
        if wrong := set(adapter) - set(known):
            raise OperatorError(f"--adapter is {min(wrong)[:40]!r}.", f"Accepted are {', '.join(known)}.")
        fields["adapters"] = None if "all" in adapter else frozenset(adapter)
    changed = {name: None if number == "none" else number for name, number in limits.items() if number is not None}

    def change(entry: KeyEntry, now_s: float) -> KeyEntry:
        end: dict[str, Any] = {"expires_at": _end_of(expires, now_s)} if expires else {}
        return replace(entry, limits=replace(entry.limits, **changed), **fields, **end)

    return change


def _end_of(text: str, now_s: float) -> float | None:
    """Parse --expires into Unix seconds; a date means its first moment, by default in UTC. Raises OperatorError."""
    if text == "never":
        return None
    try:
        if (seconds := _seconds_of(text)) is not None:
            end_s = now_s + seconds
        else:
            moment = datetime.fromisoformat(text)
            end_s = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except ValueError as error:
        raise OperatorError(f"--expires is {text[:40]!r}.", "Accepted are 90d, 12h, 2027-01-31 or never.") from error
    if end_s <= now_s:
        raise OperatorError(f"--expires is {text[:40]!r}, which is past.", "Name a time in the future.")
    return end_s


def _seconds_of(text: str) -> float | None:
    """Parse "90s", "30m", "12h" or "7d" into seconds; None for any other text, or over ten years."""
    match = re.fullmatch(r"(\d{1,9})([smhd])", text)
    seconds = int(match[1]) * _UNITS_S[match[2]] if match else math.inf
    return float(seconds) if seconds <= _MAX_S else None


def _grace_of(_ctx: click.Context, _parameter: click.Parameter, text: str) -> float:
    if (seconds := _seconds_of(text)) is None:
        raise click.BadParameter(f"{text!r} is not 90s, 30m, 12h or 7d, up to ten years.")
    return seconds


_limit: Final = partial(option, section="Limits", metavar="N|none")
_COUNT: Final = Number(int, 1, _MAX_LIMIT, "a whole number above 0, or none", "none")
_RATE: Final = Number(float, math.ulp(0.0), _MAX_LIMIT, "a number above 0, or none", "none")
_FORMATS: Final = "API that it may use: an adapter's name, or api for the native one; all by default; repeatable."

_changes: Final = gathered(
    "change",
    _change,
    option("--scope", multiple=True, type=click.Choice(SCOPES), help="What it may do; read by default; repeatable."),
    option("--adapter", multiple=True, metavar="FORMAT", help=_FORMATS),
    option("--priority", type=click.Choice(get_args(KeyPriority)), help="Highest priority; interactive by default."),
    option("--cache/--no-cache", "may_cache", default=None, help="Whether its results may be cached; yes by default."),
    option("--expires", metavar="WHEN", help="90d, 12h, or a date (2027-01-31, in UTC); never by default."),
    _limit("--requests-per-s", type=_RATE, help="Maximum requests per second; none, the default, means no limit."),
    _limit("--concurrency", type=_COUNT, help="Maximum concurrent requests."),
    _limit("--pages-a-day", type=_COUNT, help="Maximum pages per day, in UTC."),
    _limit("--pages-a-month", type=_COUNT, help="Maximum pages per month, in UTC."),
)
_NAME: Final = click.argument("name", help="Name of the key.")


@group(
    "export OCRSVC_KEYS=sqlite:/var/lib/ocrsvc/keys.sqlite",
    "ocrsvc keys add acme --pages-a-day 1000 --expires 90d      prints the secret once",
    "ocrsvc keys list",
    "ocrsvc keys rotate acme --grace 12h",
)
def keys() -> None:
    """Add, list, change, revoke and rotate API keys.

    OCRSVC_KEYS names their store. A running service applies changes within half a second.
    """


@contextmanager
def _opened() -> Iterator[KeyStore]:
    """Open the key store for a block. Raises OperatorError, KeysUnavailable."""
    address = read_settings().keys
    if address is None:
        raise OperatorError("OCRSVC_KEYS is not set.", "Set it, such as to sqlite:/var/lib/ocrsvc/keys.sqlite.")
    with closing(open_store(address)) as store:
        try:
            # Fail here if the store is broken, before the block does anything.
            store.version()
            yield store
        except KeysUnavailable as error:
            raise KeysUnavailable(error.reason, "") from error


@contextmanager
def _audited(action: str, name: str) -> Iterator[tuple[KeyStore, float, dict[str, object]]]:
    """Yield store, time and a dict of facts; write the facts to the audit log after the block. Raises as `_opened`."""
    facts: dict[str, object] = {"name": name}
    with _opened() as store:
        log, now_s = audit_log_of(read_settings()), time.time()
        log.check()
        yield store, now_s, facts
        try:
            log.write(local_user(), f"keys.{action}", now_s, **facts)
        except OperatorError as error:
            raise OperatorError(f"{error.detail} The action took effect anyway.", error.remedy) from error


@keys.command("add", examples=("ocrsvc keys add acme --scope read --requests-per-s 5 --pages-a-month 20000",))
@_NAME
@_changes
def _add(name: str, change: Change) -> None:
    """Add a key and print its secret once."""
    with _audited("add", name) as (store, now_s, facts):
        entry = change(KeyEntry(name, created_at=now_s), now_s)
        _print_secret(add_key(store, entry))
        facts["entry"] = {name: value for name, value in entry.as_dict().items() if name not in _NOT_AUDITED}


@keys.command("change", examples=("ocrsvc keys change acme --pages-a-month none --expires never",))
@_NAME
@_changes
def _edit(name: str, change: Change) -> None:
    """Change a key; its secret stays the same."""
    with _audited("change", name) as (store, now_s, facts):
        key = key_named(store, name)
        entry = change(key.entry, now_s)
        if entry == key.entry:
            print(f"The key {name} has these values already: nothing changed.", file=sys.stderr)
            raise click.exceptions.Exit
        change_key(store, key, entry)
        facts["entry"] = {name: value for name, value in entry.as_dict().items() if name not in _NOT_AUDITED}


@keys.command("list", examples=("ocrsvc keys list", "ocrsvc keys list --json"))
@option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def _list(*, as_json: bool) -> None:
    """List the keys and their usage."""
    now_s = time.time()
    with _opened() as store:
        usages = [(key, store.usage(key.entry.name, day_of(now_s))) for key in store.keys()]  # noqa: SIM118  not a dict
    if as_json:
        listed = [
            usage_to_dict(key.entry, usage, now_s)
            | {"secrets": [{"id": one.id, "expires_at": one.expires_at} for one in key.secrets]}
            for key, usage in usages
        ]
        print(orjson.dumps(listed, option=orjson.OPT_INDENT_2).decode())
        return
    print("\n".join(table(_COLUMNS, [_row(key.entry, usage, now_s) for key, usage in usages])))


@keys.command("revoke", examples=("ocrsvc keys revoke acme",))
@_NAME
def _revoke(name: str) -> None:
    """Revoke a key permanently."""
    with _audited("revoke", name) as (store, now_s, _):
        revoke_key(store, name, now_s)


@keys.command("rotate", examples=("ocrsvc keys rotate acme --grace 12h",))
@_NAME
@option("--grace", callback=_grace_of, default="0s", metavar="90s|30m|12h|7d", help="Validity of the old secret (0s).")
def _rotate(name: str, grace: float) -> None:
    """Give a key a new secret and print it once."""
    with _audited("rotate", name) as (store, now_s, facts):
        _print_secret(rotate_key(store, name, grace, now_s))
        facts["grace_s"] = grace


@keys.command("callback-secret", examples=("ocrsvc keys callback-secret acme",))
@_NAME
def _callback_secret(name: str) -> None:
    """Print the secret that signs the callbacks of a key's jobs, except jobs that have their own secret."""
    service_secret = read_settings().callback_secret
    if service_secret is None:
        raise OperatorError("OCRSVC_CALLBACK_SECRET is not set.", "Set it to the service's value.")
    with _audited("callback_secret", name) as (store, _, _):
        print(secret_of_key(service_secret, key_named(store, name).entry.identity), flush=True)


def _print_secret(text: str) -> None:
    print(text, flush=True)
    print("The secret is shown only now: the store keeps its hash.", file=sys.stderr)


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
