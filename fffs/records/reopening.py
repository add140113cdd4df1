"""Reopening: copies of readers open their files again, and refuse files that were replaced."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from fffs.errors import SourceChangedError
from fffs.records.identity import Identity
from fffs.records.store import RecordStore

# A file may be replaced again and again; a pair of files, as of a Bag, is incomplete for some milliseconds.
ATTEMPTS = 20
PAUSE = 0.005

T = TypeVar("T")


def open_unreplaced(open: Callable[[], T]) -> T:
    """Call a function that opens files; retry if it raises SourceChangedError because they were replaced."""
    for _ in range(ATTEMPTS - 1):
        try:
            return open()
        except SourceChangedError:
            time.sleep(PAUSE)
    return open()


def refuse_others(store: RecordStore, before: Sequence[Identity]) -> None:
    """Close the store and raise SourceChangedError unless its files have these identities, in order."""
    paths = [file.index.path for file in store.files]
    changed = [path for path, now, then in zip(paths, store.identity, before, strict=False) if not now.is_that_of(then)]
    if len(paths) == len(before) and not changed:
        return
    store.close()
    if changed:
        raise SourceChangedError(f"{changed[0]}: not the same file any more: it was replaced or changed; open it again")
    where = paths[0] if paths else "the source"
    raise SourceChangedError(f"{where}: there are {len(paths)} files now, and were {len(before)}; open them again")


def refuse_replaced(store: RecordStore, open_again: Callable[[], RecordStore]) -> None:
    """Raise SourceChangedError if a copy of the reader that is made now would open other files.

    The parent of worker processes gets this error; the failure of a worker to start would say less. Missing files are
    not an error here: the copy may be made on another machine.

    Args:
        store: of the reader.
        open_again: opens the same paths.

    """
    if any(file.file.is_replaced() for file in store.files):
        again = open_again()
        refuse_others(again, store.identity)
        again.close()
