"""Chooses how a data set is read: in blocks if all of it fits in memory, past the page cache if it is much larger."""

from __future__ import annotations

import os

from fffs.base.memory import available_memory
from fffs.reader import FileReader

# Disks, and even more so network storage, read about as many blocks of this size per second as smaller ones.
BLOCK = 1 << 16
# The largest average record that is read in blocks: a block must hold several records.
SMALL = BLOCK // 2
# The share of available memory that the data set may take: blocks must still be cached when their records are read.
SHARE = 0.5
# The multiple of available memory from which reads bypass the page cache. When such a data set is read again, the cache
# has less than half of it, and bypassing the cache is about twice as fast as filling it.
LARGE = 2.0
# Records smaller than a page are read faster through the cache.
PAGE = 4096


def suit_memory(reader: FileReader) -> None:
    """Choose the fastest way for a reader whose records are all read repeatedly, in any order."""
    reader.store.use_caches()
    size = reader.store.size
    memory = available_memory()
    if size <= SMALL * reader.n and size <= SHARE * memory and not _shared_with_other_machines():
        reader.use_blocks(BLOCK)
    elif size > LARGE * memory > 0 and size > PAGE * reader.n:
        reader.use_direct()


def _shared_with_other_machines() -> bool:
    """Return whether torchrun runs on several machines. Each reads some records, so neighbours in blocks are wasted."""
    return processes("WORLD_SIZE") > processes("LOCAL_WORLD_SIZE")


def processes(name: str) -> int:
    """Return the number of processes in a variable of torchrun's environment; 1 if it has none."""
    value = os.environ.get(name, "")
    return max(1, int(value)) if value.isdecimal() else 1
