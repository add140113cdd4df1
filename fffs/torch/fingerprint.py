"""Fingerprints: what tells whether a data set is the one that a run began with."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch.utils.data

from fffs.engine import CHECK_NONE
from fffs.identity import Identity
from fffs.store import RecordStore
from fffs.withblock import Closing

# Numbers that choose among records or samples, by the attributes that data sets keep them in.
CHOICES = ("indices", "_records")
CONTAINERS = (list, tuple, dict)
LIMIT = 1000  # of the containers in a container
REPEATED = 10
# What may change although the data set does not: more files are found, once it has opened them.
GROWING = ("files or indices", "checksums of records")


def fingerprint(dataset: Any) -> dict[str, int | None]:
    """CRC-32 of the framing of all files that a data set reads, and which samples of them it has; of all checksums; and
    of which samples alone.

    None: no files of ours are found, or not all of them have checksums. For copies of the files it is the same.
    """
    framing, checksums, chosen, files = 0, 0, 0, 0
    complete = True
    for part in _parts(dataset, (), {}):
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


def _parts(value: Any, path: tuple[int, ...], seen: dict[int, list[int]]) -> Iterator[Identity | bytes]:
    """Identities of files, and bytes of choices, in the order of the attributes' names.

    path: what this is inside of. What is there several times counts several times, but nothing is inside itself.
    seen: the number of each data set and reader, and how many times it was found.
    """
    is_container = isinstance(value, CONTAINERS)
    if id(value) in path or not (is_container or isinstance(value, Closing) or _is_dataset(type(value))):
        return
    path = (*path, id(value))
    if is_container:
        for item in _items(value):
            yield from _parts(item, path, seen)
        return
    times = seen.setdefault(id(value), [len(seen), 0])
    times[1] += 1
    if times[1] > REPEATED:  # data sets that have each other would take forever
        yield b"%d" % times[0]
    elif isinstance(value, Closing):  # a reader, or a packed folder
        store = getattr(value, "_store", None) or getattr(getattr(value, "_source", None), "store", None)
        if isinstance(store, RecordStore):
            yield from store.identity
    else:
        for name, item in sorted(getattr(value, "__dict__", {}).items()):  # in whatever order they were set
            if name in CHOICES:
                yield _numbers(item)
            else:
                yield from _parts(item, path, seen)


def _is_dataset(kind: type) -> bool:
    """Whether objects of a class give samples, as far as that can be seen."""
    if issubclass(kind, torch.utils.data.Dataset):
        return True
    gives = hasattr(kind, "__getitem__") or hasattr(kind, "__getitems__")
    return gives and not issubclass(kind, (*CONTAINERS, str, bytes, np.ndarray, torch.Tensor, torch.nn.Module))


def _items(container: Any) -> Iterable[Any]:
    """What is in a container: all where data sets or readers are, the first LIMIT where containers are, else nothing.

    A dict's items are in the order of their keys where these are strings.
    """
    if isinstance(container, dict):
        by_name = all(isinstance(key, str) for key in container)
        container = [container[key] for key in (sorted(container) if by_name else container)]
    kinds = set(map(type, container))  # fast, also for a million numbers
    if any(issubclass(kind, Closing) or _is_dataset(kind) for kind in kinds):
        return container  # type: ignore[no-any-return]
    return itertools.islice(container, LIMIT) if any(issubclass(kind, CONTAINERS) for kind in kinds) else ()


def _numbers(choice: Any) -> bytes:
    try:
        return np.asarray(choice, np.int64).tobytes()
    except (TypeError, ValueError, OverflowError):
        return b""
