"""Fingerprints: what tells whether a data set is the one that a run began with."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch.utils.data

from fffs.engine import CHECK_NONE
from fffs.identity import Identity
from fffs.store import RecordStore
from fffs.withblock import Closing

# Numbers that choose among records or samples, by the attributes that data sets keep them in.
CHOICES = ("indices", "_records")
# What may change although the data set does not: more files are found, once it has opened them.
GROWING = ("files or indices", "checksums of records")


def fingerprint(dataset: Any) -> dict[str, int | None]:
    """CRC-32 of the framing of all files that a data set reads, and which samples of them it has; of all checksums; and
    of which samples alone.

    None: no files of ours are found, or not all of them have checksums. For copies of the files it is the same.
    """
    framing, checksums, chosen, files = 0, 0, 0, 0
    complete = True
    for part in _parts(dataset, set()):
        if isinstance(part, Identity):
            files += 1
            framing = zlib.crc32(b"%d %d" % (part.size, part.framing), framing)
            checksums = zlib.crc32(b"%d" % part.checksums, checksums)
            complete = complete and part.check != CHECK_NONE
        else:
            framing, chosen = zlib.crc32(part, framing), zlib.crc32(part, chosen)
    return {
        "files or indices": framing if files else None,
        "checksums of records": checksums if files and complete else None,
        "indices": chosen if files else None,
    }


def _parts(value: Any, seen: set[int]) -> Iterator[Identity | bytes]:
    """Identities of files, and bytes of choices, in the order of the attributes' names."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Closing):  # a reader, or a packed folder
        store = getattr(value, "_store", None) or getattr(getattr(value, "_source", None), "store", None)
        if isinstance(store, RecordStore):
            yield from store.identity
    elif isinstance(value, torch.utils.data.Dataset):
        for name, item in sorted(getattr(value, "__dict__", {}).items()):  # in whatever order they were set
            if name in CHOICES:
                yield _numbers(item)
            else:
                yield from _parts(item, seen)
    elif isinstance(value, (list, tuple)) and value and isinstance(value[0], (torch.utils.data.Dataset, Closing)):
        for item in value:
            yield from _parts(item, seen)


def _numbers(choice: Any) -> bytes:
    try:
        return np.asarray(choice, np.int64).tobytes()
    except (TypeError, ValueError, OverflowError):
        return b""
