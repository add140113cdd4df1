"""Scanning a folder that is to be packed: its tree, and the files whose bytes are to be copied."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field

from fffs.errors import ReadError, SourceChangedError, SourceNotFoundError, UsageError
from fffs.treebuilder import TreeBuilder

KINDS = {stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}


@dataclass(frozen=True)
class FileToPack:
    """A regular file as it was when the folder was scanned; packing it later notices when it is another."""

    path: bytes
    size: int
    identity: tuple[int, int, int, int]  # device, inode, size, mtime in nanoseconds


def identity(status: os.stat_result) -> tuple[int, int, int, int]:
    """What must be the same for a file to count as unchanged."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


@dataclass
class Scan:
    """A scanned folder: the builder with every name in it, and files[k], whose bytes become record k."""

    builder: TreeBuilder
    files: list[FileToPack] = field(default_factory=list)
    total_bytes: int = 0


def scan_folder(folder: bytes, skip: set[tuple[int, int]], warn: Callable[[str], None]) -> Scan:
    """Scan a folder depth first, each folder's names by their bytes: the order of the records.

    Args:
        folder: its path.
        skip: (device, inode) of files that are left out silently: the output itself.
        warn: gets a line for everything that cannot be packed and is left out.

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
    scan = Scan(TreeBuilder(_mode(status), status.st_mtime_ns))
    linked: dict[tuple[int, int], int] = {}  # (device, inode) of files with several names -> node
    stack = [(0, iter(_children(folder)))]
    while stack:
        parent, children = stack[-1]
        for entry in children:
            status = _status(entry)
            if (status.st_dev, status.st_ino) in skip:
                continue
            if stat.S_ISDIR(status.st_mode):
                node = scan.builder.add_directory(parent, entry.name, _mode(status), status.st_mtime_ns)
                stack.append((node, iter(_children(entry.path))))
                break
            _add(scan, linked, parent, entry, status, warn)
        else:
            stack.pop()
    return scan


def _mode(status: os.stat_result) -> int:
    return status.st_mode & 0o177777


def _children(path: bytes) -> list[os.DirEntry[bytes]]:
    try:
        with os.scandir(path) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
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
    return SourceChangedError(f"{os.fsdecode(path)}: vanished while the folder was packed; pack it when nobody changes it")


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
    key = (status.st_dev, status.st_ino)
    if kind in KINDS:
        warn(f"{os.fsdecode(entry.path)}: a {KINDS[kind]}, left out")
        return
    if key in linked:
        scan.builder.add_link(parent, entry.name, linked[key])
        return
    if kind == stat.S_IFLNK:
        try:
            target = os.readlink(entry.path)
        except OSError:
            raise _vanished(entry.path) from None
        node = scan.builder.add_symlink(parent, entry.name, target, _mode(status), status.st_mtime_ns)
    else:
        node = scan.builder.add_file(parent, entry.name, len(scan.files), _mode(status), status.st_mtime_ns)
        scan.files.append(FileToPack(entry.path, status.st_size, identity(status)))
        scan.total_bytes += status.st_size
    if status.st_nlink > 1:
        linked[key] = node
