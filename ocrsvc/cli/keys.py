"""`ocrsvc keys`: adds, lists, changes, revokes and rotates the API keys of a service, which need not be running."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Any, Final

import click
import orjson

from ocrsvc.access.api_keys import SCOPES, KeyEntry, StoredKey, entry_to_dict, state_of
from ocrsvc.access.audit_log import AuditLog, audit_log_of, local_user
from ocrsvc.access.key_store import KeyStore, Usage, period_of, usage_to_dict
from ocrsvc.access.manage_keys import add_key, change_key, key_named, revoke_key, rotate_key
from ocrsvc.access.open_store import open_store
from ocrsvc.cli.key_options import DURATION, KeyChange, key_options
from ocrsvc.cli.options import Group, option
from ocrsvc.cli.terminal import table
from ocrsvc.errors import KeysUnavailable, OperatorError
from ocrsvc.jobs.callbacks import secret_of_key
from ocrsvc.settings.load import read_settings

_COLUMNS: Final = (
    *("name", "state", "scopes", "formats", "per second", "at once", "pages today", "this month"),
    *("priority", "cache", "ends"),
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
def _opened() -> Iterator[tuple[KeyStore, AuditLog]]:
    """The store of the keys, and the log of what is done to them. Raises OperatorError, KeysUnavailable."""
    settings = read_settings()
    if settings.keys is None:
        raise OperatorError(
            "Nothing says where the keys are stored.",
            "Set OCRSVC_KEYS for the service and for this command, such as sqlite:/var/lib/ocrsvc/keys.sqlite.",
        )
    with closing(open_store(settings.keys)) as store:
        try:
            # Before anything else, so that what is wrong with it is said first.
            store.version()
            yield store, audit_log_of(settings)
        except KeysUnavailable as error:
            raise KeysUnavailable(error.reason, "") from error


@keys.command("add", examples=("ocrsvc keys add acme --scope read --requests-per-s 5 --pages-a-month 20000",))
@_NAME
@key_options
def _add(name: str, change: KeyChange) -> None:
    """Add a key, and print its secret once."""
    now_s = time.time()
    with _opened() as (store, log):
        entry = change.apply(KeyEntry(name, created_at=now_s), now_s)
        log.check()
        _print_secret(add_key(store, entry))
        _note(log, "keys.add", now_s, name=name, entry=_settled(entry))


@keys.command("change", examples=("ocrsvc keys change acme --pages-a-month none --expires never",))
@_NAME
@key_options
def _change(name: str, change: KeyChange) -> None:
    """Change what is given of a key; its secret stays."""
    now_s = time.time()
    with _opened() as (store, log):
        key = key_named(store, name)
        entry = change.apply(key.entry, now_s)
        if entry == key.entry:
            print(f"The key {name} is so already: nothing is changed.", file=sys.stderr)
            return
        log.check()
        change_key(store, key, entry)
        _note(log, "keys.change", now_s, name=name, entry=_settled(entry))


@keys.command("list")
@option("--json", "as_json", is_flag=True, help="As JSON, one array.")
def _list(*, as_json: bool) -> None:
    """List the keys, and what is used of them."""
    now_s = time.time()
    with _opened() as (store, _log):
        period, known = period_of(now_s), store.keys()
        found = [(key, store.usage(key.entry.name, period)) for key in known]
    if as_json:
        print(orjson.dumps([_to_dict(key, usage, now_s) for key, usage in found], option=orjson.OPT_INDENT_2).decode())
        return
    for line in table(_COLUMNS, [_row(key.entry, usage, now_s) for key, usage in found]):
        print(line)


@keys.command("revoke")
@_NAME
def _revoke(name: str) -> None:
    """End a key for good."""
    now_s = time.time()
    with _opened() as (store, log):
        log.check()
        revoke_key(store, name, now_s)
        _note(log, "keys.revoke", now_s, name=name)


@keys.command("rotate", examples=("ocrsvc keys rotate acme --grace 12h",))
@_NAME
@option(
    "--grace",
    type=DURATION,
    default=0.0,
    metavar="TIME",
    help="How long the old secret is accepted still, such as 90s, 30m, 12h or 7d; by default not at all.",
)
def _rotate(name: str, grace: float) -> None:
    """Give a key a new secret, and print it once."""
    now_s = time.time()
    with _opened() as (store, log):
        log.check()
        _print_secret(rotate_key(store, name, grace, now_s))
        _note(log, "keys.rotate", now_s, name=name, grace_s=grace)


@keys.command("callback-secret")
@_NAME
def _callback_secret(name: str) -> None:
    """Print what signs callbacks of a key's jobs.

    Jobs that name a secret of their own are signed with that.
    """
    service_secret = read_settings().callback_secret
    with _opened() as (store, log):
        if service_secret is None:
            raise OperatorError(
                "OCRSVC_CALLBACK_SECRET is not set, from which the secret of a key's callbacks comes.",
                "Set it as for the service.",
            )
        identity = key_named(store, name).entry.identity
        log.check()
        print(secret_of_key(service_secret.get_secret_value(), identity), flush=True)
        log.write(local_user(), "keys.callback_secret", time.time(), name=name)


def _note(log: AuditLog, action: str, now_s: float, **facts: object) -> None:
    """Write down what was done; after a secret was printed, which nothing brings back. Raises OperatorError."""
    try:
        log.write(local_user(), action, now_s, **facts)
    except OperatorError as error:
        raise OperatorError(f"{error.detail} The keys were changed all the same.", error.remedy) from error


def _settled(entry: KeyEntry) -> Mapping[str, Any]:
    return {name: value for name, value in entry_to_dict(entry).items() if name not in {"name", "revoked_at"}}


def _print_secret(text: str) -> None:
    print(text, flush=True)
    print("This is the only time it is shown: the store keeps its hash.", file=sys.stderr)


def _to_dict(key: StoredKey, usage: Usage, now_s: float) -> Mapping[str, Any]:
    secrets = [{"id": secret.id, "expires_at": secret.expires_at} for secret in key.secrets]
    return {**usage_to_dict(key.entry, usage, now_s), "secrets": secrets}


def _row(entry: KeyEntry, usage: Usage, now_s: float) -> Sequence[str]:
    limits = entry.limits
    return (
        entry.name,
        state_of(entry, now_s),
        ",".join(sorted(entry.scopes, key=SCOPES.index)),
        "all" if entry.adapters is None else ",".join(sorted(entry.adapters)),
        "-" if limits.requests_per_s is None else f"{limits.requests_per_s:g}",
        "-" if limits.concurrency is None else f"{usage.requests} of {limits.concurrency}",
        _of(usage.today, limits.pages_a_day),
        _of(usage.this_month, limits.pages_a_month),
        entry.priority,
        "yes" if entry.may_cache else "no",
        "never" if entry.expires_at is None else f"{datetime.fromtimestamp(entry.expires_at, UTC):%Y-%m-%d %H:%M}",
    )


def _of(used: int, most: int | None) -> str:
    return str(used) if most is None else f"{used} of {most}"
