"""Targets that a rename cannot or must not replace, refused before any work: special files, mount points, `.`.

A mount point is recognised by the number of its mount: a bind mount of the same file system has the same device.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator

from fffs.base.paths import without_zero
from fffs.errors import UsageError, WriteError
from fffs.files.dirfd import close, open_folder
from fffs.files.file_systems import is_proc
from fffs.files.rights import PERMISSIONS, attributes_of, flags_of
from fffs.files.temporary import close_locked, lock

LINKS_MAX = 40  # as in the kernel

_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def refuse_file(path: str) -> None:
    """Raise unless a new file may take the name ``path``.

    Raises:
        WriteError: it is a folder, or another user's in a folder with the sticky bit.
        UsageError: other programs would lose what is there, or it cannot be replaced.

    """
    without_zero(path)
    if os.path.isdir(path):  # or a link to one, which its users would miss
        raise WriteError(errno.EISDIR, path)
    with contextlib.suppress(OSError):
        if stat.S_IFMT(os.stat(path).st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
            raise UsageError(f"{path}: a device, FIFO or socket, which a new file would replace; choose another name")
    # A link in /proc, such as that of /dev/stdout, may lead to a regular file now and to a device in another process.
    if any(map(_belongs_to_the_system, _folders_of_links(os.fsencode(path)))):
        raise UsageError(f"{path}: in /dev, or a link into /proc, which a new file would replace; choose another name")
    if _is_mount_point(os.fsencode(path)):
        raise UsageError(f"{path}: a mount point, which cannot be replaced; choose another name")
    _refuse_sticky(os.fsencode(path), path)


def refuse_folder(path: bytes, shown: str) -> None:
    """Raise UsageError or, as ``refuse_file``, WriteError if a new folder cannot take the place of ``path``.

    A mount point belongs to another file system. Replacing the current folder would leave this process, and the user's
    shell, in a deleted one.
    """
    if _is_mount_point(path) or (os.path.isdir(path) and os.path.samefile(path, b".")):
        raise UsageError(f"{shown}: cannot replace a mount point or the current folder; name a new folder in it")
    _refuse_sticky(path, shown)


def _refuse_sticky(path: bytes, shown: str) -> None:
    """Raise WriteError for what only its owner, the owner of its folder, and root may replace."""
    try:
        there, folder = os.lstat(path), os.stat(os.path.dirname(path) or b".")
    except OSError:
        return
    if folder.st_mode & stat.S_ISVTX and os.geteuid() not in (0, there.st_uid, folder.st_uid):
        raise WriteError(errno.EPERM, shown, "another user's, in a folder with the sticky bit")


@contextlib.contextmanager
def replaced_folder(place: int, name: bytes, new: int, shown: str) -> Iterator[int | None]:
    """Lock the empty folder that an open new one is to replace, and yield its mode; None if there is none.

    place: the open folder of the name. What a rename refuses is left to it: a file, a folder that is not empty.

    Raises:
        UsageError: more than permission bits would be lost, or another program has locked the folder.
        OSError: it cannot be opened.

    """
    try:
        fd = open_folder(name, place)
    except (FileNotFoundError, NotADirectoryError):
        yield None
        return
    try:
        if not os.listdir(fd):
            _refuse_loss(fd, new, shown)
        yield stat.S_IMODE(os.fstat(fd).st_mode)
    finally:
        close_locked(fd, os.getpid())


def _refuse_loss(old: int, new: int, shown: str) -> None:
    """Lock the old folder. Raise UsageError unless the new one, beside it, has all that it has."""
    try:
        # Daemons lock their mount points: replacing one detaches what is mounted on it in other mount namespaces.
        lock(old, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(
            f"{shown}: this empty folder is locked, as by a mount in a container; unmount there, or name another folder"
        ) from None
    before, after, lost = os.fstat(old), os.fstat(new), ""
    if before.st_dev != after.st_dev:  # of Btrfs; rename(2) fails
        lost = "subvolume"
    elif (before.st_uid, before.st_gid) != (after.st_uid, after.st_gid):
        lost = "owner or group"
    elif stat.S_IMODE(before.st_mode) & ~after.st_mode & ~PERMISSIONS:
        lost = "set-user-ID, set-group-ID or sticky bit"
    elif attributes_of(old) != attributes_of(new):
        lost = "extended attributes or access control lists"
    elif flags_of(old) & ~flags_of(new):
        lost = "encryption or other flags of chattr(1)"
    if lost:
        raise UsageError(f"{shown}: this empty folder would lose its {lost}; remove it, or name a new folder in it")


def without_dots(path: bytes) -> bytes:
    """Return the path without slashes at its end, and resolved if its last name is ``.`` or ``..``: these cannot be
    renamed.
    """
    path = path.rstrip(b"/") or b"/"
    return os.path.realpath(path) if os.path.basename(path) in (b".", b"..") else path


def _folders_of_links(path: bytes) -> Iterator[bytes]:
    """Yield the folder of the path, and those of all paths that its last name leads to by symbolic links."""
    for _ in range(LINKS_MAX):
        folder = os.path.dirname(path) or b"."
        yield folder
        try:
            path = os.path.join(folder, os.readlink(path))
        except OSError:  # not a link
            return


def _belongs_to_the_system(folder: bytes) -> bool:
    try:
        fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return is_proc(fd) or os.path.samestat(os.fstat(fd), os.stat(b"/dev"))
    except OSError:
        return False
    finally:
        close(fd)


def _is_mount_point(path: bytes) -> bool:
    parent, name = os.path.split(path)
    try:
        mounts = _mount_of(path, _LOOK), _mount_of(parent or b".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return not name or (None not in mounts and mounts[0] != mounts[1])
    except OSError:
        return False


def _mount_of(path: bytes, flags: int) -> int | None:
    """Return the number of the mount that the path is in. Without /proc, return that of a folder's device; the files of
    an overlay have others than its folders. Raises OSError.
    """
    fd = os.open(path, flags)
    try:
        with open(f"/proc/self/fdinfo/{fd}", "rb") as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith(b"mnt_id:"))
    except (FileNotFoundError, StopIteration):
        status = os.fstat(fd)
        return status.st_dev if stat.S_ISDIR(status.st_mode) else None
    finally:
        close(fd)
