"""Chooses which stored documents are removed for a new one: each caller has a share, and finished ones go first.

When there is no space left, a caller's own finished documents go, the oldest first; then those of callers that hold
more than their share (finished ones first, then those that came last), but only for a caller who holds less. A caller
with nothing in store also displaces the oldest finished document of any other.
"""

from __future__ import annotations

import sqlite3
from typing import Final

import orjson

_KEPT: Final = "WITH kept AS (SELECT * FROM job WHERE id NOT IN (SELECT value FROM json_each(:gone)))"

_FITS: Final = """
SELECT count(*) + (:document = '') <= :most_jobs AND total(bytes) + :size <= :most_bytes FROM kept"""

# How many times its share of the jobs or of the bytes each caller holds, and the one in need with what it needs. By
# `turn` 1 are its own finished documents, 2 and 3 those of the caller that holds most, 4 any that is finished.
_NEXT: Final = """,
  caller AS (SELECT caller FROM kept UNION SELECT :caller),
  share AS (SELECT max(1, :most_jobs / count(*)) AS jobs, max(1, :most_bytes / count(*)) AS bytes FROM caller),
  held AS (
    SELECT caller, max(1.0 * count(*) / share.jobs, total(kept.bytes) / share.bytes) AS shares,
      max(1.0 * (count(*) + (:document = '')) / share.jobs, (total(kept.bytes) + :size) / share.bytes) AS needed
    FROM kept, share GROUP BY caller),
  own AS (SELECT needed FROM held WHERE caller = :caller),
  most AS (SELECT caller FROM held WHERE shares > 1 ORDER BY shares DESC, caller LIMIT 1),
  turns AS (
    SELECT id, came_s, CASE
      WHEN caller = :caller AND is_done AND id != :document THEN 1
      WHEN (SELECT needed > 1 FROM own) THEN NULL
      WHEN caller IN most THEN 3 - is_done
      WHEN is_done AND NOT EXISTS (SELECT * FROM own) AND NOT EXISTS (SELECT * FROM most) THEN 4
      END AS turn
    FROM kept)
SELECT id FROM turns WHERE turn ORDER BY turn, CASE turn WHEN 3 THEN -came_s ELSE came_s END LIMIT 1"""


def displaced(
    connection: sqlite3.Connection, caller: str, size: int, document: str, most_jobs: int, most_bytes: int
) -> list[str] | None:
    """What has to go so that a caller's bytes fit, as a new document or with the one named; None if nothing helps."""
    gone: list[str] = []
    asked = {"caller": caller, "size": size, "document": document, "most_jobs": most_jobs, "most_bytes": most_bytes}
    while True:
        values = asked | {"gone": orjson.dumps(gone).decode()}
        if connection.execute(_KEPT + _FITS, values).fetchone()[0]:
            return gone
        if (row := connection.execute(_KEPT + _NEXT, values).fetchone()) is None:
            return None
        gone.extend(row)
