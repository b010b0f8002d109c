"""How long an owner has a part, and when it says so again."""

from __future__ import annotations

from typing import Final

LEASE_S: Final = 60.0
"""An owner that has not renewed its lease for so long has died, or is cut off from the ledger."""

RENEW_S: Final = 20.0
