"""Scanning a folder that is to be packed: its tree, and the files whose bytes are to be copied."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field

from fffs.atomic import temporary_names
from fffs.errors import ReadError, SourceChangedError, SourceNotFoundError, UsageError
from fffs.treebuilder import TreeBuilder

KINDS = {stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}
# What the time of a node can be, in nanoseconds since 1970.
MTIME_MIN, MTIME_MAX = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class FileToPack:
    """A regular file as it was when the folder was scanned; packing it later notices when it is another."""

    path: bytes
    size: int
    identity: tuple[int, int, int, int]  # device, inode, size, mtime in nanoseconds


def identity(status: os.stat_result) -> tuple[int, int, int, int]:
    """What must be the same for a file to count as unchanged."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class Output:
    """The file that the scanned folder is packed into. Where it lies inside, it and its temporary files are left out.

    It is told by the folder it is in and its name: what is there now may have other names, which are packed.
    """

    def __init__(self, path: bytes) -> None:
        """Raises OSError when there is no folder to write it to."""
        folder, self._name = os.path.split(path)
        self._folder = _place(os.stat(folder or b"."))
        self._temporary = temporary_names(self._name)

    def is_in(self, status: os.stat_result) -> bool:
        """Whether the folder with that status holds it."""
        return self._folder == _place(status)

    def is_named(self, name: bytes) -> bool:
        """Whether the name is its own or one of its temporary files'."""
        return name == self._name or self._temporary.fullmatch(name) is not None


def _place(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


@dataclass
class Scan:
    """A scanned folder: the builder with every name in it, and files[k], whose bytes become record k."""

    builder: TreeBuilder
    files: list[FileToPack] = field(default_factory=list)
    total_bytes: int = 0


def scan_folder(folder: bytes, output: Output | None, warn: Callable[[str], None]) -> Scan:
    """Scan a folder depth first, each folder's names by their bytes: the order of the records.

    Args:
        folder: its path.
        output: left out silently where it lies inside.
        warn: gets a line for everything that cannot be packed as it is.

    Raises:
        SourceNotFoundError, UsageError: it is not there, or no folder.
        ReadError: something in it cannot be read.
        SourceChangedError: something vanished meanwhile.

    """
    try:
        status = os.stat(folder)
    except FileNotFoundError:
        raise SourceNotFoundError(f"{os.fsdecode(folder)}: no such folder") from None
    except OSError as error:
        raise ReadError(error.errno or errno.EIO, os.fsdecode(folder)) from error
    if not stat.S_ISDIR(status.st_mode):
        raise UsageError(f"{os.fsdecode(folder)}: not a folder")
    scan = Scan(TreeBuilder(_mode(status), _mtime(status, folder, warn)))
    linked: dict[tuple[int, int], int] = {}  # (device, inode) of files with several names -> node
    stack = [(0, iter(_children(folder, status, output)))]
    while stack:
        parent, children = stack[-1]
        for entry in children:
            status = _status(entry)
            if stat.S_ISDIR(status.st_mode):
                mtime = _mtime(status, entry.path, warn)
                node = scan.builder.add_directory(parent, entry.name, _mode(status), mtime)
                stack.append((node, iter(_children(entry.path, status, output))))
                break
            _add(scan, linked, parent, entry, status, warn)
        else:
            stack.pop()
    return scan


def _mode(status: os.stat_result) -> int:
    return status.st_mode & 0o177777


def _mtime(status: os.stat_result, path: bytes, warn: Callable[[str], None]) -> int:
    """The time of modification, in as many nanoseconds as 64 bits can count."""
    mtime = min(max(status.st_mtime_ns, MTIME_MIN), MTIME_MAX)
    if mtime != status.st_mtime_ns:
        warn(f"{os.fsdecode(path)}: its time is not in the years 1678 to 2262; the nearest that is was packed")
    return mtime


def _children(path: bytes, status: os.stat_result, output: Output | None) -> list[os.DirEntry[bytes]]:
    inside = output if output and output.is_in(status) else None
    try:
        with os.scandir(path) as entries:
            found = [entry for entry in entries if not (inside and inside.is_named(entry.name))]
        return sorted(found, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        raise _vanished(path) from None
    except OSError as error:
        raise ReadError(error.errno or errno.EIO, os.fsdecode(path)) from error


def _status(entry: os.DirEntry[bytes]) -> os.stat_result:
    try:
        return entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        raise _vanished(entry.path) from None
    except OSError as error:
        raise ReadError(error.errno or errno.EIO, os.fsdecode(entry.path)) from error


def _vanished(path: bytes) -> SourceChangedError:
    return SourceChangedError(
        f"{os.fsdecode(path)}: vanished while the folder was packed; pack it when nobody changes it"
    )


def _add(
    scan: Scan,
    linked: dict[tuple[int, int], int],
    parent: int,
    entry: os.DirEntry[bytes],
    status: os.stat_result,
    warn: Callable[[str], None],
) -> None:
    """Add what is no folder: a file, a further name of a file, a symbolic link; or warn."""
    kind = stat.S_IFMT(status.st_mode)
    key = _place(status)
    if kind in KINDS:
        warn(f"{os.fsdecode(entry.path)}: a {KINDS[kind]}, left out")
        return
    if key in linked:
        scan.builder.add_link(parent, entry.name, linked[key])
        return
    mtime = _mtime(status, entry.path, warn)
    if kind == stat.S_IFLNK:
        try:
            target = os.readlink(entry.path)
        except OSError:
            raise _vanished(entry.path) from None
        node = scan.builder.add_symlink(parent, entry.name, target, _mode(status), mtime)
    else:
        node = scan.builder.add_file(parent, entry.name, len(scan.files), _mode(status), mtime)
        scan.files.append(FileToPack(entry.path, status.st_size, identity(status)))
        scan.total_bytes += status.st_size
    if status.st_nlink > 1:
        linked[key] = node
