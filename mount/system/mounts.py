"""The table of mounts, ``/proc/thread-self/mountinfo``. Reading it touches none of the file systems."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass

from fffs.base.descriptors import describe
from fffs.base.paths import PathLike, absolute_path, named
from fffs.errors import MountError

TABLE = "/proc/thread-self/mountinfo"
TYPE = "fuse.fffs"
# What the source of a mount of ours that the kernel serves alone begins with, and the type of such a mount.
IN_KERNEL, KERNEL_TYPE = "fffs:", "erofs"

# <linux/fcntl.h>, <linux/stat.h>: AT_FDCWD; AT_SYMLINK_NOFOLLOW, AT_NO_AUTOMOUNT and AT_STATX_DONT_SYNC; the bit of
# stx_mask that tells of stx_mnt_id; the offset of stx_mnt_id; the size of struct statx.
_AT_FDCWD, _STATX_FLAGS, _STATX_MNT_ID, _MNT_ID_OFFSET, _STATX_SIZE = -100, 0x100 | 0x800 | 0x4000, 0x1000, 144, 256
# Linux 6.8: the number in stx_mnt_id that no other mount gets later; AT_EMPTY_PATH; statmount(2) and struct mnt_id_req.
_STATX_MNT_ID_UNIQUE, _AT_EMPTY_PATH, _STATMOUNT, _BASIC = 0x4000, 0x1000, 457, 2
_MNT_ID_REQ = struct.Struct("=IIQQ")

_libc = ctypes.CDLL(None, use_errno=True)

# Guards tables that stay open. The kernel returns a page of the table at a time, and starts over if a read continues
# elsewhere than the last one ended: with two readers, a change meanwhile would hide lines that did not change.
_reading = threading.Lock()


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo. ``device`` is ``major:minor``, unique while the file system exists."""

    number: str
    device: str
    path: str
    type: str
    source: str
    writable: bool = False
    """Whether the file system is writable. Then each mount of it may be."""

    @property
    def ours(self) -> bool:
        """Whether it is a mount of fffs."""
        return self.type == TYPE or self.in_kernel

    @property
    def origin(self) -> str:
        """The sources as the user named them."""
        return self.source.removeprefix(IN_KERNEL) if self.in_kernel else self.source

    @property
    def in_kernel(self) -> bool:
        """Whether it is a mount of fffs that has no daemon."""
        return self.type == KERNEL_TYPE and self.source.startswith(IN_KERNEL)


def mount_at(path: str, table: int | None = None) -> Mount | None:
    """Return the mount with exactly this absolute path as its mount point that the path leads to: the topmost.

    Its daemon may be dead or stuck. The order of the table does not tell which is the topmost: mounts can be moved, and
    put beneath others.
    """
    found = [mount for mount in mounts(table) if mount.path == path]
    if not any(mount.ours for mount in found):
        return found[-1] if found else None  # which one is of no interest, and NFS may wait for its server
    try:
        number = _number_at(path)
    except (FileNotFoundError, NotADirectoryError):
        return None  # hidden by a mount over a folder above
    except OSError:  # no permission, or a dead mount above: umount2(2) fails, too
        number = ""
    return next((mount for mount in found if mount.number == number), None) if number else found[-1]


def cover_of(mount: Mount, table: int | None = None) -> Mount | None:
    """Return the mount that hides a mount: it is over that, or over a folder above it. None: the path leads to it."""
    top = mount_at(mount.path, table)
    if top:
        return None if top.number == mount.number else top
    folder, number = mount.path, None
    while number is None:
        try:
            number = _number_at(folder)
        except OSError:
            if folder == os.sep:
                return None
            folder = os.path.dirname(folder)
    return next((other for other in mounts(table) if other.number == number), None)


def _number_at(path: str) -> str:
    """Return the number of the mount that a path leads to, or an empty string if the kernel does not tell (before Linux
    5.8). Raises OSError.

    Needs neither /proc nor a descriptor, which would make the mount busy. Asks for no attributes, so that a FUSE file
    system gets no request and does not refuse other users.
    """
    number = _statx_mount(_AT_FDCWD, path, 0, 0, _STATX_MNT_ID)
    return "" if number is None else str(number)


def number_below(folder: int, name: str) -> str:
    """As ``_number_at``, of a name in an open folder, for which every kernel tells. Raises OSError."""
    number = _statx_mount(folder, name, 0, 0, _STATX_MNT_ID)
    if number is not None:
        return str(number)
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        return number_of(fd)
    finally:
        os.close(fd)


def _statx_mount(dir_fd: int, path: str, flags: int, asked: int, told: int) -> int | None:
    """Return stx_mnt_id of statx(2), or None if the kernel does not tell. Raises OSError.

    Before Linux 4.11 there is no such call, and some sandboxes forbid it; glibc then emulates it without the flags.

    asked: the mask of the call. told: the bit in the mask of its answer.
    """
    if not hasattr(_libc, "statx"):  # a C library before 2018
        return None
    status = ctypes.create_string_buffer(_STATX_SIZE)
    if _libc.statx(dir_fd, os.fsencode(path), _STATX_FLAGS | flags, asked, status) != 0:
        if ctypes.get_errno() in (errno.ENOSYS, errno.EINVAL, errno.EPERM):
            return None
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    if not int.from_bytes(status.raw[:4], sys.byteorder) & told:
        return None
    return int.from_bytes(status.raw[_MNT_ID_OFFSET : _MNT_ID_OFFSET + 8], sys.byteorder)


