"""Locked temporary files and folders. A writer holds a lock of its temporary file.

On a file system without locks, writers rely on random names.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat

from fffs.base.descriptors import above_standard
from fffs.base.paths import random_name
from fffs.files.dirfd import HANDLE, NO_LINKS, close, open_folder, remove_content
from fffs.files.rights import set_mode

# Leftovers of killed writers are recognised by this suffix, and by a lock that is free.
SUFFIX = ".fffs-tmp"

# Marks temporary folders that are not complete. Whoever may rename other folders cannot make them look like leftovers.
MARK = "user.fffs.unfinished"

# Errors of flock without lock support: some FUSE, 9p, Lustre without the option flock, NFS without a lock service,
# OrangeFS without the option local_lock (EINVAL).
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)

# Errors of link(2) where rename(2) may succeed: it gives up the old name.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EMLINK)

# Errors for a name that does not exist. A name that a suffix makes too long cannot exist.
ABSENT = (errno.ENOENT, errno.ENAMETOOLONG)

_locked: set[int] = set()  # descriptors of files that this process has locked
_stand_in = -1  # a descriptor of a folder that can neither be read nor written, for children; made with the first lock

_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def temporary_names(name: bytes) -> re.Pattern[bytes]:
    """Return a pattern of the names of a target's temporary files. Long names are shortened to leave room."""
    return re.compile(rb"\.%b\.[0-9a-f]{12}%b" % (re.escape(name[:200]), re.escape(SUFFIX.encode())), re.DOTALL)


def temporary_name(name: bytes) -> bytes:
    """Return a new temporary name for a target."""
    return b".%b.%b%b" % (name[:200], random_name(6).encode(), SUFFIX.encode())


def lock_name(name: bytes) -> bytes:
    """Return the name of a target's lock file, which is used again and again: only its owner removes it."""
    return b".%b.%b%b" % (name[:200], b"0" * 12, SUFFIX.encode())


def lock(fd: int, how: int) -> bool:
    """Lock an open file or folder like flock(2). Returns False if its file system has no locks. Raises OSError.

    Whatever the result, ``close_locked`` must close the file.
    """
    _keep_stand_in()
    _locked.add(fd)
    try:
        fcntl.flock(fd, how)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False
    return True


def _keep_stand_in() -> None:
    """Open the stand-in, unless it is open: a program may have closed all descriptors. Raises OSError."""
    global _stand_in
    with contextlib.suppress(OSError):
        if _stand_in >= 0 and fcntl.fcntl(_stand_in, fcntl.F_GETFL) & os.O_PATH:
            return
    _stand_in = above_standard(os.open(os.sep, HANDLE))


def share_lock(fd: int) -> None:
    """Note a duplicate of a locked descriptor, which has the lock, too. Call ``forget_lock`` before closing it."""
    _locked.add(fd)


def forget_lock(fd: int) -> None:
    """See ``share_lock``."""
    _locked.discard(fd)


def close_locked(fd: int, owner: int) -> None:
    """Close a locked file. owner: the id of the process that locked it.

    That process unlocks the file first: a process that was forked without ``os.fork`` may have the descriptor, too.
    """
    _locked.discard(fd)
    if os.getpid() == owner:
        try:
            fcntl.flock(fd, fcntl.LOCK_UN)
        except OSError:
            pass
        finally:
            close(fd)
    else:
        close(fd)


def _release_in_child() -> None:
    """In a child of fork: give up the parent's locks, which would otherwise last until the child ends.

    The numbers stay in use, for a folder that can neither be read nor written: objects of the child will close them.
    """
    for fd in list(_locked):  # a collector may close another one
        with contextlib.suppress(OSError):
            os.dup2(_stand_in, fd, inheritable=False)
    _locked.clear()


os.register_at_fork(after_in_child=_release_in_child)


def create_locked_file(folder: int, name: bytes) -> tuple[int, bytes]:
    """Create a file and lock it if possible. Returns its descriptor and name. Raises OSError."""
    while True:
        temporary = temporary_name(name)
        try:
            fd = above_standard(os.open(temporary, _NEW_FILE, 0o600, dir_fd=folder))
        except FileExistsError:
            continue  # by chance, or planted by another user
        except OSError:
            raise
        except BaseException:  # an interrupt, which may be raised after the file was created
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise
        try:
            lock(fd, fcntl.LOCK_EX)
            if is_there(folder, temporary):
                return fd, temporary
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            close_locked(fd, os.getpid())
            raise
        close_locked(fd, os.getpid())


