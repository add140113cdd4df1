"""What stat(2), getxattr(2) and statfs(2) show: pyfuse3's structures from the tree, the store and the mount options."""

from __future__ import annotations

import errno
import os
import stat

import pyfuse3

from fffs.layouts import Source
from fffs.mount.options import MountOptions
from fffs.mount.system import asking
from fffs.native.engine import CHECK_CRC32C, CHECK_NONE
from fffs.records.store import RecordStore
from fffs.tree.tree import NAME_MAX, ROOT

BLOCK_SIZE = 4096
# The tree never changes: the kernel may keep what it was told as long as it has memory.
FOREVER = 365 * 86400.0

ROOT_INODE = ROOT + 1

PREFIX = asking.PREFIX.encode()
CRC32, CRC32C, RECORD, SOURCE, VERIFIED = (
    PREFIX + name for name in (b"crc32", b"crc32c", b"record", b"source", b"verified")
)
LARGEST = 1 << 16  # bytes of a value: XATTR_SIZE_MAX in <linux/limits.h>
DAEMON = asking.DAEMON.encode()
ACLS = (b"system.posix_acl_access", b"system.posix_acl_default")


class Common:
    """What all mounts show alike. Nothing changes after construction; for the thread of the event loop.

    Raises:
        pyfuse3.FUSEError: for an extended attribute that is not there.

    """

    def __init__(self, store: RecordStore, options: MountOptions) -> None:
        self._store = store
        self._uid = os.getuid() if options.uid is None else options.uid
        self._gid = os.getgid() if options.gid is None else options.gid
        self._mask = ~options.umask
        self._verify = options.verify
        self.absent = pyfuse3.EntryAttributes()  # inode 0: "no such name", and the kernel may remember that
        self.absent.st_ino = 0
        self.absent.entry_timeout = FOREVER

    def make(self, inode: int, mode: int, nlink: int, size: int, mtime: int) -> pyfuse3.EntryAttributes:
        """Everything stat(2) shows of an inode."""
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = inode
        entry.st_mode = mode & self._mask if not stat.S_ISLNK(mode) else mode
        entry.st_nlink = nlink
        entry.st_uid, entry.st_gid = self._uid, self._gid
        entry.st_size = size
        entry.st_blocks = (size + 511) // 512
        entry.st_blksize = BLOCK_SIZE
        entry.st_mtime_ns = entry.st_atime_ns = entry.st_ctime_ns = mtime
        entry.entry_timeout = entry.attr_timeout = FOREVER
        return entry

    def make_file_system(self, nodes: int) -> pyfuse3.StatvfsData:
        """What statfs(2) shows: full, and as large as the source files."""
        data = pyfuse3.StatvfsData()
        data.f_bsize = data.f_frsize = BLOCK_SIZE
        data.f_blocks = -(-sum(file.index.file_size for file in self._store.files) // BLOCK_SIZE)
        data.f_bfree = data.f_bavail = data.f_ffree = data.f_favail = 0
        data.f_files = nodes
        data.f_namemax = NAME_MAX
        return data

    # ------------------------------------------------------------ extended attributes

    def names_of(self, inode: int, record: int | None) -> list[bytes]:
        """The names of the extended attributes of the root, or of what comes from a record, if it does."""
        if record is None:
            return [SOURCE] if inode == ROOT_INODE else []
        return [*self._checksums(record), RECORD, SOURCE, VERIFIED]

    def _checksums(self, record: int) -> list[bytes]:
        index = self._store.locate(record)[0].index
        if index.check == CHECK_NONE or index.checksums is None:
            return []
        return [CRC32C if index.check == CHECK_CRC32C else CRC32]

    def value_of(self, inode: int, record: int | None, name: bytes) -> bytes:
        """One of them."""
        if inode == ROOT_INODE and name == DAEMON:
            return daemon_identity()
        # ls(1) asks every file for attributes of others, as for access control lists.
        if not name.startswith(PREFIX) or name not in self.names_of(inode, record):
            raise pyfuse3.FUSEError(absence(name))
        if record is None:
            return in_lines([_absolute(file.index.path) for file in self._store.files])
        file, row = self._store.locate(record)
        if name == RECORD:
            return b"%d" % row
        if name == SOURCE:
            return _absolute(file.index.path)
        checksum = self._store.checksum(record)
        if name in (CRC32, CRC32C):
            return b"%08x" % (checksum or 0)
        if checksum is None:
            return b"no checksum"
        return b"yes" if self._verify and self._store.verified(record) else b"no"


class Attributes(Common):
    """Attributes of the nodes of a tree."""

    def __init__(self, source: Source, options: MountOptions) -> None:
        super().__init__(source.store, options)
        tree = source.tree
        self._tree = tree
        # Items of a memoryview are Python ints at once, which numpy's are not.
        self._mode, self._nlink, self._mtime = memoryview(tree.mode), memoryview(tree.nlink), memoryview(tree.mtime)
        self._ref, self._count = memoryview(tree.ref), memoryview(tree.count)

    def entry(self, node: int, size: int | None = None) -> pyfuse3.EntryAttributes:
        """Everything stat(2) shows of a node. size: where it is not that of the node's record."""
        mode = self._mode[node]
        size = self._size(node, mode) if size is None else size
        return self.make(node + 1, mode, self._nlink[node], size, self._mtime[node])

    def _size(self, node: int, mode: int) -> int:
        if stat.S_ISREG(mode):
            return self._store.length(self._ref[node])
        return self._count[node] if stat.S_ISLNK(mode) else BLOCK_SIZE

    def file_system(self) -> pyfuse3.StatvfsData:
        """What statfs(2) shows."""
        return self.make_file_system(len(self._mode))

    def names(self, node: int) -> list[bytes]:
        """The names of a node's extended attributes."""
        return self.names_of(node + 1, self._record(node))

    def value(self, node: int, name: bytes) -> bytes:
        """One of them."""
        return self.value_of(node + 1, self._record(node), name)

    def _record(self, node: int) -> int | None:
        return self._ref[node] if self._tree.is_file(node) else None


def absence(name: bytes) -> int:
    """What a file system says of an attribute that is not there: by its namespace, as on ext4."""
    space, dot, rest = name.partition(b".")
    if dot and space in (b"user", b"trusted", b"security", b"gnu"):
        return errno.ENODATA if rest else errno.EINVAL
    return errno.ENODATA if name in ACLS else errno.ENOTSUP


def daemon_identity() -> bytes:
    """Process id and its namespace, of the process that calls; 0, which is none, where /proc is missing."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    return b"%d %d" % (os.getpid(), namespace)


def in_lines(paths: list[bytes]) -> bytes:
    """One a line, as many as the kernel lets an extended attribute hold."""
    room = LARGEST - sum(len(path) + 1 for path in paths)
    if room >= -1:
        return b"\n".join(paths)
    kept, room = 0, LARGEST - len(b"and %d more" % len(paths))
    while len(paths[kept]) < room:
        room -= len(paths[kept]) + 1
        kept += 1
    return b"\n".join([*paths[:kept], b"and %d more" % (len(paths) - kept)])


def _absolute(path: str) -> bytes:
    return os.fsencode(os.path.abspath(path))
