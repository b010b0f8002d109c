-- The tables of an API key file. Older files have only some of them, and views and triggers that are no longer used.

BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS key (name TEXT PRIMARY KEY, document TEXT NOT NULL) WITHOUT ROWID;

-- Grows with each change of a key. Starts at a random number, so that a replaced file is noticed.
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
-- When a key's request bucket is full again (GCRA), in monotonic seconds. Later than a burst from now is not believed,
-- as monotonic time restarts with the machine.
CREATE TABLE IF NOT EXISTS rate (name TEXT PRIMARY KEY, full REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS worker (worker TEXT PRIMARY KEY, seen REAL NOT NULL) WITHOUT ROWID;
-- Pages counted of each series, see page_counts.py.
CREATE TABLE IF NOT EXISTS series_total (series INTEGER PRIMARY KEY, total INTEGER NOT NULL, day TEXT NOT NULL);
PRAGMA user_version = 1;
COMMIT;
