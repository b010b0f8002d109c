"""Chooses which stored documents are removed for a new one: each caller has a share, and finished ones go first.

When there is no space left, a caller's own finished documents go, the oldest first; then those of callers that hold
more than their share (finished ones first, then those that came last), but only for a caller who holds less. A caller
with nothing in store also displaces the oldest finished document of any other.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Final

# How many times its share of the documents or of the bytes each caller holds, the one in need with what it needs. By
# `turn` 1 are its own finished documents, 2 and 3 those of the caller that holds most, 4 any that is finished.
_NEXT: Final = """
WITH
  caller AS (SELECT caller FROM job UNION SELECT :caller),
  share AS (SELECT max(1, :documents / count(*)) AS documents, max(1, :size / count(*)) AS size FROM caller),
  held AS (
    SELECT caller, max(1.0 * count(*) / share.documents, total(bytes) / share.size) AS shares,
      max(1.0 * (count(*) + :new) / share.documents, (total(bytes) + :more) / share.size) AS needed
    FROM job, share GROUP BY caller),
  own AS (SELECT needed FROM held WHERE caller = :caller),
  most AS (SELECT caller FROM held WHERE shares > 1 ORDER BY shares DESC, caller LIMIT 1),
  stored AS (
    SELECT id, came_s, CASE
      WHEN caller = :caller AND is_done AND id != :document THEN 1
      WHEN (SELECT needed > 1 FROM own) THEN NULL
      WHEN caller IN most THEN 3 - is_done
      WHEN is_done AND NOT EXISTS (SELECT * FROM own) AND NOT EXISTS (SELECT * FROM most) THEN 4
      END AS turn
    FROM job)
SELECT id FROM stored WHERE turn ORDER BY turn, CASE turn WHEN 3 THEN -came_s ELSE came_s END LIMIT 1"""


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that one caller wants to store, as a new document or with the one that is named."""

    caller: str
    size: int
    document: str = ""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most documents, and the most bytes, of all callers together."""

    documents: int
    size: int


def displace(connection: sqlite3.Connection, need: Need, bounds: Bounds) -> list[str] | None:
    """Delete the rows of what has to go so that the need fits, and name it; None when nothing makes it fit."""
    gone, new = list[str](), int(not need.document)
    values = {"caller": need.caller, "document": need.document, "new": new, "more": need.size}
    values |= {"documents": bounds.documents, "size": bounds.size}
    while True:
        documents, size = connection.execute("SELECT count(*), total(bytes) FROM job").fetchone()
        if documents + new <= bounds.documents and size + need.size <= bounds.size:
            return gone
        if (row := connection.execute(_NEXT, values).fetchone()) is None:
            return None
        connection.execute("DELETE FROM job WHERE id = ?", row)
        gone.extend(row)
