"""The folder to mount on: checks it first, creates it if it is missing, and then removes it afterwards.

rmdir(2) refuses a mount point only if the mount is in the mount namespace of the caller. In all others it detaches the
mounts on the folder, as does a removal by another machine. A daemon therefore holds a shared lock of the folder below
its mount, locks being visible in all namespaces, and a folder is removed only with an exclusive lock. Nothing is
removed from file systems that other machines may use: these do not see the locks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress

from fffs.base.descriptors import above_standard, describe
from fffs.errors import DeadMountError, MountError
from fffs.files.dirfd import FOLDER, HANDLE, close, open_plain, reopened
from fffs.files.file_systems import is_of_this_machine
from fffs.files.temporary import close_locked, identity, is_marked, is_named, lock
from fffs.mount.system.mounts import mount_at
from fffs.mount.system.questions import within

# Marks folders that were created for a mount, so that another process can remove what a killed daemon left. The value
# names the folder by device and inode: programs that copy folders copy the mark, too. Without extended attributes the
# empty folder stays. Who may write to a folder may mark it, too, so that only folders that nobody else may write to are
# removed.
MARK = "user.fffs.mountpoint"
_MODE = 0o755
# How often creating it is tried again while other processes create, remove or lock the same folders.
ATTEMPTS = 100
# Seconds until a folder that another process has locked is tried again.
PAUSE_SECONDS = 0.01
# Seconds that a mount at this place has to answer. If its daemon has ended, the kernel answers immediately.
ANSWER_SECONDS = 2.0
# What a daemon, or libfuse, opens by name before the mount answers, or in the thread that answers. In the mount itself,
# it would wait for its own answer.
NEEDED = ("/proc", "/dev/null", "/dev/log", "/sys/class/bdi", "/sys/devices/virtual/bdi")
# Descriptors that are kept so that remove() can open two, and lock() one, whatever the process lacks.
SPARES = 2


class MountPoint:
    """A folder to mount on, locked until ``close``, and the folders that were created for it. Not thread-safe.

    Raises:
        DeadMountError: a mount is there whose daemon has ended.
        MountError: the folder cannot be mounted on; the message has the reason.

    """

    def __init__(self, path: str, nonempty: bool = False, table: int | None = None) -> None:
        """path: as ``mounts.canonical`` returns it. nonempty: allow its content to be hidden. table: see ``mounts``."""
        self.path = path
        self._nonempty = nonempty
        self._table = table
        self._made: set[bytes] = set()  # identities of created folders without a mark
        self._lock, self._owner = -1, os.getpid()
        self._spares: list[int] = []
        _refuse_needed(path)
        try:
            for _ in range(SPARES):
                self._spares.append(above_standard(os.open(os.sep, HANDLE)))
            for attempt in range(ATTEMPTS):
                refuse_mounted(path, table)
                if (self._is_there() or self._make()) and self._hold(last=attempt == ATTEMPTS - 1):
                    return
            raise MountError(
                f"{path}: cannot create the mount point: other processes create, remove or lock the same folders; "
                "try again"
            )
        except BaseException:  # also OSError, if descriptors are lacking
            self.remove()
            raise

    @contextmanager
    def examined(self) -> Iterator[int]:
        """Yield a descriptor of the folder, to mount on that: whoever may write to a folder above it can exchange that
        for a link to anywhere, at any time.

        Raises MountError if others have meanwhile mounted there, or moved, removed or filled the folder.
        """
        refuse_mounted(self.path, self._table)
        folder = self._open()
        try:
            self._examine(folder)
            yield folder
        finally:
            close(folder)

    def _open(self) -> int:
        try:
            return open_plain(self.path)
        except (FileNotFoundError, NotADirectoryError):
            raise MountError(f"{self.path}: moved or removed while the mount was prepared; mount again") from None
        except OSError as error:
            raise self._refusal(error) from None

    def _examine(self, folder: int) -> None:
        try:
            with reopened(folder) as fd:
                self._refuse_content(fd)
        except OSError as error:
            raise self._refusal(error) from None

    def _is_there(self) -> bool:
        try:
            self._refuse_content(self.path)
        except FileNotFoundError:
            return False
        except NotADirectoryError:
            raise MountError(f"{self.path}: cannot mount on it: not a folder") from None
        except OSError as error:
            raise self._refusal(error) from None
        return True

    def _refuse_content(self, folder: int | str) -> None:
        """Raise MountError if a folder is not empty, unless that was allowed. Raises OSError."""
        if os.listdir(folder) and not self._nonempty:
            raise MountError(f"{self.path}: not empty; mount on an empty folder, or hide its content with -o nonempty")

    def _refusal(self, error: OSError) -> MountError:
        return MountError(f"{self.path}: cannot mount on it: {describe(error)}")

    def _make(self) -> bool:
        """Create the folder and those above it. Returns False if another process interfered: then try again.

        Each is created in an open folder: whoever may write to one above can exchange that for a link to anywhere.
        """
        above, name = os.path.split(self.path)
        missing = [name]
        while not os.path.lexists(above):
            above, name = os.path.split(above)
            missing.append(name)
        path = above
        try:
            folder = open_plain(above)
            try:
                for name in reversed(missing):
                    path = os.path.join(path, name)
                    parent, folder = folder, self._make_one(folder, name, is_last=path == self.path)
                    close(parent)
            finally:
                close(folder)
        except (FileNotFoundError, FileExistsError):
            return False
        except OSError as error:
            raise MountError(f"{path}: cannot create the mount point: {describe(error)}") from None
        return True

    def _make_one(self, parent: int, name: str, is_last: bool) -> int:
        """Create a folder in an open one. Returns its descriptor. Raises OSError."""
        try:
            os.mkdir(name, _MODE, dir_fd=parent)
        except FileExistsError:
            if is_last:
                raise
            # Created for another mount, which removes it unless ours is the last one below it.
            return os.open(name, HANDLE, dir_fd=parent)
        try:
            folder = os.open(name, FOLDER, dir_fd=parent)
        except OSError:
            with suppress(OSError):
                os.rmdir(name, dir_fd=parent)
            raise
        self._made |= _mark(folder)
        return folder

    def _hold(self, last: bool) -> bool:
        """Lock the folder, so that no process removes it. Returns False if one may be doing that: then try again."""
        try:
            fd = above_standard(os.open(self.path, FOLDER))
        except FileNotFoundError:
            return False
        except OSError as error:
            raise MountError(f"{self.path}: cannot mount on it: {describe(error)}") from None
        held = False
        try:
            if _is_created(fd, self._made):
                lock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                held = is_named(None, os.fsencode(self.path), fd)
                return held
            return True  # nobody removes it, and an open descriptor would make its file system busy
        except BlockingIOError:
            time.sleep(PAUSE_SECONDS)
            return last  # any user may lock it; a removal does not take that long
        finally:
            if held:
                self._lock = fd
            else:
                close_locked(fd, self._owner)

    def leave(self) -> None:
        """Let nobody remove the folder, whoever created it. For a mount that no process serves: nothing locks its
        folder, and removing that would detach the mount in other namespaces.
        """
        if self._lock >= 0:
            with suppress(OSError):
                os.removexattr(self._lock, MARK)

    def remove(self) -> None:
        """Remove the folders that were created here, unless a mount is there or another process uses them.

        Then remove those above them that were created for other mounts, if these have ended. May be called again.
        """
        self.close()
        made, self._made = self._made, set()  # later, other folders may get their inode numbers
        remove_left(self.path, made, self._table)

    def close(self) -> None:
        """Release the lock. May be called again."""
        if self._lock >= 0:
            close_locked(self._lock, self._owner)
        for fd in self._spares:
            os.close(fd)
        self._lock, self._spares = -1, []


def _refuse_needed(path: str) -> None:
    """Raise MountError if a mount would hide what its daemon needs. One on the root folder does not: paths begin below
    it.
    """
    for needed in NEEDED:
        if any(f"{name}/".startswith(f"{path}/") for name in (needed, os.path.realpath(needed))):
            raise MountError(
                f"{path}: cannot mount on it: that would hide {needed}, which fffs needs; name another folder"
            )


def remove_left(path: str, made: AbstractSet[bytes] = frozenset(), table: int | None = None) -> None:
    """Remove a mount point, and the folders above it, that fffs created, that are empty and that no daemon uses.

    Args:
        path: the mount point.
        made: identities of folders that this process created and could not mark.
        table: see ``mounts``. Nothing is removed if there is a mount at the path: examining it may never return.

    """
    with suppress(OSError, MountError):
        if mount_at(path, table) is None:
            while path != os.sep and _remove(path, made):
                path = os.path.dirname(path)


def _remove(path: str, made: AbstractSet[bytes]) -> bool:
    """Remove one folder. Returns whether it is gone. Raises OSError.

    The parent is opened first: a link that replaces it meanwhile does not redirect the removal.
    """
    above, name = os.path.split(path)
    try:
        parent = os.open(above, HANDLE)
    except FileNotFoundError:
        return True
    try:
        if not is_of_this_machine(parent):  # as what is in it; and in autofs, to open a name mounts something there
            return False
        fd = os.open(name, FOLDER, dir_fd=parent)
        try:
            if not _is_removable(fd, parent, made) or not is_named(parent, os.fsencode(name), fd):
                return False
            os.rmdir(name, dir_fd=parent)
        finally:
            close_locked(fd, os.getpid())
    except FileNotFoundError:
        return True
    finally:
        os.close(parent)
    return True


def _is_removable(fd: int, parent: int, made: AbstractSet[bytes]) -> bool:
    """Whether fffs created the folder and no process uses it. Then it is locked. Raises OSError."""
    is_ours = identity(os.fstat(fd)) in made or _is_credible(fd, parent)
    return is_ours and _is_created(fd, made) and lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_created(fd: int, made: AbstractSet[bytes]) -> bool:
    """Whether fffs created the folder, as far as its mark says. made: identities of folders without a mark."""
    return is_of_this_machine(fd) and (identity(os.fstat(fd)) in made or is_marked(fd, MARK))


def _is_credible(fd: int, parent: int) -> bool:
    """Whether no other user can have marked a folder, except one who may remove it."""
    status = os.fstat(fd)
    return status.st_uid in (os.geteuid(), os.fstat(parent).st_uid) and not status.st_mode & 0o022


def _mark(folder: int) -> set[bytes]:
    """Mark a new folder. Returns its identity if its file system has no marks."""
    mark = identity(os.fstat(folder))
    try:
        os.setxattr(folder, MARK, mark)
    except OSError:
        return {mark}
    return set()


def is_dead(path: str) -> bool:
    """Whether an fffs mount is at this path whose daemon has ended."""
    mount = mount_at(path)
    return mount is not None and mount.ours and _is_end(_ask(path))


def is_alive(path: str) -> bool:
    """Whether the mount at this path answers."""
    return isinstance(_ask(path), os.statvfs_result)


def _ask(path: str) -> os.statvfs_result | OSError | None:
    """Return the answer of a mount to statvfs(2), which its daemon gives; that to stat(2) may come from a cache."""
    return within(ANSWER_SECONDS, lambda: os.statvfs(path))


def _is_end(answer: object) -> bool:
    return isinstance(answer, OSError) and answer.errno in (errno.ENOTCONN, errno.ECONNABORTED)


def refuse_mounted(path: str, table: int | None = None) -> None:
    """Raise if an fffs mount is at this path, or another mount that does not answer. table: see ``mounts``."""
    mount = mount_at(path, table)
    if mount is None:
        return
    answer = _ask(path)
    if _is_end(answer) and mount.ours:
        raise DeadMountError(
            f"{path}: the daemon of this mount is gone ({os.strerror(errno.ENOTCONN)}); "
            f"clean up with: fffs umount {path}"
        )
    if mount.ours:
        raise MountError(f"{path}: {mount.origin} is mounted there; unmount it first: fffs umount {path}")
    if answer is None or _is_end(answer):
        raise MountError(f"{path}: the mount there does not answer ({mount.type}); unmount it: umount -l {path}")
