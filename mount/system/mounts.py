"""The table of mounts, ``/proc/thread-self/mountinfo``. Reading it touches none of the file systems."""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass

from fffs.base.descriptors import describe
from fffs.base.paths import PathLike, named
from fffs.errors import MountError

TABLE = "/proc/thread-self/mountinfo"
TYPE = "fuse.fffs"

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
        return self.type == TYPE


def mount_at(path: str, table: int | None = None) -> Mount | None:
    """Return the mount with exactly this absolute path as its mount point; the topmost, if there are several."""
    found = None
    for mount in mounts(table):
        if mount.path == path:
            found = mount  # a mount over another one comes after it
    return found


def mount_of(fd: int, table: int | None = None) -> Mount | None:
    """Return the mount of an open descriptor, without asking its file system as fstat would. Raises OSError."""
    with open(f"/proc/thread-self/fdinfo/{fd}", "rb") as lines:
        number = next((line.split()[1].decode() for line in lines if line.startswith(b"mnt_id:")), None)
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
    path = os.path.abspath(named(mountpoint, "the mount point"))
    parent, name = os.path.split(path)
    candidate = os.path.join(os.path.realpath(parent), name) if name else "/"
    return candidate if mount_at(candidate) else os.path.realpath(path)
