"""Linker: makes hard links to unpacked files, or a limited number of copies where no link can be made."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable
from typing import Final

from fffs.base.text import human, plural
from fffs.errors import UnsupportedError
from fffs.files.dirfd import NO_LINKS, Ways, close

NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Linker:
    """Makes hard links below a folder. A file that has as many links as the file system allows (65,000 on ext4) is
    copied, and the next links lead to the copy. Where the file system has no hard links, every further name is a copy.

    Args:
        ways: opens folders below the target folder, which messages call ``shown``.
        room: the total size that the copies may have. A few bytes of a source can ask for a link to a large file.
        copy: creates the content of a node at a path.

    """

    def __init__(self, ways: Ways, shown: str, room: int, copy: Callable[[int, bytes], None]) -> None:
        self._ways, self._shown, self._room, self._copy = ways, shown, room, copy
        self._copies, self._reason = 0, ""

    def check(self, size: int) -> None:
        """Check that links to ``size`` bytes of files can be made, or that copies of that size are allowed.

        Raises UnsupportedError, OSError.
        """
        if size > self._room and not self._can_link():
            raise self._refused(size)

    def _can_link(self) -> bool:
        old, new = (b".%b.fffs-tmp" % secrets.token_hex(16).encode() for _ in range(2))
        with self._ways.at(b"") as folder:
            close(os.open(old, NEW_FILE, 0o600, dir_fd=folder))
            try:
                os.link(old, new, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
                os.unlink(new, dir_fd=folder)
            except OSError as error:
                if error.errno not in (errno.EMLINK, *NO_LINKS):
                    raise
                return False
            finally:
                os.unlink(old, dir_fd=folder)
        return True

    def link(self, node: int, size: int, old: bytes, path: bytes) -> bytes:
        """Make ``path`` a further name of a node, which has that size and exists at ``old``. Returns the next ``old``.

        Raises UnsupportedError, OSError, and what copying raises.
        """
        (there, old_name), (folder, name) = os.path.split(old), os.path.split(path)
        try:
            with self._ways.at(folder) as fd, self._ways.at(there) as old_fd:
                os.link(old_name, name, src_dir_fd=old_fd, dst_dir_fd=fd, follow_symlinks=False)
            return old
        except OSError as error:
            if error.errno not in (errno.EMLINK, *NO_LINKS):
                raise
            is_full, self._reason = error.errno == errno.EMLINK, os.strerror(error.errno)
        if size > self._room:
            raise self._refused(size)
        self._room -= size
        self._copies += 1
        self._copy(node, path)
        return path if is_full else old

    def warning(self) -> str | None:
        """Return a warning about the copies, or None if there are none."""
        if not self._copies:
            return None
        return f"{self._shown}: {plural(self._copies, 'file')} copied where no hard link could be made ({self._reason})"

    def _refused(self, size: int) -> UnsupportedError:
        return UnsupportedError(
            f"{self._shown}: not unpacked: this file system cannot make all hard links, and copies would take "
            f"{human(size)} more, beyond the size of the source; unpack to another file system, or mount the source"
        )
