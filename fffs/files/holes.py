"""validate_written: refuses data that lies in the holes of a sparse file, before memory is allocated for it."""

from __future__ import annotations

import errno
import os

from fffs.errors import MetadataError
from fffs.files.file import File

# Bytes in holes that are always accepted. A file system may store blocks of zeros as holes, also those of a good file.
FEW = 64 << 20


def validate_written(file: File, begin: int, size: int, what: str) -> None:
    """Raise MetadataError if most of a part of a file was never written, and that is much.

    Otherwise a file that takes a few KiB on the disk could make its readers fill any amount of memory with zeros. Only
    local files are examined.

    Args:
        file: the file.
        begin, size: the offset and length of the part in bytes.
        what: the name of the part, for the message.

    """
    fd, most = file.descriptor, max(FEW, size // 2)
    if size <= most or fd < 0:
        return
    position, end, holes = begin, begin + size, 0
    while position < end and holes <= most:
        data = _seek(fd, position, os.SEEK_DATA, end)
        holes += data - position
        position = _seek(fd, data, os.SEEK_HOLE, end)
    if holes > most:
        raise MetadataError(f"{file.name}: most of {what} of {size} bytes was never written; the file is damaged")


def _seek(fd: int, position: int, what: int, end: int) -> int:
    """Return the offset of the next data or hole before ``end``, or ``end``."""
    try:
        return min(os.lseek(fd, position, what), end) if position < end else end
    except OSError as error:
        # ENXIO: only a hole follows, or the file became shorter. Otherwise, the file system cannot find holes.
        if what == os.SEEK_HOLE or error.errno == errno.ENXIO:
            return end
        return position
