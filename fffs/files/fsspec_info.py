"""What file systems of fsspec tell of a file: its size, time and version."""

from __future__ import annotations

import contextlib
import datetime
import errno
import operator
from typing import Any, Final

import numpy as np

from fffs.errors import ReadError

ARCHIVE: Final = "::archive"
"""What is added to the attributes of a file: the version of the archive that it is in."""

# What file systems tell about the version of a file. Times of access, and objects without a stable text, are not here.
VERSION: Final = [
    "size",
    "mtime",
    "etag",
    "ETag",
    "e_tag",
    "md5",
    "md5Hash",
    "crc32c",
    "generation",
    "version",
    "sha",
    "blob_id",
    "content_md5",
    "content-md5",
    "Content-MD5",
    "Digest",
    "created",
    "modified",
    "modify",
    "modificationTime",
    "last_write_time",
    "updated",
    "last_modified",
    "LastModified",
    "Last-Modified",
    "date_time",
    "CRC",
    ARCHIVE,
]


def kind_of(value: Any) -> str:
    """Return the name of the class of a value, for messages."""
    return "None" if value is None else type(value).__name__


def size_of(info: dict[str, Any], name: str) -> int:
    """Return the size of a file. Raises ReadError if its file system does not tell it."""
    size = info.get("size")
    if size is None:
        raise ReadError(errno.ESPIPE, name, "its file system does not tell its size; simplecache:: may help")
    try:
        found = -1 if isinstance(size, bool) else operator.index(size)
    except TypeError:
        found = -1
    if not 0 <= found <= np.iinfo(np.int64).max:
        raise ReadError(errno.EIO, name, f"its file system tells a size that is none: {size!r:.40}")
    return found


def version_of(info: dict[str, Any]) -> dict[str, str]:
    """Return what differs for another version of a file."""
    found = {key: str(info[key]) for key in VERSION if info.get(key) is not None}
    if "ino" in info and "nlink" in info:  # local: "created" is the time of the last change of owner, mode or links
        found = {**found, "created": str(info["ino"])}
    return found


def tells_version(info: dict[str, Any]) -> bool:
    """Return whether another version of a file differs in more than its size.

    Archives may give all files one time, so that those that are in one depend on what is told of that.
    """
    told = version_of(info.get(ARCHIVE) or info)
    return any(key != "size" and value not in ("", "0", "0.0") for key, value in told.items())


def time_of(info: dict[str, Any]) -> int:
    """Return the modification time in nanoseconds, or 0 if the file system does not tell it."""
    for key in ("mtime", "LastModified", "last_modified", "modified", "updated", "created"):
        value = info.get(key)
        with contextlib.suppress(ValueError, OverflowError):  # a year beyond what a datetime has, or no number
            if isinstance(value, datetime.datetime):
                return int(value.timestamp()) * 10**9
            if isinstance(value, (int, float)):
                return int(value * 10**9)
    return 0
