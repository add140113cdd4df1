"""Reopening: copies of readers open their files again, by absolute names, and refuse files that were replaced."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fffs.base.paths import current_folder
from fffs.errors import SourceChangedError, SourceNotFoundError
from fffs.objects.names import absolute, is_remote
from fffs.records.identity import Identity, joined
from fffs.records.store import RecordStore

# A file may be replaced again and again; a pair of files, as of a Bag, is incomplete for some milliseconds.
ATTEMPTS = 20
PAUSE = 0.005

T = TypeVar("T")


class OpenedNames:
    """The names that a reader is opened by. After a change of the current folder, they lead to the same files."""

    def __init__(self, names: Any) -> None:
        """Make this before the files are opened. names: of a file, folder or object, or a list of such names."""
        self.given = list(map(os.fsdecode, names)) if isinstance(names, (list, tuple)) else os.fsdecode(names)
        self._folder = current_folder()

    def now(self) -> Any:
        """Return what opens the files in this process, one name or a list as it was given.

        In the same folder, these are the given names: the folders above may be closed to this user.

        Raises:
            SourceNotFoundError: a name is relative to a folder that had been removed when the reader was opened.

        """
        if self._folder and self._folder == current_folder():
            return self.given
        return list(map(self._absolute, self.given)) if isinstance(self.given, list) else self._absolute(self.given)

    def _absolute(self, given: str) -> str:
        name = absolute(given, self._folder)
        if not is_remote(name) and not os.path.isabs(name):
            what = "the folder that this relative name begins in was removed"
            raise SourceNotFoundError(f"{name}: cannot be opened again: {what}")
        return name


def opened_again(kind: Callable[..., T], names: OpenedNames, *arguments: Any) -> T:
    """Make a copy of a reader, for ``__reduce__``: ``kind`` opens the names with these arguments."""
    return kind(names.now(), *arguments)


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


def require_same(store: RecordStore, before: Identity, shown: str) -> None:
    """Raise SourceChangedError unless all files of a store together have this identity. shown: what they are."""
    if not joined(store.identity).is_that_of(before):
        raise SourceChangedError(
            f"{shown}: not the same file or files any more: replaced or changed; open the source again"
        )


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
