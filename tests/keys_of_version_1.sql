PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE change (number INTEGER NOT NULL);
INSERT INTO "change" VALUES(2004674980);
CREATE TABLE held (
    name TEXT, worker TEXT, requests INTEGER NOT NULL, pages INTEGER NOT NULL, PRIMARY KEY (name, worker)
) WITHOUT ROWID;
CREATE TABLE key (name TEXT PRIMARY KEY, document TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "key" VALUES('acme','{"entry":{"name":"acme","scopes":["read"],"adapters":null,"limits":{"requests_per_s":null,"concurrency":null,"pages_a_day":10,"pages_a_month":null},"priority":"interactive","may_cache":true,"created_at":5.0,"expires_at":null,"revoked_at":null},"secrets":[{"id":"0123456789ab","sha256":"50d3a06a3dacadb900ddb82ddf2395166abe803602e421a798f016a8cb968ee7","expires_at":null}]}');
CREATE TABLE rate (name TEXT PRIMARY KEY, full REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE settled (
    name TEXT, worker TEXT, number INTEGER NOT NULL, day TEXT NOT NULL, PRIMARY KEY (name, worker)
) WITHOUT ROWID;
INSERT INTO "settled" VALUES('acme','w1',1,'2027-03-31');
CREATE TABLE usage (name TEXT, period TEXT, pages INTEGER NOT NULL, PRIMARY KEY (name, period)) WITHOUT ROWID;
INSERT INTO "usage" VALUES('acme','2027-03',3);
INSERT INTO "usage" VALUES('acme','2027-03-31',3);
CREATE TABLE worker (worker TEXT PRIMARY KEY, seen REAL NOT NULL) WITHOUT ROWID;
CREATE TRIGGER key_added AFTER INSERT ON key BEGIN UPDATE change SET number = number + 1; END;
CREATE TRIGGER key_changed AFTER UPDATE ON key BEGIN UPDATE change SET number = number + 1; END;
CREATE VIEW reserve AS SELECT
    '' AS name, '' AS worker, 0 AS held_requests, 0 AS held_pages, 0 AS requests, 0 AS tokens, 0 AS pages, 0 AS spare,
    0.0 AS now, 0.0 AS step, 0.0 AS burst, 0 AS concurrency,
    '' AS day, 0 AS day_most, '' AS month, 0 AS month_most;
CREATE TRIGGER on_reserve INSTEAD OF INSERT ON reserve BEGIN
    SELECT raise(ABORT, 'rate') WHERE new.tokens > 0
        AND max(new.now, min(new.now + new.burst, coalesce((SELECT full FROM rate WHERE name = new.name), 0))) + new.spare * new.tokens * new.step > new.now + new.burst + 1e-9;
    SELECT raise(ABORT, 'concurrency') WHERE new.concurrency IS NOT NULL AND new.requests > 0
        AND coalesce((SELECT sum(requests) FROM held WHERE name = new.name AND worker <> new.worker), 0) + new.held_requests + new.spare * new.requests > new.concurrency;
    SELECT raise(ABORT, 'day') WHERE new.day_most IS NOT NULL AND new.pages > 0
        AND coalesce((SELECT sum(pages) FROM held WHERE name = new.name AND worker <> new.worker), 0) + new.held_pages + new.spare * new.pages + coalesce((SELECT pages FROM usage WHERE name = new.name AND period = new.day), 0) > new.day_most;
    SELECT raise(ABORT, 'month') WHERE new.month_most IS NOT NULL AND new.pages > 0
        AND coalesce((SELECT sum(pages) FROM held WHERE name = new.name AND worker <> new.worker), 0) + new.held_pages + new.spare * new.pages + coalesce((SELECT pages FROM usage WHERE name = new.name AND period = new.month), 0) > new.month_most;
    INSERT OR REPLACE INTO rate SELECT new.name, max(new.now, min(new.now + new.burst, coalesce((SELECT full FROM rate WHERE name = new.name), 0))) + new.tokens * new.step WHERE new.tokens > 0;
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
    DELETE FROM worker WHERE seen NOT BETWEEN new.now - 5.0 AND new.now + 5.0;
    DELETE FROM held WHERE worker NOT IN (SELECT worker FROM worker);
END;
CREATE VIEW begun AS SELECT '' AS worker, '' AS oldest, '' AS before;
CREATE TRIGGER on_begun INSTEAD OF INSERT ON begun BEGIN
    DELETE FROM held WHERE worker = new.worker;
    DELETE FROM usage WHERE period < new.oldest;
    DELETE FROM settled WHERE day < new.before;
END;
COMMIT;
