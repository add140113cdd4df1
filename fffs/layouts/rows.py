"""What is decoded on demand: files of a tree, or rows, which are folders of the contents of one record.

A million records may have tens of millions of names, so rows are made when they are looked up, and then forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Union

import numpy as np
import numpy.typing as npt

MOST_FILES = 1 << 18
"""The most names in one row. A hostile record of a few megabytes could hold many millions."""

NODE_BYTES = 400  # approximate memory of a name


class FileContent(NamedTuple):
    """A file of a row: some bytes in memory, followed by a range of a record of the store.

    ``problem``: the reason if it cannot be read, else empty.
    """

    prefix: bytes = b""
    record: int = -1
    start: int = 0
    length: int = 0
    problem: str = ""

    @property
    def size(self) -> int:
        """The size in bytes."""
        return len(self.prefix) + self.length

    @property
    def cost(self) -> int:
        """The approximate memory in bytes."""
        return len(self.prefix) + NODE_BYTES


Entries = dict[bytes, Union["FileContent", "Entries"]]
"""The contents of a folder, by name."""


@dataclass(frozen=True)
class RowFolder:
    """A folder of a row: name -> node, with consecutive nodes, and how many of them are folders."""

    nodes: dict[bytes, int]
    folders: int


class Row:
    """The names in one row, sorted, as numbered nodes; node 0 is the row's folder. Immutable."""

    def __init__(self, entries: Entries) -> None:
        self.nodes: list[FileContent | RowFolder] = []
        self.parents = [0]
        self.names = [b""]
        contents: list[FileContent | Entries] = [entries]
        self.cost = 0
        for content in contents:  # the loop appends to contents
            if isinstance(content, FileContent):
                self.nodes.append(content)
                self.cost += len(content.prefix)
                continue
            names, first, node = sorted(content), len(contents), len(self.nodes)
            contents += [content[name] for name in names]
            self.names += names
            self.parents += [node] * len(names)
            folders = sum(not isinstance(item, FileContent) for item in content.values())
            self.nodes.append(RowFolder({name: first + k for k, name in enumerate(names)}, folders))
        self.cost += NODE_BYTES * len(self.nodes)

    def path(self, node: int) -> bytes:
        """Return the path of a node, relative to the row's folder."""
        parts: list[bytes] = []
        while node:
            parts.insert(0, self.names[node])
            node = self.parents[node]
        return b"/".join(parts)


class Rows(Protocol):
    """A source of rows. May be used from several threads at a time."""

    n: int
    mtime: int  # ns
    files: dict[bytes, FileContent]
    """The files beside the rows."""

    def record(self, number: int) -> int:
        """Return the record of the store that a row is read from."""

    def load(self, number: int) -> Row:
        """Read a row.

        Raises:
            RecordError: the record is damaged, or not a row.
            ReadError, SourceChangedError: the record cannot be read.

        """


@dataclass(frozen=True)
class DecodedFiles:
    """The files of a tree that show something decoded instead of the bytes of their record.

    ``load(record)`` reads the record and makes its file. It may be called from several threads at a time. It raises
    what ``Rows.load`` raises.
    """

    nodes: npt.NDArray[np.uint8]
    """uint8[nodes]: 1 for a decoded file."""
    load: Callable[[int], FileContent]
