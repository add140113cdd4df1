"""Rights: owner, mode and ACL that a new file takes from the one that it replaces or belongs to."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from fffs.base.paths import random_name
from fffs.files.dirfd import close

_ACL = "system.posix_acl_access"
_DEFAULT_ACL = "system.posix_acl_default"
_LISTS = (_ACL, _DEFAULT_ACL)
_OURS = "user.fffs."  # marks of temporary folders and of mount points
_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
PERMISSIONS = 0o777  # never set-user-ID, set-group-ID or sticky bits: the content is new
# Errors of file systems without modes or times, or on which new files belong to another user: FAT, some FUSE, shares.
_UNSETTABLE = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)


# linux/posix_acl_xattr.h: a version of 4 bytes, then entries of a tag, permissions and a user or group.
_ENTRY = struct.Struct("<HHI")
_OWNER, _GROUP, _MASK, _OTHERS = 0x01, 0x04, 0x10, 0x20


def new_mode(wanted: int, folder: int) -> int:
    """Return the mode that open(2) or mkdir(2) would give a new file in an open folder. Raises OSError.

    If the folder has a default access control list, that limits it, otherwise the umask. With a mask in the list, the
    bits of the group are those of the mask.
    """
    limits = _default_permissions(folder)
    if not limits:
        return wanted & ~_read_umask()
    group = limits.get(_MASK, limits.get(_GROUP, 0))
    return wanted & (limits.get(_OWNER, 0) << 6 | group << 3 | limits.get(_OTHERS, 0))


def _default_permissions(folder: int) -> dict[int, int]:
    """Return the permissions of each tag in a folder's default list; empty if it has none or, without /proc, it cannot
    be read.
    """
    try:
        acl = os.getxattr(b"/proc/self/fd/%d" % folder, _DEFAULT_ACL)  # the folder may be open with O_PATH only
    except OSError:
        return {}
    entries = len(acl) // _ENTRY.size
    return {tag: bits & 0o7 for tag, bits, _ in _ENTRY.iter_unpack(acl[4 : 4 + entries * _ENTRY.size])}


def _read_umask() -> int:
    """Return the umask, as /proc tells it. Without /proc, it must be set to be read; a file that another thread creates
    meanwhile is private to its user. Raises OSError.
    """
    try:
        # Bytes split only at \n: the name of a process, which is in there, may contain \r.
        with open("/proc/self/status", "rb") as status:
            return next(int(line.split()[1], 8) for line in status if line.startswith(b"Umask:"))
    except (FileNotFoundError, StopIteration):
        mask = os.umask(0o077)
        os.umask(mask)
        return mask


def set_mode(fd: int, mode: int) -> bool:
    """Set a mode. Returns False if the file system does not support that. Raises OSError."""
    try:
        os.fchmod(fd, mode)
    except OSError as error:
        if error.errno not in _UNSETTABLE:
            raise
        return False
    return True


def set_time(target: int | bytes, mtime: int, place: int | None = None) -> bool:
    """Set the times of an open file, or of a name in the open folder ``place``. Returns and raises as ``set_mode``."""
    try:
        os.utime(target, ns=(mtime, mtime), dir_fd=place, follow_symlinks=place is None)
    except OSError as error:
        if error.errno not in _UNSETTABLE:
            raise
        return False
    return True


@dataclass(frozen=True)
class Rights:
    """Permission bits, owner, group and access control list (as bytes, if there is one) of a file.

    ``trusted``: no other user can have put the file there. In a folder that others may write to, they could plant one
    to be able to read or own the file that replaces it.
    """

    mode: int
    uid: int
    gid: int
    acl: bytes | None
    trusted: bool

    def give(self, fd: int, usual: int) -> None:
        """Give these rights to an open file as far as permitted; never wider ones. Raises OSError.

        usual: the mode of a file that replaces none.
        """
        if self.trusted:
            self._give_owner(fd)
        mode, kept = self.mode, os.fstat(fd).st_gid == self.gid
        if not kept:  # members of the new group and others get what both had
            both = (mode >> 3) & mode & 0o7
            mode = mode & 0o700 | both << 3 | both
        if not self._give_list(fd, kept and self.trusted) and self.acl is not None:
            mode &= ~0o070  # with a list, these bits are its mask, not the group's
        set_mode(fd, mode if self.trusted else (mode | 0o700) & usual)

    def _give_list(self, fd: int, wanted: bool) -> bool:
        """Set the access control list. Returns whether the file has it; otherwise it has none."""
        if self.acl is not None and wanted:
            try:
                os.setxattr(fd, _ACL, self.acl)
            except OSError:
                pass
            else:
                return True
        with contextlib.suppress(OSError):  # remove a default list of the folder; usually there is none
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
    """Return the rights of an open file, for a file that belongs to it. bits: a mask for the mode. Raises OSError."""
    status = os.fstat(fd)
    return Rights(status.st_mode & bits, status.st_uid, status.st_gid, _read_acl(fd), True)


def rights_at(place: int, name: bytes) -> Rights | None:
    """Return the rights of a name in the open folder ``place``; None if it is no regular file. Raises OSError."""
    try:
        status = os.stat(name, dir_fd=place, follow_symlinks=False)
    except FileNotFoundError:
        return None
    acl, closed = None, 0
    try:
        fd = os.open(name, _LOOK, dir_fd=place)
    except OSError:  # no permission to read it
        acl, known = _read_acl_at(place, name)
        closed = 0 if known else 0o070  # it is unknown whether these bits are the group's or a mask
    else:
        try:
            status, acl = os.fstat(fd), _read_acl(fd)  # both of the same file, even if the name changes
        finally:
            close(fd)
    if not stat.S_ISREG(status.st_mode):
        return None
    mode = status.st_mode & PERMISSIONS & ~closed
    return Rights(mode, status.st_uid, status.st_gid, acl, is_trusted(place))


def _read_acl_at(place: int, name: bytes) -> tuple[bytes | None, bool]:
    """Return the list of a name in an open folder, and whether it could be read. Needs /proc."""
    try:
        return os.getxattr(b"/proc/self/fd/%d/%b" % (place, name), _ACL, follow_symlinks=False), True
    except OSError as error:
        return None, error.errno in (errno.ENODATA, errno.EOPNOTSUPP)


def is_trusted(folder: int) -> bool:
    """Whether no other user can have put files into an open folder. Raises OSError.

    The owner of a file does not tell: users who may write to a folder can rename our files, and make links to them.
    """
    status = os.fstat(folder)
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o022


def is_private(folder: int) -> bool:
    """As ``is_trusted``, also where a server gives what this user makes to another one, as NFS does with root_squash.

    Then a new file in the folder shows whose it is. Raises OSError.
    """
    status = os.fstat(folder)
    if is_trusted(folder) or status.st_mode & 0o022:
        return not status.st_mode & 0o022
    name = f".{random_name(6)}"
    try:
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    except OSError:  # another user's
        return False
    try:
        return os.fstat(fd).st_uid == status.st_uid
    finally:
        os.close(fd)
        os.unlink(name, dir_fd=folder)


def _read_acl(fd: int) -> bytes | None:
    try:
        return os.getxattr(fd, _ACL)
    except OSError:  # there is none, or the file system has no lists
        return None


def attributes_of(fd: int) -> Mapping[str, object]:
    """Return the access control lists and the ``user.*`` attributes of an open file, without the bits of its mode
    and our marks.

    The others are those of the file system, and two new folders may differ in them: ``security.*``, ``trusted.*`` of
    Lustre, ``system.nfs4_acl`` with the mode in it. Raises OSError.
    """
    try:
        names = os.listxattr(fd)
    except OSError:  # the file system has none
        return {}
    kept = (name for name in names if name in _LISTS or (name.startswith("user.") and not name.startswith(_OURS)))
    found = {name: os.getxattr(fd, name) for name in kept}
    return found | {_ACL: _without_mode(found[_ACL])} if _ACL in found else found


def _without_mode(acl: bytes) -> list[tuple[int, ...]]:
    """Return the entries of an access control list, without the permissions that are bits of the mode."""
    entries = list(_ENTRY.iter_unpack(acl[4:]))
    group = _MASK if any(tag == _MASK for tag, _, _ in entries) else _GROUP
    return [(tag, 0 if tag in (_OWNER, group, _OTHERS) else bits, whose) for tag, bits, whose in entries]


# <linux/fs.h>: FS_IOC_GETFLAGS; and of its flags those that users set: FS_FL_USER_MODIFIABLE and the bits of encrypted,
# not copied on write, DAX, inherited projects, and names without case. Others tell how a folder is stored.
_GETFLAGS, _FLAGS = 0x80086601, 0x000380FF | 0x800 | 0x800000 | 0x2000000 | 0x20000000 | 0x40000000


def flags_of(fd: int) -> int:
    """Return the flags of an open file that chattr(1) and encryption set; 0 on a file system without flags."""
    value = bytearray(8)
    try:
        fcntl.ioctl(fd, _GETFLAGS, value)
    except OSError:
        return 0
    return int.from_bytes(value[:4], sys.byteorder) & _FLAGS
