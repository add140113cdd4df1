"""Reopening: copies of readers open their files anew, and refuse others than those that they were made from."""

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
    """Call a function that opens files, and again if it raises SourceChangedError because they were replaced."""
    for _ in range(ATTEMPTS - 1):
        try:
            return open()
        except SourceChangedError:
            time.sleep(PAUSE)
    return open()


def refuse_others(store: RecordStore, before: Sequence[Identity]) -> None:
    """Raise SourceChangedError, with the store closed, unless its files are those with these identities, in order."""
    paths = [file.index.path for file in store.files]
    changed = [path for path, now, then in zip(paths, store.identity, before, strict=False) if not now.is_that_of(then)]
    if len(paths) == len(before) and not changed:
        return
    store.close()
    if changed:
        raise SourceChangedError(
            f"{changed[0]}: not the file that it was: it was replaced or changed in the meantime; open it anew"
        )
    where = paths[0] if paths else "the source"
    raise SourceChangedError(f"{where}: there are {len(paths)} files now, and were {len(before)}; open them anew")


def refuse_replaced(store: RecordStore, open_again: Callable[[], RecordStore]) -> None:
    """Raise SourceChangedError when a copy of the reader, made now, would not have the files that its store has.

    Who starts processes learns of it here; of one that cannot begin he would learn little. What is not there is for the
    copy to find, which may be made on another machine.

    Args:
        store: the reader's.
        open_again: opens the same paths.

    """
    if any(file.file.is_replaced() for file in store.files):
        again = open_again()
        refuse_others(again, store.identity)
        again.close()
