"""Small records come from a cold disk in blocks, with their neighbours, where there is memory for all of them."""

from __future__ import annotations

import os

from fffs.memory import available_memory
from fffs.reader import FileReader

# Disks, and storage behind a network even more so, give about as many blocks of this size in a second as small ones.
BLOCK = 1 << 16
# Only where blocks would hold several records.
SMALL = BLOCK // 2
# Of the memory that is available: what a block brings must still be there when it is wanted.
SHARE = 0.5


def read_neighbours(reader: FileReader) -> None:
    """Let a reader that will be asked for all its records, in any order, read blocks, if that pays.

    Not where other machines read their share of the records, as torchrun tells: their neighbours are not for us.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > int(os.environ.get("LOCAL_WORLD_SIZE", "1")):
        return
    size = sum(file.index.file_size for file in reader.store.files)
    if size <= SMALL * reader.n and size <= SHARE * available_memory():
        reader.read_around(BLOCK)
