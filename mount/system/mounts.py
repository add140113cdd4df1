"""What is mounted where: ``/proc/thread-self/mountinfo``, which is read without touching any of the file systems."""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass

from fffs.base.descriptors import describe_shortage
from fffs.base.paths import PathLike, named
from fffs.errors import MountError

TABLE = "/proc/thread-self/mountinfo"
TYPE = "fuse.fffs"

# For whom a table is kept open. The kernel gives a page of it at a time, and starts over for a reader who continues
# elsewhere than the last one: with two at once, a change meanwhile would hide lines that did not change.
_reading = threading.Lock()


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo. ``device`` is ``major:minor``; no other file system has it as long as this one lives."""

    number: str
    device: str
    path: str
    type: str
    source: str
    writable: bool = False
    """Whether the file system is. Then each mount of it may be."""

    @property
    def ours(self) -> bool:
        """Whether fffs serves it."""
        return self.type == TYPE


def mount_at(path: str, table: int | None = None) -> Mount | None:
    """The mount whose mount point is exactly this absolute path, the topmost one if there are several."""
    found = None
    for mount in mounts(table):
        if mount.path == path:
            found = mount  # what is mounted over something else comes after it
    return found


def mount_of(fd: int, table: int | None = None) -> Mount | None:
    """The mount that an open descriptor is in, without asking its file system, as fstat would. Raises OSError."""
    with open(f"/proc/thread-self/fdinfo/{fd}", "rb") as lines:
        number = next((line.split()[1].decode() for line in lines if line.startswith(b"mnt_id:")), None)
    return next((mount for mount in mounts(table) if mount.number == number), None)


def mounts(table: int | None = None, device: str | None = None) -> list[Mount]:
    """All mounts, or those of a device, that this thread could reach, or that were seen where the table was opened.

    Raises:
        MountError: the table cannot be read.

    """
    if table is not None:
        return read_table(table, device)
    table = open_table()
    try:
        return _parse_table(_content(table), device)  # without the lock, which a child of fork may find taken
    finally:
        os.close(table)


def open_table() -> int:
    """A descriptor of the table of mounts. Whoever keeps it needs neither /proc nor another descriptor later on.

    Raises:
        MountError: with the reason.

    """
    try:
        return os.open(TABLE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise MountError(f"{TABLE}: not there; mount /proc first: mount -t proc proc /proc") from None
    except OSError as error:
        raise MountError(f"{TABLE}: cannot read: {describe_shortage(error) or error.strerror}") from None


def read_table(table: int, device: str | None = None) -> list[Mount]:
    """The mounts in an open mountinfo. May be called from several threads at once.

    device: only those of this file system, ``major:minor``. The others, of which there may be thousands, cost little.
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
    """Every user of this machine has a part in it. Nothing is escaped but space, tab, newline, backslash and #: other
    characters that end lines or separate words elsewhere, and bytes of no encoding, are parts of names.
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
        return None  # the end, or a line of a kernel to come
    number, device, point = map(_decode, (fields[0], fields[2], fields[4]))
    writable = options.split(b",")[0] == b"rw"
    return Mount(number, device, point, _decode(kind), _decode(source), writable)


def _decode(field: bytes) -> str:
    """Space, tab, newline and backslash are written as ``\\040`` and so on."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), os.fsdecode(field))


def canonical(mountpoint: PathLike) -> str:
    """A mount point as mountinfo spells it: absolute, links resolved.

    The last component is looked at only when nothing is mounted there: looking at a dead or stuck mount fails or hangs.
    UsageError for an empty one.
    """
    path = os.path.abspath(named(mountpoint, "the mount point"))
    parent, name = os.path.split(path)
    candidate = os.path.join(os.path.realpath(parent), name) if name else "/"
    return candidate if mount_at(candidate) else os.path.realpath(path)
