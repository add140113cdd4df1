"""Small objects that are read, put and deleted as a whole."""

from __future__ import annotations

from typing import Final

import numpy as np

from fffs.errors import SourceNotFoundError
from fffs.objects.client import ask_upload, list_entries
from fffs.objects.names import parse_url
from fffs.objects.new_object import NewObject
from fffs.objects.remote import RemoteFile

_TOGETHER: Final = 1000  # objects that are deleted with one request


def read_object(url: str) -> bytes | None:
    """Return the bytes of an object, or None if there is none. Raises as ``RemoteFile.open``."""
    try:
        with RemoteFile.open(url) as file:
            data = np.empty(file.size, np.uint8)
            file.read_at(0, data)
            return data.tobytes()
    except SourceNotFoundError:
        return None


def put_object(url: str, data: bytes, *, new: bool = False) -> None:
    """Put an object. new: only if there is none of that name.

    Raises:
        WriteError: it cannot be put; EEXIST: there is one. UsageError, AccessError, ReadError: as ``NewObject``.

    """
    with NewObject(url) as output:
        output.replaces = not new
        with output.raw() as stream:
            stream.write(data)
        output.commit()


def delete_objects(folder: str, keys: list[str]) -> None:
    """Delete objects of the bucket of a URL, as far as they are there. Raises UsageError, AccessError, ReadError."""
    for start in range(0, len(keys), _TOGETHER):
        ask_upload(parse_url(folder), "delete", keys=keys[start : start + _TOGETHER])


def delete_folder(url: str) -> None:
    """Delete all objects in a folder of a store. Raises as ``delete_objects``."""
    delete_objects(url, [entry.key for entry in list_entries(parse_url(url))])
