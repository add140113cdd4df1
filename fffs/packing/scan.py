"""Scanning a folder before it is packed: finds its tree and the files to copy."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fffs.errors import ReadError, SourceChangedError, SourceNotFoundError, UnsupportedError, UsageError
from fffs.files.dirfd import PATH_MAX, Way, Ways, close
from fffs.files.file_systems import has_inode_numbers
from fffs.files.inodes import Reliability, digest, place
from fffs.files.temporary import temporary_names
from fffs.tree.builder import TreeBuilder

KINDS = {stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}
# Where inode numbers are not reliable: the most files with equal status that a further name is compared with.
ALIKE = 16
# The range of a node's modification time, in nanoseconds since 1970.
MTIME_MIN, MTIME_MAX = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class FileToPack:
    """A regular file as it was when the folder was scanned. Packing compares it to notice changes."""

    path: bytes  # relative to the folder that is packed
    size: int
    identity: Identity
    numbered: bool  # whether its inode number is reliable

    def is_same(self, status: os.stat_result) -> bool:
        """Return whether ``status`` shows this file unchanged."""
        return identity(status, self.numbered) == self.identity


Identity = tuple[int, int, int, int, int, int]
"""Device, inode, size, mtime and ctime in nanoseconds, type with mode."""


def identity(status: os.stat_result, numbered: bool = True) -> Identity:
    """Return the values that are equal as long as a file is unchanged. A writer can reset mtime, but not ctime.

    numbered: include the inode number. Where inode numbers are not reliable, the other values must suffice: opening the
    file by its path, without following links, ensures that it is the file of that name.
    """
    number = status.st_ino if numbered else 0
    return status.st_dev, number, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode


def nearest_mtime(nanoseconds: int, shown: Callable[[], str], warn: Callable[[str], None]) -> int:
    """Return the modification time, or the nearest that a node can have, and then warn with the name ``shown()``."""
    nearest = min(max(nanoseconds, MTIME_MIN), MTIME_MAX)
    if nearest != nanoseconds:
        warn(f"{shown()}: its time is outside the years 1678 to 2262; the nearest possible time was packed")
    return nearest


class ExcludedOutput:
    """The file that the scanned folder is packed into. If it lies inside, it and its temporary files are left out.

    It is recognised by its folder and name, not by its inode: other names of an existing output are packed.
    """

    def __init__(self, path: bytes) -> None:
        """Raises OSError when the folder to write to does not exist."""
        folder, self._name = os.path.split(path)
        self._path = os.path.realpath(folder or b".")
        fd = os.open(folder or b".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._folder, self._numbered = place(os.fstat(fd)), has_inode_numbers(fd)
        finally:
            close(fd)
        self._temporary = temporary_names(self._name)

    def is_in(self, status: os.stat_result, path: bytes) -> bool:
        """Return whether the output lies directly in the folder with that status and real path."""
        return self._folder == place(status) if self._numbered else self._path == path

    def is_named(self, name: bytes) -> bool:
        """Return whether the name is that of the output or of one of its temporary files."""
        return name == self._name or self._temporary.fullmatch(name) is not None


@dataclass
class Scan:
    """A scanned folder: the builder has every name in it, and the bytes of files[k] become record k."""

    builder: TreeBuilder
    files: list[FileToPack] = field(default_factory=list)
    total_bytes: int = 0
    holds_output: bytes | None = None
    """The path of the folder that the output lies in. Writing the output changes this folder's modification time."""


@dataclass(frozen=True)
class SourceFolder:
    """The folder that is packed, held open. Everything is reached from ``fd``, whatever is renamed during packing."""

    path: bytes
    fd: int
    ways: Ways
    real: bytes  # its path without symbolic links

    def shown(self, path: bytes) -> str:
        """Return the name of a path in the folder for messages."""
        return os.fsdecode(os.path.join(self.path, path) if path else self.path)


@contextlib.contextmanager
def open_source(folder: bytes) -> Iterator[SourceFolder]:
    """Open the folder that is to be packed for the duration of the block.

    Raises:
        SourceNotFoundError, UsageError: the path does not exist, or is not a folder.
        ReadError: the folder cannot be read.

    """
    try:
        if not stat.S_ISDIR(os.stat(folder).st_mode):
            raise UsageError(f"{os.fsdecode(folder)}: not a folder")
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise SourceNotFoundError(f"{os.fsdecode(folder)}: no such folder") from None
    except OSError as error:
        raise ReadError(error.errno, os.fsdecode(folder)) from error
    ways = Ways(fd)
    try:
        yield SourceFolder(folder, fd, ways, os.path.realpath(folder))
    finally:
        ways.close()
        close(fd)


def scan_folder(source: SourceFolder, output: ExcludedOutput | None, warn: Callable[[str], None]) -> Scan:
    """Scan a folder depth first, the names of each folder sorted by their bytes. This is the order of the records.

    Args:
        source: the folder.
        output: left out without a warning if it lies inside.
        warn: called with a line for everything that cannot be packed as it is.

    Raises:
        ReadError: something in the folder cannot be read.
        SourceChangedError: something vanished during the scan, or a folder was replaced by something else.

    """
    with Way(source.fd) as way:
        return _Scanner(source, output, warn, way).run()


