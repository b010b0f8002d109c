"""The tables of the SQLite store, and its transactions, which are triggers of views.

A transaction that Python takes through several statements holds the lock of the whole file while its thread waits for
the interpreter's lock between two of them. An INSERT into one of these views is a single call, which begins and
commits in SQLite itself, in 12 us.
"""

from __future__ import annotations

from typing import Final

PAGE_BYTES: Final = 1024
"""Of the file: a transaction writes two or three whole ones."""

SCHEMA_VERSION: Final = 1

LEASE_S: Final = 5.0
"""What a worker has reserved is given back when it has not shown for so long that it lives."""

_OTHERS: Final = "coalesce((SELECT sum({0}) FROM held WHERE name = new.name AND worker <> new.worker), 0)"

_COUNTED: Final = "coalesce((SELECT pages FROM usage WHERE name = new.name AND period = new.{0}), 0)"

_WANTED: Final = f"{_OTHERS.format('pages')} + new.held_pages + new.spare * new.pages"

# Monotonic seconds begin again when the machine does: no bucket is further ahead than it can be.
_FULL: Final = "max(new.now, min(new.now + new.burst, coalesce((SELECT full FROM rate WHERE name = new.name), 0)))"

SCHEMA: Final = f"""
CREATE TABLE key (name TEXT PRIMARY KEY, document TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE change (number INTEGER NOT NULL);
-- Anywhere: the keys of a file that takes the place of another are read.
INSERT INTO change VALUES (random() & 0xffffffff);
CREATE TABLE usage (name TEXT, period TEXT, pages INTEGER NOT NULL, PRIMARY KEY (name, period)) WITHOUT ROWID;
CREATE TABLE held (
    name TEXT, worker TEXT, requests INTEGER NOT NULL, pages INTEGER NOT NULL, PRIMARY KEY (name, worker)
) WITHOUT ROWID;
CREATE TABLE settled (
    name TEXT, worker TEXT, number INTEGER NOT NULL, day TEXT NOT NULL, PRIMARY KEY (name, worker)
) WITHOUT ROWID;
CREATE TABLE rate (name TEXT PRIMARY KEY, full REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE worker (worker TEXT PRIMARY KEY, seen REAL NOT NULL) WITHOUT ROWID;

CREATE TRIGGER key_added AFTER INSERT ON key BEGIN UPDATE change SET number = number + 1; END;
CREATE TRIGGER key_changed AFTER UPDATE ON key BEGIN UPDATE change SET number = number + 1; END;

CREATE VIEW reserve AS SELECT
    '' AS name, '' AS worker, 0 AS held_requests, 0 AS held_pages, 0 AS requests, 0 AS tokens, 0 AS pages, 0 AS spare,
    0.0 AS now, 0.0 AS step, 0.0 AS burst, 0 AS concurrency,
    '' AS day, 0 AS day_most, '' AS month, 0 AS month_most;
CREATE TRIGGER on_reserve INSTEAD OF INSERT ON reserve BEGIN
    SELECT raise(ABORT, 'rate') WHERE new.tokens > 0
        AND {_FULL} + new.spare * new.tokens * new.step > new.now + new.burst + 1e-9;
    SELECT raise(ABORT, 'concurrency') WHERE new.concurrency IS NOT NULL AND new.requests > 0
        AND {_OTHERS.format("requests")} + new.held_requests + new.spare * new.requests > new.concurrency;
    SELECT raise(ABORT, 'day') WHERE new.day_most IS NOT NULL AND new.pages > 0
        AND {_WANTED} + {_COUNTED.format("day")} > new.day_most;
    SELECT raise(ABORT, 'month') WHERE new.month_most IS NOT NULL AND new.pages > 0
        AND {_WANTED} + {_COUNTED.format("month")} > new.month_most;
    INSERT OR REPLACE INTO rate SELECT new.name, {_FULL} + new.tokens * new.step WHERE new.tokens > 0;
    INSERT OR REPLACE INTO held
        VALUES (new.name, new.worker, new.held_requests + new.requests, new.held_pages + new.pages);
END;

CREATE VIEW settle AS SELECT
    '' AS name, '' AS worker, 0 AS requests, 0 AS held_pages, 0 AS number, 0 AS pages, '' AS day, '' AS month;
CREATE TRIGGER on_settle INSTEAD OF INSERT ON settle BEGIN
    INSERT OR REPLACE INTO held SELECT new.name, new.worker, new.requests, new.held_pages
        WHERE new.requests > 0 OR new.held_pages > 0;
    DELETE FROM held WHERE new.requests = 0 AND new.held_pages = 0 AND name = new.name AND worker = new.worker;
    INSERT INTO usage SELECT new.name, period, new.pages
        FROM (SELECT new.day AS period UNION ALL SELECT new.month)
        WHERE new.pages > 0 AND new.number > coalesce(
            (SELECT number FROM settled WHERE name = new.name AND worker = new.worker), 0)
        ON CONFLICT DO UPDATE SET pages = pages + excluded.pages;
    INSERT INTO settled SELECT new.name, new.worker, new.number, new.day WHERE new.pages > 0
        ON CONFLICT DO UPDATE SET number = max(number, excluded.number), day = excluded.day;
END;

CREATE VIEW alive AS SELECT '' AS worker, 0.0 AS now;
CREATE TRIGGER on_alive INSTEAD OF INSERT ON alive BEGIN
    INSERT OR REPLACE INTO worker VALUES (new.worker, new.now);
    DELETE FROM worker WHERE seen NOT BETWEEN new.now - {LEASE_S} AND new.now + {LEASE_S};
    DELETE FROM held WHERE worker NOT IN (SELECT worker FROM worker);
END;

CREATE VIEW begun AS SELECT '' AS worker, '' AS oldest, '' AS before;
CREATE TRIGGER on_begun INSTEAD OF INSERT ON begun BEGIN
    DELETE FROM held WHERE worker = new.worker;
    DELETE FROM usage WHERE period < new.oldest;
    DELETE FROM settled WHERE day < new.before;
END;

PRAGMA user_version = {SCHEMA_VERSION};
"""  # noqa: S608  nothing that anybody sends is in it

USAGE: Final = """
SELECT coalesce(sum(requests), 0), coalesce(sum(pages), 0),
    coalesce((SELECT pages FROM usage WHERE name = :name AND period = :day), 0),
    coalesce((SELECT pages FROM usage WHERE name = :name AND period = :month), 0),
    coalesce((SELECT full FROM rate WHERE name = :name), 0)
FROM held WHERE name = :name
"""