def create_locked_folder(parent: int, name: bytes) -> tuple[int, bytes]:
    """Create a folder and lock it if possible. Returns its descriptor and name. Raises OSError."""
    while True:
        temporary = temporary_name(name)
        try:
            os.mkdir(temporary, 0o700, dir_fd=parent)
        except FileExistsError:
            continue
        except OSError:
            raise
        except BaseException:  # as above
            with contextlib.suppress(OSError):
                os.rmdir(temporary, dir_fd=parent)
            raise
        try:
            fd = open_folder(temporary, parent, force=True)  # the umask may remove the owner's permissions
        except FileNotFoundError:
            continue  # another writer removed it before it was locked
        except BaseException:
            with contextlib.suppress(OSError):
                os.rmdir(temporary, dir_fd=parent)
            raise
        try:
            lock(fd, fcntl.LOCK_EX)
            # Other users who may write to the parent may have put a folder of ours in its place.
            if is_there(parent, temporary) and not os.listdir(fd):
                _prepare(fd)
                return fd, temporary
        except BaseException:
            with contextlib.suppress(OSError):
                os.rmdir(temporary, dir_fd=parent)
            close_locked(fd, os.getpid())
            raise
        close_locked(fd, os.getpid())


def _prepare(fd: int) -> None:
    """Mark a new temporary folder, and set its mode. Raises OSError."""
    status = os.fstat(fd)
    wanted = 0o700 | status.st_mode & stat.S_ISGID  # inherited: new files get the folder's group
    if stat.S_IMODE(status.st_mode) != wanted:  # chmod(2) removes the bit if the group is none of ours
        set_mode(fd, wanted)
    with contextlib.suppress(OSError):  # a file system without such attributes
        os.setxattr(fd, MARK, identity(status))


def is_marked(fd: int, mark: str) -> bool:
    """Whether an open folder has a mark that was made for it, not for one that it is a copy of."""
    try:
        return os.getxattr(fd, mark) == identity(os.fstat(fd))
    except OSError:
        return False


def remove_mark(fd: int) -> None:
    """Remove the mark of a temporary folder, which is complete. Raises OSError."""
    if is_marked(fd, MARK):
        os.removexattr(fd, MARK)


def identity(status: os.stat_result) -> bytes:
    """Return the value of a folder's mark: its device and inode."""
    return b"%d:%d" % (status.st_dev, status.st_ino)


def is_there(folder: int, name: bytes) -> bool:
    """Whether the name exists. Another writer may have removed a new file before it was locked.

    Inode numbers and link counts do not tell: some file systems invent them.
    """
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in ABSENT:
            raise
        return False
    return True


def rename_new(folder: int, name: bytes, new: bytes) -> None:
    """Rename a file in an open folder, but never replace another one. Raises OSError, such as FileExistsError."""
    try:
        os.link(name, new, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (*NO_LINKS, *_NO_ROOM):
            raise
        # For folders, and without hard links or room for one, a check before the rename is all that is possible.
        if is_there(folder, new):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        os.rename(name, new, src_dir_fd=folder, dst_dir_fd=folder)
    else:
        with contextlib.suppress(OSError):  # the next writer removes a temporary name
            os.unlink(name, dir_fd=folder)


def is_named(folder: int | None, name: bytes, fd: int) -> bool:
    """Whether the name leads to the open file ``fd``. folder: open; None: the name is an absolute path."""
    try:
        return os.path.samestat(os.stat(name, dir_fd=folder, follow_symlinks=False), os.fstat(fd))
    except OSError:
        return False


def remove_folder(parent: int, name: bytes, fd: int) -> None:
    """Remove a temporary folder, open as ``fd``, as far as possible; not if it was renamed."""
    with contextlib.suppress(OSError):
        if is_there(parent, name):
            remove_content(fd)
            os.rmdir(name, dir_fd=parent)