class _Scanner:
    def __init__(
        self, source: SourceFolder, output: ExcludedOutput | None, warn: Callable[[str], None], way: Way
    ) -> None:
        self.source, self.output, self.warn, self.way = source, output, warn, way
        # For files with several names: inode or identity -> the node and first path of each such file.
        self.linked: dict[tuple[int, ...], list[tuple[int, bytes]]] = {}
        self.contents: dict[bytes, bytes] = {}  # first path -> _content(), where inode numbers are not reliable
        self.reliability = Reliability()

    def run(self) -> Scan:
        """Scan everything. Folders are read through open descriptors, never by a name that may be replaced."""
        status = os.fstat(self.source.fd)
        self.scan = Scan(TreeBuilder(_mode(status), self._mtime(status, b"")))
        stack = [(0, b"", iter(self._names(b"", status, self.source.fd)))]
        while stack:
            parent, folder, names = stack[-1]
            dir_fd = self._open(folder, None)
            for name in names:
                path = os.path.join(folder, name)
                if len(path) > PATH_MAX:
                    raise UnsupportedError(f"{self.source.shown(path)}: its path is longer than {PATH_MAX} bytes")
                status = self._status(path, name, dir_fd)
                if stat.S_ISDIR(status.st_mode):
                    below = self._open(path, name)
                    status = os.fstat(below)
                    node = self.scan.builder.add_directory(parent, name, _mode(status), self._mtime(status, path))
                    stack.append((node, path, iter(self._names(path, status, below))))
                    break
                self._add(parent, path, name, status, dir_fd)
            else:
                stack.pop()
                if stack:
                    self.way.leave()
        return self.scan

    def _open(self, path: bytes, name: bytes | None) -> int:
        """Enter the folder of that name in the current folder. Without a name, return the current folder."""
        try:
            return self.way.fd if name is None else self.way.enter(name)
        except OSError as error:
            raise self._failure(error, path) from error

    def _names(self, path: bytes, status: os.stat_result, dir_fd: int) -> list[bytes]:
        real = os.path.join(self.source.real, path) if path else self.source.real
        inside = self.output if self.output and self.output.is_in(status, real) else None
        if inside:
            self.scan.holds_output = path
        try:
            found = map(os.fsencode, os.listdir(dir_fd))
            return sorted(name for name in found if not (inside and inside.is_named(name)))
        except OSError as error:
            raise self._failure(error, path) from error

    def _status(self, path: bytes, name: bytes, dir_fd: int) -> os.stat_result:
        try:
            return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        except OSError as error:
            raise self._failure(error, path) from error

    def _failure(self, error: OSError, path: bytes) -> Exception:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return self._vanished(path)
        return ReadError(error.errno, self.source.shown(path))

    def _vanished(self, path: bytes) -> SourceChangedError:
        return SourceChangedError(
            f"{self.source.shown(path)}: vanished while the folder was packed; pack it when nothing changes it"
        )

    def _mtime(self, status: os.stat_result, path: bytes) -> int:
        """Return the modification time in nanoseconds, limited to what 64 bits can hold."""
        return nearest_mtime(status.st_mtime_ns, lambda: self.source.shown(path), self.warn)

    def _add(self, parent: int, path: bytes, name: bytes, status: os.stat_result, dir_fd: int) -> None:
        """Add a file, a further name of a file, or a symbolic link; warn about anything else."""
        kind = stat.S_IFMT(status.st_mode)
        scan = self.scan
        if kind in KINDS:
            self.warn(f"{self.source.shown(path)}: a {KINDS[kind]}, left out")
            return
        numbered = self.reliability.of(status, dir_fd)
        key = place(status) if numbered else (*identity(status), status.st_nlink)
        alike = self.linked.get(key, [])
        content = b""
        if alike and not numbered:
            content = self._content(name, dir_fd, kind)
        for node, first in alike:
            if numbered or (content and self._content_of(first, kind) == content):
                scan.builder.add_link(parent, name, node)
                return
        mtime = self._mtime(status, path)
        if kind == stat.S_IFLNK:
            try:
                target = os.readlink(name, dir_fd=dir_fd)
            except OSError:
                raise self._vanished(path) from None
            node = scan.builder.add_symlink(parent, name, target, _mode(status), mtime)
        else:
            node = scan.builder.add_file(parent, name, len(scan.files), _mode(status), mtime)
            scan.files.append(FileToPack(path, status.st_size, identity(status, numbered), numbered))
            scan.total_bytes += status.st_size
        if status.st_nlink > 1 and len(alike) < ALIKE:
            self.linked[key] = [*alike, (node, path)]

    def _content_of(self, path: bytes, kind: int) -> bytes:
        """Return ``_content`` of the first name of a file. It is read once, for all further names."""
        if path not in self.contents:
            folder, name = os.path.split(path)
            try:
                with self.source.ways.at(folder) as dir_fd:
                    self.contents[path] = self._content(name, dir_fd, kind)
            except OSError:
                return b""
        return self.contents[path]

    def _content(self, name: bytes, dir_fd: int, kind: int) -> bytes:
        """Return a digest of a file, or the target of a symbolic link; b"" if it cannot be read. Where the file system
        makes up inode numbers, two names of one file must have equal content: number, size and times are not enough.
        """
        try:
            return os.readlink(name, dir_fd=dir_fd) if kind == stat.S_IFLNK else digest(dir_fd, name)
        except OSError:
            return b""


def _mode(status: os.stat_result) -> int:
    return status.st_mode & 0o177777
