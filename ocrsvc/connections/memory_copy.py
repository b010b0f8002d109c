"""A copy of the TLS files in memory, written by the arbiter and read by its workers.

What the arbiter has found good is what every worker gets, whatever happens to the files meanwhile, and whether or not
the workers' user may read them. OpenSSL loads from paths only: these files have some below /proc, and none elsewhere.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Final, Literal

Role = Literal["certificate", "key", "client_ca"]

ROLES: Final[tuple[Role, ...]] = ("certificate", "key", "client_ca")


class MemoryCopy:
    """One copy. To be made before the fork: the descriptors are inherited, and no program that is executed has them.

    Raises OSError without memory or descriptors.
    """

    def __init__(self) -> None:
        self._descriptors = {role: os.memfd_create(f"tls-{role}") for role in ROLES}
        weakref.finalize(self, _close, tuple(self._descriptors.values()))

    def path(self, role: Role) -> Path:
        """Where this process reads it."""
        return Path(f"/proc/self/fd/{self._descriptors[role]}")

    def write(self, role: Role, text: str) -> None:
        """Replace what there is. Raises OSError."""
        descriptor, content = self._descriptors[role], text.encode()
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, content, 0)


def _close(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
