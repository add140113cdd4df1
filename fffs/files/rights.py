"""Rights: who may read a new file that replaces an old one, or lies beside one: those who may read that one."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import dataclass

from fffs.files.dirfd import close

_ACL = "system.posix_acl_access"
_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
PERMISSIONS = 0o777  # never set-user-ID, set-group-ID or sticky bits: the content is another
# What a file system says without modes or times, or where what we made is somebody else's: FAT, some FUSE and shares.
_UNSETTABLE = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)


def new_mode(wanted: int) -> int:
    """What the umask leaves of the mode of something new. It can be read in /proc; where that is not mounted, only by
    setting it, and what another thread makes meanwhile is its user's alone. Raises OSError.
    """
    try:
        # Bytes, in which only \n ends a line: the name of a process, which is in there, may have a \r.
        with open("/proc/self/status", "rb") as status:
            return wanted & ~next(int(line.split()[1], 8) for line in status if line.startswith(b"Umask:"))
    except (FileNotFoundError, StopIteration):
        mask = os.umask(0o077)
        os.umask(mask)
        return wanted & ~mask


def set_mode(fd: int, mode: int) -> bool:
    """Set a mode; False where its file system does not let us. Raises OSError."""
    try:
        os.fchmod(fd, mode)
    except OSError as error:
        if error.errno not in _UNSETTABLE:
            raise
        return False
    return True


def set_time(target: int | bytes, mtime: int, place: int | None = None) -> bool:
    """Set the times of what is open, or of what has that name in the open folder; as ``set_mode``."""
    try:
        os.utime(target, ns=(mtime, mtime), dir_fd=place, follow_symlinks=place is None)
    except OSError as error:
        if error.errno not in _UNSETTABLE:
            raise
        return False
    return True


@dataclass(frozen=True)
class Rights:
    """Of a file or folder: its permission bits, owner and group, and its access control list as bytes, if it has one.

    ``trusted``: somebody who may decide that has set them, and not just anybody who may write to the same folder and
    wants to read, or own, what will be there.
    """

    mode: int
    uid: int
    gid: int
    acl: bytes | None
    trusted: bool

    def give(self, fd: int, usual: int) -> None:
        """Give them to what is open as fd, as far as we may; never wider ones. usual: the mode without a model. Raises
        OSError.
        """
        if self.trusted:
            self._give_owner(fd)
        mode, kept = self.mode, os.fstat(fd).st_gid == self.gid
        if not kept:  # those in the new group, and those in the old one, get what both had
            both = (mode >> 3) & mode & 0o7
            mode = mode & 0o700 | both << 3 | both
        if not self._give_list(fd, kept and self.trusted) and self.acl is not None:
            mode &= ~0o070  # which are those of the list's mask, and not of the group
        set_mode(fd, mode if self.trusted else (mode | 0o700) & usual)

    def _give_list(self, fd: int, wanted: bool) -> bool:
        """Whether it has the access control list now; else it has none."""
        if self.acl is not None and wanted:
            try:
                os.setxattr(fd, _ACL, self.acl)
            except OSError:
                pass
            else:
                return True
        with contextlib.suppress(OSError):  # it may have one of the folder it is in; mostly it has none
            os.removexattr(fd, _ACL)
        return False

    def _give_owner(self, fd: int) -> None:
        own = os.fstat(fd)
        if (own.st_uid, own.st_gid) != (self.uid, self.gid):
            try:
                os.fchown(fd, self.uid, self.gid)
            except OSError:
                with contextlib.suppress(OSError):
                    os.fchown(fd, -1, self.gid)


def rights_of(fd: int, bits: int = PERMISSIONS) -> Rights:
    """Those of what is open as fd, for something that belongs to it. bits: which are to be taken. Raises OSError."""
    status = os.fstat(fd)
    return Rights(status.st_mode & bits, status.st_uid, status.st_gid, _read_acl(fd), True)


def rights_at(place: int, name: bytes, kind: int) -> Rights | None:
    """Those of what has that name in the folder open as place; None where it is not of that kind (S_IFREG, S_IFDIR).
    Raises OSError.
    """
    try:
        status = os.stat(name, dir_fd=place, follow_symlinks=False)
    except FileNotFoundError:
        return None
    acl, closed = None, 0
    try:
        fd = os.open(name, _LOOK, dir_fd=place)
    except OSError:  # we may not read it
        acl, known = _read_acl_at(place, name)
        closed = 0 if known else 0o070  # whether these bits mean the group cannot be found out
    else:
        try:
            status, acl = os.fstat(fd), _read_acl(fd)  # both of one file, whatever gets that name meanwhile
        finally:
            close(fd)
    if stat.S_IFMT(status.st_mode) != kind:
        return None
    mode = status.st_mode & PERMISSIONS & ~closed
    return Rights(mode, status.st_uid, status.st_gid, acl, _is_trusted(os.stat(".", dir_fd=place)))


def _read_acl_at(place: int, name: bytes) -> tuple[bytes | None, bool]:
    """The same of what has that name in an open folder, and whether it is known. Needs /proc."""
    try:
        return os.getxattr(b"/proc/self/fd/%d/%b" % (place, name), _ACL, follow_symlinks=False), True
    except OSError as error:
        return None, error.errno in (errno.ENODATA, errno.EOPNOTSUPP)


def _is_trusted(folder: os.stat_result) -> bool:
    """Whether nobody else may have put there what is in the folder. Whose it is says nothing: where others may write,
    they give our own files other names, and link to them.
    """
    return folder.st_uid in (0, os.geteuid()) and not folder.st_mode & 0o022


def _read_acl(fd: int) -> bytes | None:
    try:
        return os.getxattr(fd, _ACL)
    except OSError:  # there is none, or there are none on this file system
        return None
