"""How a data set comes from the disk: with neighbours where memory has room for all of it, past memory where not."""

from __future__ import annotations

import os

from fffs.base.memory import available_memory
from fffs.reader import FileReader

# Disks, and storage behind a network even more so, give about as many blocks of this size in a second as small ones.
BLOCK = 1 << 16
# Only where blocks would hold several records.
SMALL = BLOCK // 2
# Of the memory that is available: what a block brings must still be there when it is wanted.
SHARE = 0.5
# Times the memory that is available. Of such a data set the page cache would have less than half when it is wanted
# again, and reading past it is about twice as fast as filling it.
LARGE = 2.0
# Records smaller than a page come faster through the cache.
PAGE = 4096


def suit_memory(reader: FileReader) -> None:
    """Let a reader that will be asked for all its records, in any order, again and again, do so in the best way."""
    size = sum(file.index.file_size for file in reader.store.files)
    memory = available_memory()
    if size <= SMALL * reader.n and size <= SHARE * memory and not _shared_with_other_machines():
        reader.use_blocks(BLOCK)
    elif size > LARGE * memory > 0 and size > PAGE * reader.n:
        reader.use_direct()


def _shared_with_other_machines() -> bool:
    """Whether others read their share of the records, as torchrun tells: what lies beside ours is not for us."""
    return int(os.environ.get("WORLD_SIZE", "1")) > int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
