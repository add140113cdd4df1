"""commit_pair: two files that only make sense together, put in place one after the other."""

from __future__ import annotations

import contextlib
import os

from fffs.base.failures import writing
from fffs.errors import WriteError
from fffs.files.atomic import IN_PLACE, AtomicFile, sync_place
from fffs.files.dirfd import close
from fffs.files.temporary import temporary_name


def commit_pair(first: AtomicFile, last: AtomicFile) -> None:
    """Put both files in place, ``last`` at the end: readers open it, and without it find nothing.

    The old files leave their names before a new one comes, ``last``'s first, and each step is on the disk before the
    next one. So a crash leaves, under these two names, both old files, both new ones, or no file ``last``: never an old
    file with a new one, which would pass for a whole.

    Raises WriteError, and then both old files have their names again. Or both new ones are in place and only their
    folder could not be synced; the error says so.
    """
    try:
        last.sync()
        first.sync()  # what is left are renames, which hardly ever fail
        _replace(first, last)
    finally:
        first.discard()
        last.discard()


def _replace(first: AtomicFile, last: AtomicFile) -> None:
    with _OldFile(last) as old_last, _OldFile(first) as old_first:
        try:
            if old_last.move_aside() | old_first.move_aside():
                old_last.sync()
            first.commit()
            last.commit()
        except BaseException as error:  # or an interrupt: without this, one between two renames would lose the old
            if last.in_place:
                raise
            old_first.bring_back()
            old_last.bring_back()
            if isinstance(error, WriteError) and error.detail == IN_PLACE:  # of the first alone
                raise WriteError(error.errno, str(error.filename)) from error
            raise


class _OldFile:
    """What a new file replaces, for the length of a with-block."""

    def __init__(self, new: AtomicFile) -> None:
        self._path, (self._folder, self._name) = new.path, new.locate()
        self._aside = temporary_name(self._name)
        self._missing = False

    def move_aside(self) -> bool:
        """Give it the name of a temporary file, which a killed process leaves to the next writer. Whether it is there.

        Raises WriteError.
        """
        with writing(self._path):
            try:
                self._rename(self._name, self._aside)
            except FileNotFoundError:
                self._missing = True
        return not self._missing

    def sync(self) -> None:
        """Have that on the disk. Raises WriteError."""
        with writing(self._path):
            sync_place(self._folder)

    def bring_back(self) -> None:
        """Give it its own name again; where nothing was before, leave nothing."""
        with contextlib.suppress(OSError):
            if self._missing:
                os.unlink(self._name, dir_fd=self._folder)
            else:
                self._rename(self._aside, self._name)

    def _rename(self, name: bytes, other: bytes) -> None:
        os.rename(name, other, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def __enter__(self) -> _OldFile:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._aside, dir_fd=self._folder)
        close(self._folder)
