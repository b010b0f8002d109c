"""`ocrsvc keys`: adds, lists, changes, revokes and rotates the API keys of a service, which need not be running."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from ocrsvc.access.api_keys import SCOPES, KeyEntry, StoredKey
from ocrsvc.access.audit_log import AuditLog, audit_log_of, local_user
from ocrsvc.access.key_store import KeyStore, Usage, day_of, usage_to_dict
from ocrsvc.access.manage_keys import add_key, change_key, key_named, open_store, revoke_key, rotate_key
from ocrsvc.cli.key_options import add_limits, entry_of, seconds_of
from ocrsvc.cli.table import table
from ocrsvc.errors import KeysUnavailable, OperatorError
from ocrsvc.jobs.callbacks import secret_of_key
from ocrsvc.settings.load import read_settings

HELP: Final = "add, list, change, revoke and rotate API keys"
_SIGNING: Final = "callback-secret"
_COLUMNS: Final = (
    *("name", "state", "scopes", "formats", "per second", "at once", "pages today", "this month"),
    *("priority", "cache", "ends"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the commands of `ocrsvc keys`."""
    parser.description = "The API keys in the store that OCRSVC_KEYS names. A running service follows in half a second."
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")
    add = actions.add_parser("add", help="add a key, and print its secret once")
    add_limits(add)
    change = actions.add_parser("change", help="change what is given of a key; its secret stays")
    add_limits(change)
    listing = actions.add_parser("list", help="list the keys, and what is used of them")
    listing.add_argument("--json", action="store_true", help="as JSON, one array")
    revoke = actions.add_parser("revoke", help="end a key for good")
    rotate = actions.add_parser("rotate", help="give a key a new secret, and print it once")
    rotate.add_argument(
        "--grace",
        type=seconds_of,
        default=0.0,
        metavar="TIME",
        help="how long the old secret is accepted still, such as 90s, 30m, 12h or 7d; by default not at all",
    )
    signing = actions.add_parser(
        _SIGNING, help="print what signs callbacks of a key's jobs that name no secret of their own"
    )
    for named in (add, change, revoke, rotate, signing):
        named.add_argument("name", help="name of the key")


def run(args: argparse.Namespace) -> int:
    """Do it, and say why the store does not answer, if it does not. Raises OperatorError."""
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
            _ACTIONS[args.action](args, store, audit_log_of(settings))
        except KeysUnavailable as error:
            print(f"ocrsvc: {error.reason}", file=sys.stderr)
            return error.exit_code
    return 0


def _add(args: argparse.Namespace, store: KeyStore, log: AuditLog) -> None:
    now_s = time.time()
    entry = entry_of(args, KeyEntry(args.name, created_at=now_s), now_s)
    log.check()
    text = add_key(store, entry)
    _print_secret(text)
    _note(log, "keys.add", now_s, name=args.name, entry=_settled(entry))


def _change(args: argparse.Namespace, store: KeyStore, log: AuditLog) -> None:
    now_s = time.time()
    key = key_named(store, args.name)
    entry = entry_of(args, key.entry, now_s)
    if entry == key.entry:
        print(f"The key {args.name} is so already: nothing is changed.", file=sys.stderr)
        return
    log.check()
    change_key(store, key, entry)
    _note(log, "keys.change", now_s, name=args.name, entry=_settled(entry))


def _revoke(args: argparse.Namespace, store: KeyStore, log: AuditLog) -> None:
    now_s = time.time()
    log.check()
    revoke_key(store, args.name, now_s)
    _note(log, "keys.revoke", now_s, name=args.name)


def _rotate(args: argparse.Namespace, store: KeyStore, log: AuditLog) -> None:
    now_s = time.time()
    log.check()
    text = rotate_key(store, args.name, args.grace, now_s)
    _print_secret(text)
    _note(log, "keys.rotate", now_s, name=args.name, grace_s=args.grace)


def _callback_secret(args: argparse.Namespace, store: KeyStore, log: AuditLog) -> None:
    service_secret = read_settings().callback_secret
    if service_secret is None:
        raise OperatorError(
            "OCRSVC_CALLBACK_SECRET is not set, from which the secret of a key's callbacks comes.",
            "Set it as for the service.",
        )
    identity = key_named(store, args.name).entry.identity
    log.check()
    print(secret_of_key(service_secret, identity), flush=True)
    log.write(local_user(), "keys.callback_secret", time.time(), name=args.name)


def _list(args: argparse.Namespace, store: KeyStore, _log: AuditLog) -> None:
    now_s = time.time()
    day, known = day_of(now_s), store.keys()
    keys = [(key, store.usage(key.entry.name, day)) for key in known]
    if args.json:
        print(orjson.dumps([_as_json(key, usage, now_s) for key, usage in keys], option=orjson.OPT_INDENT_2).decode())
        return
    for line in table(_COLUMNS, [_row(key.entry, usage, now_s) for key, usage in keys]):
        print(line)


_ACTIONS: Final = {
    "add": _add,
    "change": _change,
    "list": _list,
    "revoke": _revoke,
    "rotate": _rotate,
    _SIGNING: _callback_secret,
}


def _note(log: AuditLog, action: str, now_s: float, **facts: object) -> None:
    """Write down what was done; after a secret was printed, which nothing brings back. Raises OperatorError."""
    try:
        log.write(local_user(), action, now_s, **facts)
    except OperatorError as error:
        raise OperatorError(f"{error.detail} The keys were changed all the same.", error.remedy) from error


def _settled(entry: KeyEntry) -> Mapping[str, Any]:
    return {name: value for name, value in entry.as_dict().items() if name not in {"name", "revoked_at"}}


def _print_secret(text: str) -> None:
    print(text, flush=True)
    print("This is the only time it is shown: the store keeps its hash.", file=sys.stderr)


def _as_json(key: StoredKey, usage: Usage, now_s: float) -> Mapping[str, Any]:
    secrets = [{"id": secret.id, "expires_at": secret.expires_at} for secret in key.secrets]
    return {**usage_to_dict(key.entry, usage, now_s), "secrets": secrets}


def _row(entry: KeyEntry, usage: Usage, now_s: float) -> Sequence[str]:
    limits = entry.limits
    return (
        entry.name,
        entry.state(now_s),
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
