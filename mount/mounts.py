"""What is mounted where: ``/proc/thread-self/mountinfo``, which is read without touching any of the file systems."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from fffs.paths import PathLike, named

TYPE = "fuse.fffs"


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo. ``device`` is ``major:minor``; no other file system has it as long as this one lives."""

    number: str
    device: str
    path: str
    type: str
    source: str

    @property
    def ours(self) -> bool:
        """Whether fffs serves it."""
        return self.type == TYPE


def mount_at(path: str) -> Mount | None:
    """The mount whose mount point is exactly this absolute path, the topmost one if there are several."""
    found = None
    for mount in _mounts():
        if mount.path == path:
            found = mount  # what is mounted over something else comes after it
    return found


def mount_of(fd: int) -> Mount | None:
    """The mount that an open descriptor is in, without asking its file system, as fstat would."""
    with open(f"/proc/thread-self/fdinfo/{fd}", encoding="ascii") as lines:
        number = dict(line.split() for line in lines if line.startswith("mnt_id:")).get("mnt_id:")
    return next((mount for mount in _mounts() if mount.number == number), None)


def _mounts() -> Iterator[Mount]:
    with open("/proc/thread-self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        yield from map(_parse, lines)


def _parse(line: str) -> Mount:
    """``36 35 98:0 / /mnt/point rw,noatime master:1 - ext3 /dev/root rw``: see proc_pid_mountinfo(5)."""
    fields = line.rstrip("\n").split(" ")
    dash = fields.index("-", 6)
    return Mount(fields[0], fields[2], _unescape(fields[4]), fields[dash + 1], _unescape(fields[dash + 2]))


def _unescape(text: str) -> str:
    """Space, tab, newline and backslash are written as ``\\040`` and so on."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def canonical(mountpoint: PathLike) -> str:
    """A mount point as mountinfo spells it: absolute, links resolved.

    The last component is looked at only when nothing is mounted there: looking at a dead or stuck mount fails or hangs.
    UsageError for an empty one.
    """
    path = os.path.abspath(named(mountpoint, "the mount point"))
    parent, name = os.path.split(path)
    candidate = os.path.join(os.path.realpath(parent), name) if name else "/"
    return candidate if mount_at(candidate) else os.path.realpath(path)
