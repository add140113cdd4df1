"""ReaderRegistry: lists the FileReaders among the attributes of an object."""

from __future__ import annotations

import threading
from typing import Any

from fffs.reader import FileReader


class ReaderRegistry:
    """An object that can list the FileReaders among its attributes.

    Examples:
        >>> [reader.n for reader in fffs.torch.Dataset("train.ffr").ffreaders()]
        [3]

    """

    def ffreaders(self) -> list[FileReader]:
        """Return the readers among the attributes, followed by those of registries among the attributes."""
        return self._readers_among(list(vars(self).values()))

    def _readers_among(self, values: list[Any]) -> list[FileReader]:
        if id(self) in _asked.registries:  # a split may have the data set that has it
            return []
        is_outermost = not _asked.registries
        _asked.registries[id(self)] = self
        try:
            readers = [value for value in values if isinstance(value, FileReader)]
            for value in values:
                if isinstance(value, ReaderRegistry):
                    readers += value.ffreaders()
        finally:
            if is_outermost:
                _asked.registries.clear()
        return readers


class _Asked(threading.local):
    """The registries, by their ids, that a thread has asked for their readers."""

    def __init__(self) -> None:
        self.registries: dict[int, ReaderRegistry] = {}


_asked = _Asked()
