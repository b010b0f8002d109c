-- Transactions of several statements as triggers: each INSERT into a view runs one.
--
-- In Python a transaction would hold the file's write lock while its thread waits for the GIL between statements:
-- 20 ms at the median beside two busy threads. The views are temporary, so that files contain no code.

CREATE TEMP VIEW in_use AS SELECT name, sum(requests) AS requests, sum(pages) AS pages FROM held GROUP BY name;

CREATE TEMP VIEW reserve AS SELECT
    0 AS name, 0 AS worker, 0 AS held_requests, 0 AS held_pages, 0 AS requests, 0 AS tokens, 0 AS pages, 0 AS spare,
    0 AS now, 0 AS step, 0 AS burst, 0 AS concurrency, 0 AS day, 0 AS day_most, 0 AS month_most;
CREATE TEMP TRIGGER on_reserve INSTEAD OF INSERT ON reserve BEGIN
    -- Reserve all that must be left, then compare the sums with the limits. An exceeded limit undoes the whole
    -- statement, so a refused request changes nothing.
    INSERT OR REPLACE INTO held VALUES (new.name, new.worker,
        new.held_requests + new.spare * new.requests, new.held_pages + new.spare * new.pages);
    INSERT OR IGNORE INTO rate SELECT new.name, 0 WHERE new.tokens > 0;
    UPDATE rate SET full = max(new.now, min(new.now + new.burst, full)) + new.spare * new.tokens * new.step
        WHERE name = new.name AND new.tokens > 0;

    SELECT raise(ABORT, 'requests') FROM rate
        WHERE name = new.name AND new.tokens > 0 AND full > new.now + new.burst + 1e-9;
    SELECT raise(ABORT, 'concurrency') FROM in_use
        WHERE name = new.name AND new.requests > 0 AND requests > new.concurrency;
    SELECT raise(ABORT, 'pages-a-day') FROM in_use WHERE name = new.name AND new.pages > 0 AND new.day_most <
        pages + coalesce((SELECT pages FROM usage WHERE name = new.name AND period = new.day), 0);
    SELECT raise(ABORT, 'pages-a-month') FROM in_use WHERE name = new.name AND new.pages > 0 AND new.month_most <
        pages + coalesce((SELECT pages FROM usage WHERE name = new.name AND period = substr(new.day, 1, 7)), 0);

    -- Keep only what is needed.
    UPDATE held SET requests = new.held_requests + new.requests, pages = new.held_pages + new.pages
        WHERE name = new.name AND worker = new.worker;
    UPDATE rate SET full = full - (new.spare - 1) * new.tokens * new.step WHERE name = new.name AND new.tokens > 0;
END;

CREATE TEMP VIEW settle AS SELECT
    0 AS name, 0 AS worker, 0 AS requests, 0 AS held_pages, 0 AS series, 0 AS total, 0 AS day;
CREATE TEMP TRIGGER on_settle INSTEAD OF INSERT ON settle BEGIN
    -- Set the worker's reservation.
    INSERT OR REPLACE INTO held VALUES (new.name, new.worker, new.requests, new.held_pages);
    DELETE FROM held WHERE name = new.name AND worker = new.worker AND requests = 0 AND pages = 0;
    -- Count the series' growth since its last settlement, so that repeated calls count once.
    INSERT OR IGNORE INTO series_total SELECT new.series, 0, new.day WHERE new.total > 0;
    INSERT INTO usage SELECT new.name, period, new.total - total
        FROM series_total, (SELECT new.day AS period UNION ALL SELECT substr(new.day, 1, 7))
        WHERE series = new.series AND total < new.total
        ON CONFLICT DO UPDATE SET pages = pages + excluded.pages;
    UPDATE series_total SET total = new.total WHERE series = new.series AND total < new.total;
END;
