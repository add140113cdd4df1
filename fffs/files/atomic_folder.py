"""AtomicFolder: a folder that appears complete or not at all, like ``AtomicFile``."""

from __future__ import annotations

import contextlib
import os
import stat
import time
import warnings
from collections.abc import Iterator

from fffs.base.descriptors import above_standard
from fffs.base.failures import writing
from fffs.base.withblock import Discarding
from fffs.errors import FffsError, UsageError
from fffs.files.atomic import IN_PLACE, PLACE, sync_place
from fffs.files.dirfd import close
from fffs.files.leftovers import remove_leftover_folders
from fffs.files.rights import PERMISSIONS, new_mode, set_mode, set_time
from fffs.files.sync import sync_folder, sync_open_folder
from fffs.files.targets import refuse_folder, replaced_folder, without_dots
from fffs.files.temporary import close_locked, create_locked_folder, is_there, remove_folder, remove_mark


class LeftoverWarning(UserWarning):
    """Temporary folders are not removed, because other users can have given another folder such a name."""


class AtomicFolder(Discarding):
    """A new folder at ``path``, which must be missing or an empty folder. ``commit`` puts it in place; ``discard``, or
    the end of the with-block, removes it.

    ``fd`` is open and belongs to this object; until ``commit`` only the folder's owner may enter. Not thread-safe. In a
    child of fork, it removes nothing.
    """

    def __init__(self, path: str | bytes, shown: str) -> None:
        """shown: the target's name in messages.

        Raises:
            UsageError: it is a mount point, the current folder, or an empty folder that would lose more than modes
                or is locked.
            WriteError: nothing can be made beside it.

        """
        self.shown = shown
        path = without_dots(os.fsencode(path))
        refuse_folder(path, shown)
        parent, self._name = os.path.split(path)
        with writing(shown):
            self._parent = above_standard(os.open(parent or b".", PLACE))
            try:
                _warn_of_leftovers(shown, remove_leftover_folders(self._parent, self._name))
                self._owner = os.getpid()
                self.fd, self._temporary = create_locked_folder(self._parent, self._name)
                self._open = True  # at once: an interrupt may come at any call
            except BaseException:
                close(self._parent)
                raise
        try:
            with writing(shown), self._replaced():
                pass
        except BaseException:
            self.discard()
            raise

    def _replaced(self) -> contextlib.AbstractContextManager[int | None]:
        return replaced_folder(self._parent, self._name, self.fd, self.shown)

    def find(self) -> str:
        """Return its path before ``commit``; without /proc, the path where it was made. Raises OSError."""
        try:
            return os.readlink(f"/proc/self/fd/{self.fd}")
        except FileNotFoundError:
            parent = os.path.dirname(self.shown.rstrip("/")) or "."
            return os.path.join(os.path.realpath(parent), os.fsdecode(self._temporary))

    @property
    def in_place(self) -> bool:
        """Whether it has its final name. Raises OSError."""
        return not self._open or not is_there(self._parent, self._temporary)

    def commit(self, mode: int | None = None, mtime: int | None = None, *, durable: bool = True) -> None:
        """Put the folder in place, durably unless ``durable`` is False: the caller then syncs what must not be lost.

        It gets the mode and time given, otherwise those of mkdir(2). If it replaces an empty folder, it gets no
        permission that the old one did not have.

        Raises:
            UsageError: as the constructor.
            WriteError: the target is as it was; or the folder is in place but its parent could not be synced, as the
                message then says.

        """
        with writing(self.shown):
            if durable:
                sync_folder(self.fd)
            with self._replaced() as old:
                remove_mark(self.fd)
                set_mode(self.fd, self._choose_mode(mode, old))
                set_time(self.fd, time.time_ns() if mtime is None else mtime)
                if durable:
                    sync_open_folder(self.fd)
                os.rename(self._temporary, self._name, src_dir_fd=self._parent, dst_dir_fd=self._parent)
        try:
            if durable:
                with writing(self.shown, IN_PLACE):
                    sync_place(self._parent)
        finally:
            self._close()

    def _choose_mode(self, mode: int | None, old: int | None) -> int:
        """old: the mode of the folder that is replaced."""
        if mode is None:
            mode = new_mode(0o777, self._parent) | os.fstat(self.fd).st_mode & stat.S_ISGID  # inherited
        return mode if old is None else mode & (old | ~PERMISSIONS) | old & ~PERMISSIONS

    def discard(self) -> None:
        """Remove the folder. May be called again, and after ``commit``."""
        if not self._open:
            return
        if os.getpid() == self._owner:
            remove_folder(self._parent, self._temporary, self.fd)
        self._close()

    def _close(self) -> None:
        self._open = False
        close_locked(self.fd, self._owner)
        close(self._parent)


def _warn_of_leftovers(shown: str, left: list[bytes]) -> None:
    if left:
        names = ", ".join(os.fsdecode(name) for name in left)
        warnings.warn(
            f"{shown}: killed writers may have left folders beside it, but other users can have renamed folders, too; "
            f"examine and remove them: {names}",
            LeftoverWarning,
            stacklevel=3,
        )


@contextlib.contextmanager
def new_folder(path: str) -> Iterator[str]:
    """Yield the temporary path of a new folder, which other processes may use. The block's end puts it in place.

    Errors of the block name the files as they will be called.
    """
    with AtomicFolder(path, path) as folder:
        here = folder.find()
        with shown_as(here, path):
            yield here
        folder.commit()


@contextlib.contextmanager
def shown_as(here: str, path: str) -> Iterator[None]:
    """Rewrite errors of the block that name files in ``here`` to name them in ``path``, their final folder."""
    try:
        yield
    except FffsError as error:
        error.args = tuple(part.replace(here, path) if isinstance(part, str) else part for part in error.args)
        for name in ("filename", "path"):
            if isinstance(value := getattr(error, name, None), str):
                setattr(error, name, value.replace(here, path))
        raise


def refuse_content(path: str, *, follow: bool = False) -> None:
    """Raise unless ``path`` is missing or an empty folder. Called early: ``commit`` checks it again.

    Args:
        path: of the folder to be made.
        follow: follow a symbolic link.

    Raises:
        UsageError: there is a file, or a folder that is not empty.
        WriteError: the path cannot be examined.

    """
    path = path.rstrip("/") or "/"
    with writing(path):
        if not os.path.lexists(path):
            return
        if not os.path.isdir(path) or (os.path.islink(path) and not follow):
            raise UsageError(f"{path}: already exists and is not a folder; name a new or an empty folder")
        if names := os.listdir(path):
            raise UsageError(
                f"{path}: already exists and is not empty (it has {min(names)}); name a new or an empty folder"
            )


def make_folder(path: str) -> None:
    """Make a folder and its parents if they are missing. Raises WriteError."""
    with writing(path):
        os.makedirs(path, exist_ok=True)
