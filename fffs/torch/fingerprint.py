"""Fingerprints of data sets, to tell whether a data set is the one that a run began with."""

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
from fffs.native.checksums import CHECK_NONE
from fffs.records.identity import Identity
from fffs.records.store import RecordStore
from fffs.torch.files import Files

# Attributes of data sets that hold the numbers of chosen records or samples.
CHOICES = ("indices", "_records")
CONTAINERS = (list, tuple, dict)
ORDERED = (str, int, bytes, tuple, PosixPath)  # types of keys that can be sorted
# These limit a walk to milliseconds, for any data set.
STEPS = 10_000  # steps of a walk: one for each data set, reader, and item that is kept for later,
CONTAINER = 10  # this many for each container,
FAST = 8  # and one for this many items of which only the type is checked
SAMPLED = 1_000  # items that tell what a container holds; of further items, only data sets and readers are visited
DEPTH = 200  # levels of nesting
REPEATED = 10  # how many times the same object is visited


def fingerprint(dataset: Any) -> dict[str, Any]:
    """Return checksums of the files that a data set reads, and a CRC-32 of the indices of its samples. For copies of
    the files they are the same.

    The values are None if no files of fffs are found.
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
    """Yields the identities of files, and bytes of choices, from anywhere in a data set.

    They are ordered by the names of attributes, positions in lists, and keys. If a data set has opened more files, the
    earlier ones are yielded in the same order as before. An object that occurs several times is visited several times,
    but not within itself.
    """

    def __init__(self, dataset: Any) -> None:
        # Objects to visit, each with the ids of the objects that enclose it: data sets and readers, which are visited
        # first; containers that data sets have; and containers in those, which may be a million tuples.
        self._queues: list[deque[tuple[Any, tuple[int, ...]]]] = [deque(), deque(), deque()]
        self._steps = STEPS
        self._readers: dict[int, int] = {}  # id -> how many times it was found
        self._datasets: dict[int, list[int]] = {}  # id -> [number, how many times it was found]
        self._kinds: dict[type, bool] = {}  # class -> whether its objects may have files
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
        if times[1] > REPEATED:  # data sets that refer to each other would never end
            yield b"%d" % times[0]
            return
        attributes = getattr(dataset, "__dict__", {})
        self._steps -= len(attributes)
        yield from (_numbers(attributes[name]) for name in CHOICES if name in attributes)
        pairs = [pair for pair in list(attributes.items()) if self._may_have_files(type(pair[1]))]
        self._keep(_in_order([pair for pair in pairs if pair[0] not in CHOICES]), path, 1)

    def _keep(self, items: Iterable[Any], path: tuple[int, ...], containers: int) -> None:
        """Queue items for a later visit."""
        for item in items:
            self._queues[containers if isinstance(item, CONTAINERS) else 0].append((item, path))

    def _items(self, container: Any) -> list[Any]:
        """Return the items of a container that may have files, in order. Items after the first SAMPLED are included
        only if there are data sets or readers among the first ones.
        """
        values = list(islice(_values(container), SAMPLED))
        found = self._kinds_with_files(values)
        if all(issubclass(kind, CONTAINERS) for kind in found):
            count = len(values)
            inner = [value for value in values if type(value) in found]
            self._steps -= 2 * len(inner)
            if not self._kinds_with_files(list(islice(chain.from_iterable(map(_values, inner)), 10 * SAMPLED))):
                return []  # for example, a million tuples
        else:
            count = min(len(container), max(self._steps, len(values)))
        pairs = list(islice(container.items() if isinstance(container, dict) else enumerate(container), count))
        kept = [pair for pair in pairs if self._may_have_files(type(pair[1]))]
        self._steps -= len(kept)
        return _in_order(kept)

    def _kinds_with_files(self, values: list[Any]) -> set[type]:
        """Return the classes of values that may have files. This is fast, because there are nearly always none."""
        self._steps -= len(values) // FAST
        return set(filter(self._may_have_files, set(map(type, values))))

    def _may_have_files(self, kind: type) -> bool:
        if kind not in self._kinds:
            self._kinds[kind] = issubclass(kind, (*CONTAINERS, Closing)) or _is_dataset(kind)
        return self._kinds[kind]


def _values(container: Any) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def _in_order(pairs: list[tuple[Any, Any]]) -> list[Any]:
    """Return values in the order of their keys; if the keys cannot be sorted, in the given order."""
    kinds = set(map(type, (key for key, _ in pairs)))
    if len(kinds) == 1 and kinds.issubset(ORDERED):
        with contextlib.suppress(Exception):  # tuples of different types
            pairs = sorted(pairs, key=operator.itemgetter(0))
    return [value for _, value in pairs]


def _is_dataset(kind: type) -> bool:
    """Return whether objects of a class seem to be data sets."""
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
