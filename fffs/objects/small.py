"""Small objects that are read, put and deleted as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from fffs.errors import SourceNotFoundError
from fffs.objects.client import ask_upload
from fffs.objects.http_settings import deadline
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


def delete_objects(folder: str, keys: list[str], seconds: Callable[[], float] = deadline) -> None:
    """Delete objects of the bucket of a URL, as far as they are there.

    seconds: returns how long the next request may take; called right before each of them.

    Raises UsageError, AccessError, ReadError, and what ``seconds`` raises.
    """
    for start in range(0, len(keys), _TOGETHER):
        ask_upload(parse_url(folder), "delete", keys=keys[start : start + _TOGETHER], deadline=seconds())
