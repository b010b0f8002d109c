"""The hash of an image and of the options that change what an engine does with it, for the crash denylist."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from ocrsvc.records import FileTask, Task


def digest_of(task: Task) -> bytes:
    """16 bytes: of the file, or of the pixels and their shape, and of the options. 1 ms for a megabyte."""
    options, shape = task.options, () if isinstance(task, FileTask) else task.image.pixels.shape
    chosen = (shape, options and (options.rotate, options.detect, options.upright_boxes))
    found = blake2b(repr(chosen).encode(), digest_size=16)
    found.update(task.data if isinstance(task, FileTask) else np.ascontiguousarray(task.image.pixels).data)
    return found.digest()
