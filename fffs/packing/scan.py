"""Scanning a folder that is to be packed: its tree, and the files whose bytes are to be copied."""

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
# How many different files that look like one are compared with a further name, where inode numbers mean nothing.
ALIKE = 16
# What the time of a node can be, in nanoseconds since 1970.
MTIME_MIN, MTIME_MAX = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class FileToPack:
    """A regular file as it was when the folder was scanned; packing it later notices when it is another."""

    path: bytes  # from the folder that is packed
    size: int
    identity: Identity
    numbered: bool  # its inode number says which file it is

    def is_same(self, status: os.stat_result) -> bool:
        """Whether that is the status of this file, unchanged."""
        return identity(status, self.numbered) == self.identity


Identity = tuple[int, int, int, int, int, int]
"""Device, inode, size, mtime and ctime in nanoseconds, type and mode."""


def identity(status: os.stat_result, numbered: bool = True) -> Identity:
    """What must be the same for a file to count as unchanged. Who writes may set mtime back, but not ctime.

    numbered: the inode number must be the same, too. Where such numbers are not reliable, the rest must do: that a file
    is the one of that name, and not behind a link, is seen to by how it is opened.
    """
    number = status.st_ino if numbered else 0
    return status.st_dev, number, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode


def nearest_mtime(nanoseconds: int, shown: Callable[[], str], warn: Callable[[str], None]) -> int:
    """A time of modification, or the nearest that a node can have, and a warning with the name of what has it."""
    nearest = min(max(nanoseconds, MTIME_MIN), MTIME_MAX)
    if nearest != nanoseconds:
        warn(f"{shown()}: its time is not in the years 1678 to 2262; the nearest that is was packed")
    return nearest


class Output:
    """The file that the scanned folder is packed into. Where it lies inside, it and its temporary files are left out.

    It is told by the folder it is in and its name: what is there now may have other names, which are packed.
    """

    def __init__(self, path: bytes) -> None:
        """Raises OSError when there is no folder to write it to."""
        folder, self._name = os.path.split(path)
        self._path = os.path.realpath(folder or b".")
        fd = os.open(folder or b".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._folder, self._numbered = place(os.fstat(fd)), has_inode_numbers(fd)
        finally:
            close(fd)
        self._temporary = temporary_names(self._name)

    def is_in(self, status: os.stat_result, path: bytes) -> bool:
        """Whether the folder with that status and real path holds it."""
        return self._folder == place(status) if self._numbered else self._path == path

    def is_named(self, name: bytes) -> bool:
        """Whether the name is its own or one of its temporary files'."""
        return name == self._name or self._temporary.fullmatch(name) is not None


@dataclass
class Scan:
    """A scanned folder: the builder with every name in it, and files[k], whose bytes become record k."""

    builder: TreeBuilder
    files: list[FileToPack] = field(default_factory=list)
    total_bytes: int = 0
    holds_output: bytes | None = None
    """The folder, as a path, that the output lies in: its time is not what it was when the output is there."""


@dataclass(frozen=True)
class SourceFolder:
    """The folder that is packed, held open: everything in it is reached from here, whatever is renamed meanwhile."""

    path: bytes
    fd: int
    ways: Ways
    real: bytes  # its path without symbolic links

    def shown(self, path: bytes) -> str:
        """What something in it is called in messages."""
        return os.fsdecode(os.path.join(self.path, path) if path else self.path)


@contextlib.contextmanager
def open_source(folder: bytes) -> Iterator[SourceFolder]:
    """The folder that is to be packed, for as long as the block lasts.

    Raises:
        SourceNotFoundError, UsageError: it is not there, or no folder.
        ReadError: it cannot be read.

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


def scan_folder(source: SourceFolder, output: Output | None, warn: Callable[[str], None]) -> Scan:
    """Scan a folder depth first, each folder's names by their bytes: the order of the records.

    Args:
        source: the folder.
        output: left out silently where it lies inside.
        warn: gets a line for everything that cannot be packed as it is.

    Raises:
        ReadError: something in it cannot be read.
        SourceChangedError: something vanished meanwhile, or a folder became something else.

    """
    with Way(source.fd) as way:
        return _Scanner(source, output, warn, way).run()


class _Scanner:
    """One scan."""

    def __init__(self, source: SourceFolder, output: Output | None, warn: Callable[[str], None], way: Way) -> None:
        self.source, self.output, self.warn, self.way = source, output, warn, way
        # Files with several names -> the nodes and first paths of those that look like that.
        self.linked: dict[tuple[int, ...], list[tuple[int, bytes]]] = {}
        self.contents: dict[bytes, bytes] = {}  # of first names, where inode numbers mean nothing
        self.reliability = Reliability()

    def run(self) -> Scan:
        """Scan everything. A folder is what is open, never what a name leads to."""
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
        """The folder of that name where we are, or the one where we are."""
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
            f"{self.source.shown(path)}: vanished while the folder was packed; pack it when nobody changes it"
        )

    def _mtime(self, status: os.stat_result, path: bytes) -> int:
        """The time of modification, in as many nanoseconds as 64 bits can count."""
        return nearest_mtime(status.st_mtime_ns, lambda: self.source.shown(path), self.warn)

    def _add(self, parent: int, path: bytes, name: bytes, status: os.stat_result, dir_fd: int) -> None:
        """Add what is no folder: a file, a further name of a file, a symbolic link; or warn."""
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
        """Of the first name of a file. It is read once, however many further names it may have."""
        if path not in self.contents:
            folder, name = os.path.split(path)
            try:
                with self.source.ways.at(folder) as dir_fd:
                    self.contents[path] = self._content(name, dir_fd, kind)
            except OSError:
                return b""
        return self.contents[path]

    def _content(self, name: bytes, dir_fd: int, kind: int) -> bytes:
        """What decides whether a name may count as a further one of what has the same number, size and times, which
        are not enough where numbers are made up. Nothing, where it cannot be read.
        """
        try:
            return os.readlink(name, dir_fd=dir_fd) if kind == stat.S_IFLNK else digest(dir_fd, name)
        except OSError:
            return b""


def _mode(status: os.stat_result) -> int:
    return status.st_mode & 0o177777
