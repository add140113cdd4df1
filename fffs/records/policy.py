"""ReadPolicy: how a store reads records."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReadPolicy:
    """How a store reads records. Immutable; a store replaces its policy as a whole.

    ``check``: compare checksums, if there are any; as the files were opened. ``direct``: bypass the page cache for
    batches, if all files support it. ``around``: read the whole aligned block of so many bytes when a record must come
    from a disk; 0: only the record. ``caches``: keep what is read of objects in stores on the local disk.
    """

    check: bool = True
    direct: bool = False
    around: int = 0
    caches: bool = False
