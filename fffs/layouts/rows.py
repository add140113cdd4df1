"""What is decoded when somebody looks at it: files of a tree, or rows, folders that hold what is in one record.

A source of a million records would be tens of millions of names; so rows are made when somebody looks, and forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Union

import numpy as np
import numpy.typing as npt

MOST_FILES = 1 << 18
"""Names in one row. A hostile record of some megabytes could hold many millions."""

NODE_BYTES = 400  # memory of a name, about


@dataclass(frozen=True)
class File:
    """A file of a row: some bytes that are at hand, followed by a range of a record of the store.

    ``problem``: why it cannot be read, if so.
    """

    prefix: bytes = b""
    record: int = -1
    start: int = 0
    length: int = 0
    problem: str = ""

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self.prefix) + self.length

    @property
    def cost(self) -> int:
        """Bytes of memory, about."""
        return len(self.prefix) + NODE_BYTES


Entries = dict[bytes, Union["File", "Entries"]]
"""What is in a folder, by name."""


@dataclass(frozen=True)
class Folder:
    """A folder of a row: the nodes of its names, which follow one another, and how many of them are folders."""

    nodes: dict[bytes, int]
    folders: int


class Row:
    """The names in one row, sorted, as numbered nodes; node 0 is the row's folder. Immutable."""

    def __init__(self, entries: Entries) -> None:
        self.nodes: list[File | Folder] = []
        self.parents = [0]
        self.names = [b""]
        contents: list[File | Entries] = [entries]
        self.cost = 0
        for content in contents:  # which grows meanwhile
            if isinstance(content, File):
                self.nodes.append(content)
                self.cost += len(content.prefix)
                continue
            names, first, node = sorted(content), len(contents), len(self.nodes)
            contents += [content[name] for name in names]
            self.names += names
            self.parents += [node] * len(names)
            folders = sum(not isinstance(item, File) for item in content.values())
            self.nodes.append(Folder({name: first + k for k, name in enumerate(names)}, folders))
        self.cost += NODE_BYTES * len(self.nodes)

    def path(self, node: int) -> bytes:
        """Where a node is, from the row's folder on."""
        parts: list[bytes] = []
        while node:
            parts.insert(0, self.names[node])
            node = self.parents[node]
        return b"/".join(parts)


class Rows(Protocol):
    """Where rows come from. May be used from several threads at a time."""

    n: int
    mtime: int  # ns
    files: dict[bytes, File]
    """Files beside the rows."""

    def record(self, number: int) -> int:
        """The record of the store that a row is read from."""

    def load(self, number: int) -> Row:
        """Read a row.

        Raises:
            RecordError: it is damaged, or no row.
            ReadError, SourceChangedError.

        """


@dataclass(frozen=True)
class DecodedFiles:
    """Which files of a tree are not the bytes of their record, and what they are instead.

    ``load(record)`` reads what it needs for that. May be called from several threads at a time. Raises what
    ``Rows.load`` raises.
    """

    nodes: npt.NDArray[np.uint8]
    """[nodes] 1: such a file."""
    load: Callable[[int], File]
