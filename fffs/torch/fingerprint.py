"""Fingerprints: what tells whether a data set is the one that a run began with."""

from __future__ import annotations

import contextlib
import operator
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import PosixPath
from typing import Any

import numpy as np
import torch.utils.data

from fffs.base.withblock import Closing
from fffs.native.engine import CHECK_NONE
from fffs.records.identity import Identity
from fffs.records.store import RecordStore
from fffs.torch.files import Files

# Numbers that choose among records or samples, by the attributes that data sets keep them in.
CHOICES = ("indices", "_records")
CONTAINERS = (list, tuple, dict)
ORDERED = (str, int, bytes, tuple, PosixPath)  # keys that have an order of their own
# A walk takes milliseconds, whatever there is.
STEPS = 10_000  # of a walk: one for each data set and reader, and each item that is kept for later,
CONTAINER = 10  # so many for each container,
FAST = 8  # and one for so many items of which only the type is looked at
SAMPLED = 1_000  # items that tell what a container has; of more, only data sets and readers are looked at
DEPTH = 200  # of things in each other
REPEATED = 10  # how many times the same thing is looked into


def fingerprint(dataset: Any) -> dict[str, Any]:
    """What the files that a data set reads are known by, and a CRC-32 of which samples of them it has. For copies of
    the files it is the same.

    None: no files of ours are found.
    """
    files: Files = []
    chosen = 0
    for part in _Walk(dataset):
        if isinstance(part, Identity):
            framing = zlib.crc32(b"%d %d" % (part.size, part.framing))
            files.append([framing, None if part.check == CHECK_NONE else part.checksums])
        else:
            chosen = zlib.crc32(part, chosen)
    return {"files": files or None, "indices": chosen if files else None}


class _Walk:
    """Identities of files, and bytes of choices, wherever a data set has them.

    They come in an order of attributes' names, places in lists, and keys. Of a data set that opened more files since,
    those that were open come in the same order as before. What is there several times counts several times, but nothing
    is inside itself.
    """

    def __init__(self, dataset: Any) -> None:
        # What is to be looked at, each with the numbers of what it is inside of: data sets and readers, which come
        # first; the containers that data sets have; and containers in those, which may be a million tuples.
        self._queues: list[deque[tuple[Any, tuple[int, ...]]]] = [deque(), deque(), deque()]
        self._steps = STEPS
        self._readers: dict[int, int] = {}  # how many times each was found
        self._datasets: dict[int, list[int]] = {}  # the number of each, and how many times it was found
        self._kinds: dict[type, bool] = {}  # whether files may be in objects of a class
        self._keep([dataset], (), 1)

    def __iter__(self) -> Iterator[Identity | bytes]:
        while self._steps > 0 and (queue := next(filter(None, self._queues), None)):
            self._steps -= 1
            value, path = queue.popleft()
            if id(value) in path or len(path) >= DEPTH:
                continue
            path = (*path, id(value))
            if isinstance(value, CONTAINERS):
                self._steps -= CONTAINER
                self._keep(self._items(value), path, 2)
            elif isinstance(value, Closing):  # a reader, or a packed folder
                yield from self._files(value)
            else:
                yield from self._choices(value, path)

    def _files(self, reader: Any) -> Iterable[Identity]:
        store = getattr(reader, "_store", None) or getattr(getattr(reader, "_source", None), "store", None)
        times = self._readers[id(reader)] = self._readers.get(id(reader), 0) + 1
        return store.identity if isinstance(store, RecordStore) and times <= REPEATED else ()

    def _choices(self, dataset: Any, path: tuple[int, ...]) -> Iterator[bytes]:
        times = self._datasets.setdefault(id(dataset), [len(self._datasets), 0])
        times[1] += 1
        if times[1] > REPEATED:  # data sets that have each other would take forever
            yield b"%d" % times[0]
            return
        attributes = getattr(dataset, "__dict__", {})
        self._steps -= len(attributes)
        yield from (_numbers(attributes[name]) for name in CHOICES if name in attributes)
        pairs = [pair for pair in list(attributes.items()) if self._may_have_files(type(pair[1]))]
        self._keep(_in_order([pair for pair in pairs if pair[0] not in CHOICES]), path, 1)

    def _keep(self, items: Iterable[Any], path: tuple[int, ...], containers: int) -> None:
        """Look at these later."""
        for item in items:
            self._queues[containers if isinstance(item, CONTAINERS) else 0].append((item, path))

    def _items(self, container: Any) -> list[Any]:
        """What is in a container and may have files, in order. Of what is behind the first SAMPLED items, it is all
        where there are data sets or readers among these, else nothing.
        """
        values = list(islice(_values(container), SAMPLED))
        found = self._kinds_with_files(values)
        if all(issubclass(kind, CONTAINERS) for kind in found):
            count = len(values)
            inner = [value for value in values if type(value) in found]
            self._steps -= 2 * len(inner)
            if not self._kinds_with_files(list(islice(chain.from_iterable(map(_values, inner)), 10 * SAMPLED))):
                return []  # of a million tuples, say
        else:
            count = min(len(container), max(self._steps, len(values)))
        pairs = list(islice(container.items() if isinstance(container, dict) else enumerate(container), count))
        kept = [pair for pair in pairs if self._may_have_files(type(pair[1]))]
        self._steps -= len(kept)
        return _in_order(kept)

    def _kinds_with_files(self, values: list[Any]) -> set[type]:
        """Classes of those of these that may have files: fast, as there are nearly always none."""
        self._steps -= len(values) // FAST
        return set(filter(self._may_have_files, set(map(type, values))))

    def _may_have_files(self, kind: type) -> bool:
        if kind not in self._kinds:
            self._kinds[kind] = issubclass(kind, (*CONTAINERS, Closing)) or _is_dataset(kind)
        return self._kinds[kind]


def _values(container: Any) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def _in_order(pairs: list[tuple[Any, Any]]) -> list[Any]:
    """Values in the order of their keys, where these have one; else as they came."""
    kinds = set(map(type, (key for key, _ in pairs)))
    if len(kinds) == 1 and kinds.issubset(ORDERED):
        with contextlib.suppress(Exception):  # tuples of this and that
            pairs = sorted(pairs, key=operator.itemgetter(0))
    return [value for _, value in pairs]


def _is_dataset(kind: type) -> bool:
    """Whether objects of a class give samples, as far as that can be seen."""
    if issubclass(kind, torch.utils.data.Dataset):
        return True
    gives = hasattr(kind, "__getitem__") or hasattr(kind, "__getitems__")
    return gives and not issubclass(kind, (*CONTAINERS, str, bytes, np.ndarray, torch.Tensor, torch.nn.Module))


def _numbers(choice: Any) -> bytes:
    if isinstance(choice, range):
        choice = np.arange(choice.start, choice.stop, choice.step, dtype=np.int64)
    try:
        return np.asarray(choice, np.int64).tobytes()
    except (TypeError, ValueError, OverflowError):
        return b""
