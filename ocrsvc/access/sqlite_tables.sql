-- The tables of a file of API keys. Old files have some of them, and views and triggers that nothing uses any more.

BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS key (name TEXT PRIMARY KEY, document TEXT NOT NULL) WITHOUT ROWID;

-- Grows with each change of a key. Starts at random, so that a file that replaces another is read again.
CREATE TABLE IF NOT EXISTS change (number INTEGER NOT NULL);
INSERT INTO change SELECT random() & 0xffffffff WHERE NOT EXISTS (SELECT 1 FROM change);
CREATE TRIGGER IF NOT EXISTS key_added AFTER INSERT ON key BEGIN UPDATE change SET number = number + 1; END;
CREATE TRIGGER IF NOT EXISTS key_changed AFTER UPDATE ON key BEGIN UPDATE change SET number = number + 1; END;

-- Pages counted, per day and per month.
CREATE TABLE IF NOT EXISTS usage (
    name TEXT, period TEXT, pages INTEGER NOT NULL, PRIMARY KEY (name, period)
) WITHOUT ROWID;
-- What each worker has reserved.
CREATE TABLE IF NOT EXISTS held (
    name TEXT, worker TEXT, requests INTEGER NOT NULL, pages INTEGER NOT NULL, PRIMARY KEY (name, worker)
) WITHOUT ROWID;
-- When a key's bucket of requests is full again (GCRA). No bucket is further ahead than its burst: monotonic seconds
-- restart with the machine.
CREATE TABLE IF NOT EXISTS rate (name TEXT PRIMARY KEY, full REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS worker (worker TEXT PRIMARY KEY, seen REAL NOT NULL) WITHOUT ROWID;
-- What was counted of each series, see page_counts.py.
CREATE TABLE IF NOT EXISTS series_total (series INTEGER PRIMARY KEY, total INTEGER NOT NULL, day TEXT NOT NULL);
PRAGMA user_version = 1;
COMMIT;
