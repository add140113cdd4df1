"""What stat(2), getxattr(2) and statfs(2) show: pyfuse3's structures from the tree, the store and the mount options."""

from __future__ import annotations

import errno
import os
import stat

import pyfuse3

from fffs.layouts import Source
from fffs.mount.options import MountOptions
from fffs.tree import NAME_MAX, ROOT

BLOCK_SIZE = 4096
# The tree never changes: the kernel may keep what it was told as long as it has memory.
FOREVER = 365 * 86400.0

PREFIX = b"user.fffs."
CRC32, RECORD, SOURCE, VERIFIED = (PREFIX + name for name in (b"crc32", b"record", b"source", b"verified"))
# Of the root, not listed: what `fffs umount` waits for. The process id, and the namespace in which it is one.
DAEMON = PREFIX + b"daemon"


class Attributes:
    """Attributes of nodes. Nothing changes after construction; for the thread of the event loop.

    Raises:
        pyfuse3.FUSEError: with ENODATA, for an extended attribute that is not there.

    """

    def __init__(self, source: Source, options: MountOptions) -> None:
        tree = source.tree
        self._tree, self._store = tree, source.store
        # Items of a memoryview are Python ints at once, which numpy's are not.
        self._mode, self._nlink, self._mtime = memoryview(tree.mode), memoryview(tree.nlink), memoryview(tree.mtime)
        self._ref, self._count = memoryview(tree.ref), memoryview(tree.count)
        self._uid = os.getuid() if options.uid is None else options.uid
        self._gid = os.getgid() if options.gid is None else options.gid
        self._mask = ~options.umask
        self._verify = options.verify
        self.absent = pyfuse3.EntryAttributes()  # inode 0: "no such name", and the kernel may remember that
        self.absent.st_ino = 0
        self.absent.entry_timeout = FOREVER

    def entry(self, node: int) -> pyfuse3.EntryAttributes:
        """Everything stat(2) shows of a node."""
        entry = pyfuse3.EntryAttributes()
        mode, mtime = self._mode[node], self._mtime[node]
        size = self._size(node, mode)
        entry.st_ino = node + 1
        entry.st_mode = mode & self._mask if not stat.S_ISLNK(mode) else mode
        entry.st_nlink = self._nlink[node]
        entry.st_uid, entry.st_gid = self._uid, self._gid
        entry.st_size = size
        entry.st_blocks = (size + 511) // 512
        entry.st_blksize = BLOCK_SIZE
        entry.st_mtime_ns = entry.st_atime_ns = entry.st_ctime_ns = mtime
        entry.entry_timeout = entry.attr_timeout = FOREVER
        return entry

    def _size(self, node: int, mode: int) -> int:
        if stat.S_ISREG(mode):
            return self._store.length(self._ref[node])
        return self._count[node] if stat.S_ISLNK(mode) else BLOCK_SIZE

    def file_system(self) -> pyfuse3.StatvfsData:
        """What statfs(2) shows: full, and as large as the source files."""
        data = pyfuse3.StatvfsData()
        data.f_bsize = data.f_frsize = BLOCK_SIZE
        data.f_blocks = -(-sum(file.index.file_size for file in self._store.files) // BLOCK_SIZE)
        data.f_bfree = data.f_bavail = data.f_ffree = data.f_favail = 0
        data.f_files = len(self._mode)
        data.f_namemax = NAME_MAX
        return data

    # ------------------------------------------------------------ extended attributes

    def names(self, node: int) -> list[bytes]:
        """The names of a node's extended attributes."""
        if self._tree.is_file(node):
            has_checksum = self._store.checksum(self._ref[node]) is not None
            return [*([CRC32] if has_checksum else []), RECORD, SOURCE, VERIFIED]
        return [SOURCE] if node == ROOT else []

    def value(self, node: int, name: bytes) -> bytes:
        """One of them."""
        if node == ROOT and name == DAEMON:
            return daemon_identity()
        # ls(1) asks every file for attributes of others, as for access control lists.
        if not name.startswith(PREFIX) or name not in self.names(node):
            raise pyfuse3.FUSEError(errno.ENODATA)
        if node == ROOT:
            return b"\n".join(_absolute(file.index.path) for file in self._store.files)
        record = self._ref[node]
        file, row = self._store.locate(record)
        if name == RECORD:
            return b"%d" % row
        if name == SOURCE:
            return _absolute(file.index.path)
        checksum = self._store.checksum(record)
        if name == CRC32:
            return b"%08x" % (checksum or 0)
        if checksum is None:
            return b"no checksum"
        return b"yes" if self._verify and self._store.verified(record) else b"no"


def daemon_identity() -> bytes:
    """Process id and its namespace, of the process that calls."""
    return b"%d %d" % (os.getpid(), os.stat("/proc/self/ns/pid").st_ino)


def _absolute(path: str) -> bytes:
    return os.fsencode(os.path.abspath(path))
