"""Linker: further names of what was unpacked; copies, as few as can be and not too many, where no link can be made."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable
from typing import Final

from fffs.base.text import human, plural
from fffs.errors import UnsupportedError
from fffs.files.dirfd import Ways, close

# What link(2) says where there are none: FAT, some FUSE, some shares.
_NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV)
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Linker:
    """Makes hard links below a folder. A file that cannot have as many as it should (on ext4, 65,000) is copied, and
    the copy gets the next ones; where there are no links at all, each is a copy.

    Args:
        ways: to folders below the one that is unpacked into, which ``shown`` is called in messages.
        room: how many bytes all copies may have. A few bytes of a source can ask for a link to a large file.
        copy: makes what a node is at a path.

    """

    def __init__(self, ways: Ways, shown: str, room: int, copy: Callable[[int, bytes], None]) -> None:
        self._ways, self._shown, self._room, self._copy = ways, shown, room, copy
        self._copies, self._reason = 0, ""

    def check(self, size: int) -> None:
        """Refuse what would need copies of that many bytes, if that is too much and there are no links here.

        Raises UnsupportedError, OSError.
        """
        if size > self._room and not self._can_link():
            raise self._refused(size)

    def _can_link(self) -> bool:
        old, new = (b".%b.fffs-tmp" % secrets.token_hex(16).encode() for _ in range(2))
        with self._ways.at(b"") as folder:
            close(os.open(old, _NEW, 0o600, dir_fd=folder))
            try:
                os.link(old, new, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
                os.unlink(new, dir_fd=folder)
            except OSError as error:
                if error.errno not in (errno.EMLINK, *_NO_LINKS):
                    raise
                return False
            finally:
                os.unlink(old, dir_fd=folder)
        return True

    def link(self, node: int, size: int, old: bytes, path: bytes) -> bytes:
        """Give a node of that size, which is at the path ``old``, one more name. Returns the path for the next one.

        Raises UnsupportedError, OSError, and what copying raises.
        """
        (there, old_name), (folder, name) = os.path.split(old), os.path.split(path)
        try:
            with self._ways.at(folder) as fd, self._ways.at(there) as old_fd:
                os.link(old_name, name, src_dir_fd=old_fd, dst_dir_fd=fd, follow_symlinks=False)
            return old
        except OSError as error:
            if error.errno not in (errno.EMLINK, *_NO_LINKS):
                raise
            is_full, self._reason = error.errno == errno.EMLINK, os.strerror(error.errno)
        if size > self._room:
            raise self._refused(size)
        self._room -= size
        self._copies += 1
        self._copy(node, path)
        return path if is_full else old

    def warning(self) -> str | None:
        """A line about the copies, if there are any."""
        if not self._copies:
            return None
        return f"{self._shown}: {plural(self._copies, 'file')} copied where no hard link could be made ({self._reason})"

    def _refused(self, size: int) -> UnsupportedError:
        return UnsupportedError(
            f"{self._shown}: will not be unpacked: this file system does not take all hard links, and copies would "
            f"take {human(size)} more, beyond what the source has; unpack it elsewhere, or mount it and copy from there"
        )
