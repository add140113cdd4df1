"""Way, Ways: walk to the folders below another by descriptors, so that no symbolic link redirects a step.

Each step is one openat(2) of one name with O_NOFOLLOW in an open folder; a name has no ``/``, and ``..`` is never a
step. openat2(2) does the same with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS, but sandboxes and older kernels lack it. If
a folder is exchanged for a link meanwhile, the step fails with ENOTDIR.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from types import TracebackType

from fffs.base.descriptors import above_standard, are_few
from fffs.native import lib

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
HANDLE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC  # needs no permission to read

# Errors of link(2) on file systems without hard links: FAT, some FUSE file systems, some network shares.
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV)

# Which folders a Way keeps open: the lowest, and some between, because paths may be 2048 deep and descriptors are few.
# Others are opened again from the next one above. If descriptors are very few, it keeps only the lowest one.
LOWEST = 16
SPACED = 64
PATH_MAX = int(lib.FFFS_PATH_MAX)


def open_folder(name: bytes, dir_fd: int | None, force: bool = False) -> int:
    """Return a descriptor of a folder. force: add read permission first, if this process owns it. Raises OSError.

    dir_fd: what the name is relative to; None: the current folder.
    """
    try:
        return above_standard(os.open(name, FOLDER, dir_fd=dir_fd))
    except PermissionError as error:
        if not force:
            raise
        refused = error
    handle = os.open(name, HANDLE, dir_fd=dir_fd)
    try:
        os.chmod(f"/proc/self/fd/{handle}", 0o700)  # by descriptor: chmod of its name might follow a link
        return above_standard(os.open(b".", FOLDER, dir_fd=handle))
    except FileNotFoundError:  # /proc is not mounted
        raise refused from None
    finally:
        close(handle)


def open_plain(path: str) -> int:
    """Return a handle of the folder at an absolute path in which no component is a symbolic link. Raises OSError, with
    ENOTDIR if one is.

    realpath(3) and an open(2) of its result would not do: what is exchanged for a link between the two is followed.
    """
    fd = os.open(os.sep, HANDLE)
    try:
        for name in filter(None, path.split(os.sep)):
            above, fd = fd, os.open(name, HANDLE, dir_fd=fd)
            close(above)
        return above_standard(fd)
    except BaseException:
        close(fd)
        raise


def close(fd: int) -> None:
    """Close a descriptor whose data is synced, discarded or was only read, and ignore errors: it is closed anyway."""
    with contextlib.suppress(OSError):
        os.close(fd)


@contextlib.contextmanager
def reopened(folder: int) -> Iterator[int]:
    """Yield a new descriptor of an open folder, to list it.

    An old one shows what there was when it was opened, on Btrfs and on file systems of FUSE that keep listings. Raises
    OSError.
    """
    fd = above_standard(os.open(b".", FOLDER, dir_fd=folder))
    try:
        yield fd
    finally:
        close(fd)


class Way:
    """Moves between the folders below ``root``, an open folder of the caller's. Not thread-safe.

    force: add permissions to folders whose modes forbid to enter them.
    """

    def __init__(self, root: int, force: bool = False) -> None:
        self._root, self._force = root, force
        self._names: list[bytes] = []
        self._fds: dict[int, int] = {}  # depth -> descriptor
        self._lowest, self._spaced = (1, PATH_MAX) if are_few() else (LOWEST, SPACED)

    @property
    def fd(self) -> int:
        """The descriptor of the current folder, open until the next step. Raises OSError if it is gone."""
        depth = len(self._names)
        while depth and depth not in self._fds:
            depth -= 1
        names = self._names[depth:]
        del self._names[depth:]
        for name in names:
            self.enter(name)
        return self._fds.get(len(self._names), self._root)

    def enter(self, name: bytes) -> int:
        """Step down to a folder and return its descriptor. Raises OSError."""
        fd = open_folder(name, self.fd, self._force)
        self._names.append(name)
        self._fds[len(self._names)] = fd
        above = len(self._names) - self._lowest
        if above in self._fds and above % self._spaced:
            close(self._fds.pop(above))
        return fd

    def leave(self) -> None:
        """Step up."""
        fd = self._fds.pop(len(self._names), None)
        self._names.pop()
        if fd is not None:
            close(fd)

    def go(self, path: bytes) -> int:
        """Go to the folder at a path from the root (``b""``: the root) and return its descriptor. Raises OSError."""
        names = path.split(b"/") if path else []
        if names != self._names:
            while self._names != names[: len(self._names)]:
                self.leave()
            for name in names[len(self._names) :]:
                self.enter(name)
        return self.fd

    def close(self) -> None:
        """Go back to the root."""
        while self._names:
            self.leave()

    def __enter__(self) -> Way:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Ways:
    """The folders below ``root``, for several threads: each uses a Way of its own."""

    def __init__(self, root: int, force: bool = False) -> None:
        self._root, self._force = root, force
        self._idle: list[Way] = []

    @contextlib.contextmanager
    def at(self, path: bytes) -> Iterator[int]:
        """Yield the descriptor of the folder at a path from the root, open for the length of the block."""
        with self.one() as way:
            yield way.go(path)

    @contextlib.contextmanager
    def one(self) -> Iterator[Way]:
        """Yield a Way that nobody else uses in the block."""
        try:
            way = self._idle.pop()
        except IndexError:
            way = Way(self._root, self._force)
        try:
            yield way
        finally:
            self._idle.append(way)

    def close(self) -> None:
        """Close all descriptors. No thread may be inside ``at``."""
        while self._idle:
            self._idle.pop().close()


def remove_content(folder: int, kept: bytes = b"") -> None:
    """Remove the content of a folder as far as possible, also in folders whose modes forbid it.

    What is mounted in it stays, and the folders that lead there. kept: the name of a file in it that stays.
    """
    device = os.fstat(folder).st_dev
    pending, names = [_remove_files(folder, kept)], [b""]
    with contextlib.suppress(OSError), Way(folder, force=True) as way:
        while pending:
            if pending[-1]:
                name = pending[-1].pop()
                if _is_removed_or_mounted(way.fd, name):
                    continue
                with contextlib.suppress(OSError):
                    fd = way.enter(name)
                    pending.append(_remove_files(fd) if os.fstat(fd).st_dev == device else [])
                    names.append(name)
                continue
            pending.pop()
            name = names.pop()
            if pending:
                way.leave()
                parent = way.fd
                with contextlib.suppress(OSError):
                    os.rmdir(name, dir_fd=parent)


def _is_removed_or_mounted(folder: int, name: bytes) -> bool:
    """Remove a folder in an open folder, if it is empty. Returns whether that is done, or there is a mount on it.

    rmdir(2) looks for a mount before it looks at the content. The device does not tell of a bind mount.
    """
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError as error:
        return error.errno == errno.EBUSY
    return True


def _remove_files(folder: int, kept: bytes = b"") -> list[bytes]:
    """Remove everything but folders and the file ``kept``, and return the names of folders."""
    with contextlib.suppress(OSError):
        os.fchmod(folder, 0o700)
    folders = []
    try:
        with reopened(folder) as fd, os.scandir(fd) as found:
            entries = [(os.fsencode(entry.name), entry.is_dir(follow_symlinks=False)) for entry in found]
    except OSError:
        return []
    for name, is_folder in entries:
        if is_folder:
            folders.append(name)
            continue
        if name == kept:
            continue
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)
    return folders
