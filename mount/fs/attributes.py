"""Makes the replies to stat(2), getxattr(2) and statfs(2) from a view and the mount options."""

from __future__ import annotations

import errno
import itertools
import os
import stat

import pyfuse3

from fffs.layouts.view import BLOCK_SIZE, ROOT_INODE, Attributes, View
from fffs.mount.options import MountOptions
from fffs.native.checksums import CHECKSUMS
from fffs.objects.names import absolute
from fffs.tree.tree import NAME_MAX

# The tree never changes, so the kernel may cache replies as long as it has memory.
FOREVER = 365 * 86400.0

PREFIX = b"user.fffs."
RECORD, SOURCE, VERIFIED = (PREFIX + name for name in (b"record", b"source", b"verified"))
CHECKSUM_NAMES = {check: PREFIX + kind.name.encode() for check, kind in CHECKSUMS.items()}
LARGEST = 1 << 16  # bytes of a value: XATTR_SIZE_MAX in <linux/limits.h>
ACLS = (b"system.posix_acl_access", b"system.posix_acl_default")


class Presenter:
    """The attributes of a view as pyfuse3's structures. Immutable; used by the thread of the event loop.

    Raises:
        pyfuse3.FUSEError: an extended attribute does not exist.

    """

    def __init__(self, view: View, options: MountOptions) -> None:
        self._inodes, self._store = view.inodes, view.store
        self._uid = os.getuid() if options.uid is None else options.uid
        self._gid = os.getgid() if options.gid is None else options.gid
        self._mask = ~options.umask
        self._verify = options.verify
        self.absent = pyfuse3.EntryAttributes()  # inode 0: "no such name", which the kernel may cache
        self.absent.st_ino = 0
        self.absent.entry_timeout = FOREVER

    def entry(self, inode: int, attributes: Attributes) -> pyfuse3.EntryAttributes:
        """Return everything that stat(2) shows of an inode."""
        mode, nlink, size, mtime, lasts = attributes
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = inode
        entry.st_mode = mode & self._mask if not stat.S_ISLNK(mode) else mode
        entry.st_nlink = nlink
        entry.st_uid, entry.st_gid = self._uid, self._gid
        entry.st_size = size
        entry.st_blocks = (size + 511) // 512
        entry.st_blksize = BLOCK_SIZE
        entry.st_mtime_ns = entry.st_atime_ns = entry.st_ctime_ns = mtime
        entry.entry_timeout = entry.attr_timeout = FOREVER if lasts else 0
        return entry

    def file_system(self) -> pyfuse3.StatvfsData:
        """Return what statfs(2) shows: a full file system, as large as the source files."""
        data = pyfuse3.StatvfsData()
        data.f_bsize = data.f_frsize = BLOCK_SIZE
        data.f_blocks = -(-self._store.size // BLOCK_SIZE)
        data.f_bfree = data.f_bavail = data.f_ffree = data.f_favail = 0
        data.f_files = self._inodes
        data.f_namemax = NAME_MAX
        return data

    # ------------------------------------------------------------ extended attributes

    def names(self, inode: int, record: int | None) -> list[bytes]:
        """Return the names of the extended attributes of an inode. record: the record that it comes from, if any."""
        if record is None:
            return [SOURCE] if inode == ROOT_INODE else []
        return [*self._checksums(record), RECORD, SOURCE, VERIFIED]

    def _checksums(self, record: int) -> list[bytes]:
        index = self._store.locate(record)[0].index
        return [] if index.checksums is None else [CHECKSUM_NAMES[index.check]]

    def value(self, inode: int, record: int | None, name: bytes) -> bytes:
        """Return the value of an extended attribute."""
        # ls(1) asks every file for attributes of other namespaces, such as access control lists.
        if not name.startswith(PREFIX) or name not in self.names(inode, record):
            raise pyfuse3.FUSEError(absence(name))
        if record is None:
            return in_lines([os.fsencode(absolute(file.index.path)) for file in self._store.files])
        file, row = self._store.locate(record)
        if name == RECORD:
            return b"%d" % row
        if name == SOURCE:
            return os.fsencode(absolute(file.index.path))
        checksum = self._store.checksum(record)
        if name in CHECKSUM_NAMES.values():
            return b"%08x" % (checksum or 0)
        if checksum is None:
            return b"no checksum"
        return b"yes" if self._verify and self._store.verified(record) else b"no"


def absence(name: bytes) -> int:
    """Return the error for an attribute that does not exist: it depends on the namespace, as on ext4."""
    space, dot, rest = name.partition(b".")
    if dot and space in (b"user", b"trusted", b"security", b"gnu"):
        return errno.ENODATA if rest else errno.EINVAL
    return errno.ENODATA if name in ACLS else errno.ENOTSUP


def in_lines(paths: list[bytes]) -> bytes:
    """Join paths with newlines, as many as fit into an extended attribute."""
    joined = b"\n".join(paths)
    if len(joined) <= LARGEST:
        return joined
    room = LARGEST - len(b"and %d more" % len(paths))
    kept = sum(end <= room for end in itertools.accumulate(len(path) + 1 for path in paths))
    return b"\n".join([*paths[:kept], b"and %d more" % (len(paths) - kept)])
