"""How many objects and requests the ledger of a long batch run takes in an object store: in memory, without waiting.

    python benchmarks/batch_object_logs.py                                 8 owners that commit every 8 s for 15 hours
    python benchmarks/batch_object_logs.py --owners 120 --commits 450      120 that were killed after an hour each

Prints what the owners wrote, and what a process needs that goes on. The last line of stdout is the result as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import fsspec

from ocrsvc.batch.objects.fsspec_objects import FsspecObjects
from ocrsvc.batch.objects.retry import Retries
from ocrsvc.batch.store.object_store import ObjectStore

LEDGER = "_ocrsvc/ledger/"


class CountingRetries(Retries):
    """Counts requests by their verb."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: Counter[str] = Counter()

    def send(self, what: str, request: Callable[[], Any], total_s: float | None = None) -> Any:
        """As Retries.send."""
        self.requests[what.partition(" ")[0]] += 1
        return super().send(what, request, total_s)


def open_counted() -> tuple[ObjectStore, Counter[str]]:
    """A store as a process of its own sees it, and its requests."""
    retries = CountingRetries()
    return ObjectStore(
        FsspecObjects("memory", fsspec.filesystem("memory"), retries), "bucket/run", ""
    ), retries.requests


def main() -> int:
    """Write, go on, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--owners", type=int, default=8)
    parser.add_argument("--commits", type=int, default=6750, help="of each owner, which is killed then")
    parser.add_argument("--bytes", type=int, default=183, help="of a commit: four pages and a lease")
    args = parser.parse_args()
    written: Counter[str] = Counter()
    for owner in range(args.owners):
        store, requests = open_counted()
        log = store.open_log(f"{LEDGER}{owner:05d}")
        for _ in range(args.commits):
            log.append(bytes(args.bytes))
            log.commit()
        written += requests
    objects = sum(1 for _ in open_counted()[0].files(LEDGER))
    began_s = time.monotonic()
    store, requests = open_counted()
    size = sum(read(store, name) for name in store.log_names(LEDGER))
    result = {
        "written": dict(written),
        "objects": objects,
        "go_on": dict(requests),
        "objects_then": sum(1 for _ in open_counted()[0].files(LEDGER)),
        "go_on_s": round(time.monotonic() - began_s, 2),
        "bytes": size,
    }
    print(
        f"{written['PUT'] / args.owners / args.commits:.3f} PUT a commit; {objects} objects; to go on: {dict(requests)}"
    )
    print(json.dumps(result))
    return 0 if size == args.owners * args.commits * args.bytes else 1


def read(store: ObjectStore, name: str) -> int:
    """The bytes of a log, read as the ledger does."""
    size = 0
    while data := store.read_log(name, size, 1 << 24):
        size += len(data)
    return size


if __name__ == "__main__":
    sys.exit(main())
