"""AtomicFolder: a folder that appears complete or not at all; as ``AtomicFile``."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType

from fffs.base.descriptors import above_standard
from fffs.base.failures import writing
from fffs.errors import FffsError, UsageError
from fffs.files.atomic import IN_PLACE, PLACE, sync_open_folder, sync_place
from fffs.files.dirfd import close
from fffs.files.rights import PERMISSIONS, new_mode, rights_at, set_mode, set_time
from fffs.files.temporary import create_locked_folder, remove_folder, remove_leftover_folders
from fffs.native import lib


class AtomicFolder:
    """A new folder at ``path``, which must not exist or be an empty folder: ``commit`` puts it there, ``discard`` (or
    the end of the with-block without ``commit``) removes it.

    ``fd`` is the folder, which only its user may enter until then, and belongs to this object. Not thread-safe. Not to
    be discarded by a child of fork.
    """

    def __init__(self, path: str | bytes, shown: str) -> None:
        """shown: what the target is called in messages."""
        self.shown = shown
        parent, self._name = os.path.split(os.fsencode(path).rstrip(b"/"))
        with writing(shown):
            self._parent = above_standard(os.open(parent or b".", PLACE))
            try:
                remove_leftover_folders(self._parent, self._name)
                self.fd, self._temporary = create_locked_folder(self._parent, self._name)
            except BaseException:
                close(self._parent)
                raise
        self._open = True

    def find(self) -> str:
        """The path that it has until ``commit``. Without /proc, that is where it was made. Raises OSError."""
        try:
            return os.readlink(f"/proc/self/fd/{self.fd}")
        except FileNotFoundError:
            parent = os.path.dirname(self.shown.rstrip("/")) or "."
            return os.path.join(os.path.realpath(parent), os.fsdecode(self._temporary))

    def commit(self, mode: int | None = None, mtime: int | None = None) -> None:
        """Put the folder in place, durably, with that mode and time; without them, as mkdir(2) would make it now. Of an
        empty folder that it replaces it gets the owner, and no permission which that one had not.

        Raises WriteError, and then the target is as it was. Or it is in place and only its parent could not be synced;
        the error says so.
        """
        with writing(self.shown):
            sync_files(self.fd)
            self._give_rights(mode)
            set_time(self.fd, time.time_ns() if mtime is None else mtime)
            sync_open_folder(self.fd)
            os.rename(self._temporary, self._name, src_dir_fd=self._parent, dst_dir_fd=self._parent)
        try:
            with writing(self.shown, IN_PLACE):
                sync_place(self._parent)
        finally:
            self._close()

    def _give_rights(self, mode: int | None) -> None:
        usual = new_mode(0o777) if mode is None else mode
        rights = rights_at(self._parent, self._name, stat.S_IFDIR)
        if rights is None:
            set_mode(self.fd, usual)
            return
        if mode is not None:
            rights = replace(rights, mode=rights.mode & mode)
        rights.give(self.fd, usual)
        if usual & ~PERMISSIONS:
            set_mode(self.fd, stat.S_IMODE(os.fstat(self.fd).st_mode) | usual & ~PERMISSIONS)

    def discard(self) -> None:
        """Remove the folder. May be called again, and after ``commit``."""
        if self._open:
            remove_folder(self._parent, self._temporary, self.fd)
            self._close()

    def _close(self) -> None:
        self._open = False
        close(self.fd)
        close(self._parent)

    def __enter__(self) -> AtomicFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()


@contextlib.contextmanager
def new_folder(path: str) -> Iterator[str]:
    """The path that a folder has in the block, which may be used by other processes, until it appears at its end.

    Errors of the block get the names that the files will have.
    """
    with AtomicFolder(path, path) as folder:
        here = folder.find()
        with shown_as(here, path):
            yield here
        folder.commit()


@contextlib.contextmanager
def shown_as(here: str, path: str) -> Iterator[None]:
    """Errors of the block that name files in ``here`` name them in ``path`` instead, where they will be."""
    try:
        yield
    except FffsError as error:
        error.args = tuple(part.replace(here, path) if isinstance(part, str) else part for part in error.args)
        for name in ("filename", "path"):
            if isinstance(value := getattr(error, name, None), str):
                setattr(error, name, value.replace(here, path))
        raise


def refuse_content(path: str, *, follow: bool = False) -> None:
    """Before work for a new folder begins: that there is none, or an empty one. What appears there meanwhile is an
    error of the commit. follow: a symbolic link is what it leads to.

    Raises:
        UsageError: something is there, which nobody should lose.
        WriteError: that cannot be found out.

    """
    path = path.rstrip("/") or "/"
    with writing(path):
        if not os.path.lexists(path):
            return
        if not os.path.isdir(path) or (os.path.islink(path) and not follow):
            raise UsageError(f"{path}: already exists and is no folder; name a new or an empty folder")
        if names := os.listdir(path):
            raise UsageError(
                f"{path}: already exists and is not empty (it has {min(names)}); name a new or an empty folder"
            )


def make_folder(path: str) -> None:
    """Make a folder, and those above it, where there is none. Raises WriteError."""
    with writing(path):
        os.makedirs(path, exist_ok=True)


def sync_files(folder: int) -> None:
    """Have all that is in an open folder on the disk: one call, instead of one for every file. Raises OSError."""
    if status := lib.fffs_syncfs(folder):
        raise OSError(-status, os.strerror(-status))
