"""pack_rows: writes rows of (path, bytes), which are in memory, into a packed folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from fffs.base.buffers import readable_bytes
from fffs.base.jobs import Jobs
from fffs.base.numbers import divide
from fffs.errors import UsageError
from fffs.files.atomic_output import AtomicOutput
from fffs.native.engine import BLOCK
from fffs.packing.contents import Work, pack_contents
from fffs.packing.names import Contents, Names

Row = tuple[Any, Any]
"""A path (str or bytes) from the folder on, and the content: bytes or another contiguous buffer."""

MODE: Final = 0o644
_TOGETHER: Final = 4 << 20  # bytes of small files that are copied together
_ROWS: Final = 512


class _Rows:
    """Contents of rows, as a source of ``pack_contents``."""

    def __init__(self, contents: Sequence[memoryview]) -> None:
        self._contents = contents

    def each(self, work: Work, contents: Contents, jobs: Jobs, threads: int) -> None:
        """Pass each file to ``work``, in the order of the records."""
        for begin, stop in divide(contents.sizes, _TOGETHER, _ROWS):
            views = [self._contents[place] for place in contents.places[begin:stop].tolist()]
            sizes = contents.sizes[begin:stop]
            small = np.flatnonzero(sizes <= BLOCK)
            for k in np.flatnonzero(sizes > BLOCK).tolist():
                work.file(begin + k, _pieces(views[k]))
            if len(small):
                data = np.frombuffer(bytearray().join(views[k] for k in small.tolist()), np.uint8)
                starts = np.cumsum(sizes[small]) - sizes[small]
                work.files((begin + small).astype(np.uint32), starts, data)


def _pieces(view: memoryview) -> Iterator[bytes]:
    return (bytes(view[at : at + BLOCK]) for at in range(0, len(view), BLOCK))


def pack_rows(rows: Iterable[Row], output: AtomicOutput, shown: str, mtime_ns: int) -> int:
    """Pack rows into a new file, which the caller commits. Returns how many there are.

    Args:
        rows: the files. A folder is made for each that is in a path.
        output: of the pack.
        shown: what they are, for messages.
        mtime_ns: the modification time of all files.

    Raises:
        UsageError: a path cannot be that of a file, or comes twice, or a content is no buffer.
        UnsupportedError: a name is too long, or a file has the name of a folder.

    """
    notes: list[str] = []
    names, views, seen = Names(shown, notes.append), list[memoryview](), set[bytes]()
    for row in rows:
        try:
            path, content = row
        except (TypeError, ValueError):
            raise UsageError(f"{shown}: a row must be (path, bytes), not {row!a:.60}") from None
        name = _name(path, shown)
        if name in seen:
            raise UsageError(f"{shown}: {os.fsdecode(name)}: two rows have this path")
        seen.add(name)
        views.append(_view(content, name, shown))
        names.add_file(name, len(views) - 1, len(views[-1]), MODE, mtime_ns)
    contents = names.lay_out()
    if notes or len(contents.sizes) != len(views):
        raise UsageError(notes[0] if notes else f"{shown}: a row has the path of a folder of another one")
    pack_contents(_Rows(views), contents, output, 1, None)
    return len(views)


def _name(path: Any, shown: str) -> bytes:
    """Return a path as bytes. Raises UsageError unless it leads to a file below the folder."""
    if not isinstance(path, (str, bytes)):
        raise UsageError(
            f"{shown}: a row must be (path, bytes), with a path of text or bytes, not {type(path).__name__}"
        )
    try:
        name = path if isinstance(path, bytes) else path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise UsageError(f"{shown}: {path!a:.200} has half of a pair of surrogates, which no path has") from None
    if not name or any(part in (b"", b".", b"..") for part in name.split(b"/")) or b"\0" in name:
        raise UsageError(f"{shown}: {os.fsdecode(name)!r} is not the path of a file in a folder")
    return name


def _view(content: Any, name: bytes, shown: str) -> memoryview:
    try:
        return readable_bytes(content)
    except TypeError as error:
        raise UsageError(f"{shown}: {os.fsdecode(name)}: the content cannot be written: {error}") from error
