"""Reads the JSON files of other libraries, in bounded memory."""

from __future__ import annotations

import json
from typing import Any

from fffs.errors import MetadataError, UnsupportedError
from fffs.files.file import File


def load_object(file: File, most: int) -> dict[str, Any]:
    """Return the object in a JSON file.

    most: the largest size in bytes that is read; parsed, it takes several times as much memory.

    Raises:
        MetadataError: it is not JSON, or no object. UnsupportedError: it is larger. ReadError.

    """
    if file.size > most:
        raise UnsupportedError(f"{file.name}: has {file.size} bytes, more than {most}, which such a file never needs")
    try:
        found = json.loads(file.read_bytes(0, file.size))
    except (ValueError, RecursionError):
        raise MetadataError(f"{file.name}: is damaged; it is not JSON") from None
    if not isinstance(found, dict):
        raise MetadataError(f"{file.name}: is damaged; it is not a JSON object")
    return found