def number_of(fd: int) -> str:
    """Return the number of the mount of an open descriptor, without asking its file system. Raises OSError."""
    with open(f"/proc/thread-self/fdinfo/{fd}", "rb") as lines:
        return next((line.split()[1].decode() for line in lines if line.startswith(b"mnt_id:")), "")


@dataclass(frozen=True)
class MountIdentity:
    """Which mount a mount is, also after it was moved. ``unique`` is 0 where the kernel has no such number.

    The kernel gives ``number`` and ``device`` to others as soon as the mount is gone.
    """

    number: str
    device: str
    source: str
    unique: int

    def find(self) -> Mount | None:
        """Return the mount as it is now; None if it was unmounted. Raises MountError."""
        same = (self.number, self.source)
        found = next((mount for mount in mounts(device=self.device) if (mount.number, mount.source) == same), None)
        return found if found and _may_exist(self.unique) else None


def identity_of(fd: int, source: str) -> MountIdentity:
    """Return the identity of the mount of an open descriptor, which need not be mounted yet. Raises OSError."""
    device, unique = os.fstat(fd).st_dev, None
    with suppress(OSError):
        unique = _statx_mount(fd, "", _AT_EMPTY_PATH, _STATX_MNT_ID_UNIQUE, _STATX_MNT_ID_UNIQUE)
    return MountIdentity(number_of(fd), f"{os.major(device)}:{os.minor(device)}", source, unique or 0)


def _may_exist(unique: int) -> bool:
    """Whether there is a mount of this unique number, or the kernel does not tell."""
    request, answer = _MNT_ID_REQ.pack(_MNT_ID_REQ.size, 0, unique, _BASIC), ctypes.create_string_buffer(512)
    arguments = (ctypes.c_char_p(request), answer, ctypes.c_size_t(len(answer)), ctypes.c_uint(0))
    return not unique or _libc.syscall(ctypes.c_long(_STATMOUNT), *arguments) == 0 or ctypes.get_errno() != errno.ENOENT


def mount_of(fd: int, table: int | None = None) -> Mount | None:
    """Return the mount of an open descriptor, without asking its file system as fstat would. Raises OSError."""
    number = number_of(fd)
    return next((mount for mount in mounts(table) if mount.number == number), None)


def mounts(table: int | None = None, device: str | None = None) -> list[Mount]:
    """Return all mounts, or those of a device, that this thread can see, or that an open table shows.

    Raises:
        MountError: the table cannot be read.

    """
    if table is not None:
        return read_table(table, device)
    table = open_table()
    try:
        return _parse_table(_content(table), device)  # without the lock, which may be held in a forked child
    finally:
        os.close(table)


def open_table() -> int:
    """Open the table of mounts. Reading it later needs neither /proc nor another descriptor.

    Raises:
        MountError: it cannot be opened.

    """
    try:
        return os.open(TABLE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise MountError(f"{TABLE}: not there; mount /proc first: mount -t proc proc /proc") from None
    except OSError as error:
        raise MountError(f"{TABLE}: cannot read: {describe(error)}") from None


def read_table(table: int, device: str | None = None) -> list[Mount]:
    """Return the mounts in an open mountinfo. May be called from several threads at once.

    device: return only those of this file system, ``major:minor``. Thousands of others then cost little.
    """
    with _reading:
        content = _content(table)
    return _parse_table(content, device)


def _content(table: int) -> bytes:
    content = bytearray()
    try:
        while piece := os.pread(table, 1 << 16, len(content)):
            content += piece
    except OSError as error:
        raise MountError(f"{TABLE}: cannot read: {error.strerror}") from None
    return bytes(content)


def _parse_table(content: bytes, device: str | None) -> list[Mount]:
    """Parse the table, in which every user can choose names. The kernel escapes only space, tab, newline, backslash and
    #. Names may contain all other bytes, also those that Python takes for line ends, and invalid UTF-8.
    """
    lines = content.split(b"\n")
    if device is not None:
        word = b" %s " % os.fsencode(device)
        lines = [line for line in lines if word in line]
    found = [mount for line in lines if (mount := _parse(line))]
    return found if device is None else [mount for mount in found if mount.device == device]


def _parse(line: bytes) -> Mount | None:
    """``36 35 98:0 / /mnt/point rw,noatime master:1 - ext3 /dev/root rw``: see proc_pid_mountinfo(5)."""
    fields = line.split(b" ")
    try:
        kind, source, options, *_ = fields[fields.index(b"-", 6) + 1 :]
    except ValueError:
        return None  # the end, or a line of a future kernel
    number, device, point = map(_decode, (fields[0], fields[2], fields[4]))
    writable = options.split(b",")[0] == b"rw"
    return Mount(number, device, point, _decode(kind), _decode(source), writable)


def _decode(field: bytes) -> str:
    """Decode ``\\040`` and so on: space, tab, newline and backslash."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), os.fsdecode(field))


def canonical(mountpoint: PathLike) -> str:
    """Return a mount point as mountinfo has it: absolute, with links resolved. Raises UsageError for an empty name.

    The last component is examined only if nothing is mounted there: examining a dead or stuck mount fails or hangs.
    """
    path = absolute_path(named(mountpoint, "the mount point"))
    parent, name = os.path.split(path)
    candidate = os.path.join(os.path.realpath(parent), name) if name else "/"
    return candidate if mount_at(candidate) else os.path.realpath(path)
