"""unpack: a packed folder back into a real one.

It is built under a temporary name beside the target and renamed when complete. Nothing is ever written outside: the
tree holds no name with ``/`` and no ``..``, every folder is made here, and nothing is below a symbolic link.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from typing import Any

from fffs.atomic import SUFFIX, sync_folder, temporary_names
from fffs.errors import ReadError, UsageError, WriteError
from fffs.jobs import Jobs, Progress, default_jobs
from fffs.layouts import Source
from fffs.native import lib
from fffs.tree import ROOT

log = logging.getLogger("fffs.unpack")

SPECIAL = stat.S_ISUID | stat.S_ISGID


def unpack(
    source: Source,
    target: str | bytes | os.PathLike[Any],
    *,
    special_bits: bool = False,
    jobs: int | None = None,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> None:
    """Unpack a source into ``target``, which must not exist or be an empty folder; it appears complete or not at all.

    Args:
        source: what ``fffs.layouts.load_source`` gave; it stays the caller's.
        target: the folder to make.
        special_bits: give files their set-user-ID and set-group-ID bits; otherwise they are left out with a warning,
            because whoever made the pack would choose what runs with the rights of whoever unpacks it.
        jobs: how many files are written at once.
        progress: called with (bytes done, bytes in all) from time to time, from any thread.
        warn: called with a line for what is not restored; the default logs it.

    Raises:
        UsageError: the target is there and not empty.
        ChecksumError, TruncatedError, ReadError: a record is bad; nothing is left at the target.
        WriteError: the target cannot be written.

    """
    name = os.fsdecode(target)
    path = _check_target(name)
    with _temporary_folder(path, name) as (temporary, fd):
        _Unpacker(source, temporary, name, special_bits, progress, warn or log.warning).run(jobs or default_jobs(), fd)
        try:
            os.rename(temporary, path)
            sync_folder(os.fsdecode(os.path.dirname(path)) or ".")
        except OSError as error:
            raise WriteError(error.errno or errno.EIO, name) from error


def _check_target(name: str) -> bytes:
    """The path to give to what is unpacked; UsageError when that cannot be."""
    path = os.fsencode(name).rstrip(b"/") or b"/"
    try:
        if os.path.lexists(path) and not (os.path.isdir(path) and not os.listdir(path)):
            raise UsageError(f"{name}: already exists; unpack into a new or an empty folder")
    except OSError as error:
        raise WriteError(error.errno or errno.EIO, name) from error
    if os.path.islink(path) or os.path.basename(path) in (b".", b".."):
        path = os.path.realpath(path)
    # The target is replaced in one step, which these two cannot be: one belongs to another file system, and whoever is
    # in the other would find himself in a folder that is gone.
    if os.path.ismount(path) or (os.path.isdir(path) and os.path.samefile(path, b".")):
        raise UsageError(f"{name}: a mount point or the current folder cannot be replaced; unpack into a folder in it")
    return path


def _lock(folder: bytes, flags: int) -> int | None:
    """A descriptor of the folder that holds its lock, or None when another has it or the folder is gone."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, flags)
        if os.fstat(fd).st_nlink > 0:
            return fd
    except BlockingIOError:
        pass
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def _create_locked(parent: bytes, name: bytes) -> tuple[bytes, int]:
    """A new folder whose lock this process holds, so that it is nobody's leftover: its path and descriptor."""
    while True:
        path = os.path.join(parent, b".%b.%b%b" % (name[:200], secrets.token_hex(6).encode(), SUFFIX.encode()))
        os.mkdir(path, 0o700)
        try:
            fd = _lock(path, fcntl.LOCK_EX)
        except FileNotFoundError:
            continue  # another took it for a leftover before it was locked
        if fd is not None:
            return path, fd


def _remove_leftovers(parent: bytes, name: bytes) -> None:
    """Remove what killed processes left that unpacked into the same target: their locks are free."""
    ours = temporary_names(name)
    found: list[bytes] = []
    with contextlib.suppress(OSError):  # a folder that cannot be listed can be written to all the same
        found = [os.path.join(parent, entry) for entry in os.listdir(parent or b".") if ours.fullmatch(entry)]
    for path in found:
        with contextlib.suppress(OSError):
            fd = _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if fd is not None:
                _remove(path)
                os.close(fd)


def _remove(folder: bytes) -> None:
    """Remove a folder with all that is in it, also what its modes would keep us from removing."""
    with contextlib.suppress(OSError):
        os.chmod(folder, 0o700)
    for path, folders, _ in os.walk(folder):
        for name in folders:
            below = os.path.join(path, name)
            if not os.path.islink(below):
                with contextlib.suppress(OSError):
                    os.chmod(below, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _temporary_folder(target: bytes, target_name: str) -> Iterator[tuple[bytes, int]]:
    """A new folder beside the target, its path and a descriptor, removed unless it was renamed away.

    Leftovers of the dead are removed first.
    """
    parent, name = os.path.split(target)
    try:
        _remove_leftovers(parent, name)
        temporary, fd = _create_locked(parent, name)
    except OSError as error:
        raise WriteError(error.errno or errno.EIO, target_name) from error
    try:
        yield temporary, fd
    finally:
        if os.path.lexists(temporary):
            _remove(temporary)
        os.close(fd)


class _Unpacker:
    """One unpacking: folders, then files in parallel, then links, then the folders' modes and times from below."""

    def __init__(
        self,
        source: Source,
        folder: bytes,
        target: str,
        special_bits: bool,
        progress: Progress | None,
        warn: Callable[[str], None],
    ) -> None:
        self.source, self.tree, self.store = source, source.tree, source.store
        self.folder, self.target, self.warn = folder, target, warn
        self.kept_bits = 0o7777 if special_bits else 0o7777 & ~SPECIAL
        self.progress = progress

    def run(self, jobs: int, fd: int) -> None:
        """Restore everything below the folder, which is open as fd: in the end its mode may not let us in any more."""
        folders: list[tuple[bytes, int]] = [(b"", ROOT)]
        files: dict[int, bytes] = {}  # node -> its first path
        links: list[tuple[bytes, int]] = []
        try:
            for path, node in self.tree.walk():
                if self.tree.is_dir(node):
                    os.mkdir(os.path.join(self.folder, path), 0o700)
                    folders.append((path, node))
                elif self.tree.is_file(node) and node not in files:
                    files[node] = path
                else:
                    links.append((path, node))
            total = sum(self.store.length(self.tree.record(node)) for node in files)
            self.jobs = Jobs(total, self.progress)
            self.jobs.run(self._write_file, list(files.items()), jobs)
            self._make_links(links, files)
            for path, node in reversed(folders):
                full = os.path.join(self.folder, path) if path else self.folder
                os.chmod(full, int(self.tree.mode[node]) & 0o7777)
                self._set_time(full, node)
            # Everything to disk before the rename: one call for the file system instead of one per file.
            status = lib.fffs_syncfs(fd)
            if status != 0:
                raise OSError(-status, os.strerror(-status), self.folder)
        except OSError as error:
            if isinstance(error, (ReadError, WriteError)):
                raise
            path = os.fsencode(error.filename or self.folder).removeprefix(self.folder)
            raise WriteError(error.errno or errno.EIO, self._name(path)) from error
        stripped = sum(bool(int(self.tree.mode[node]) & SPECIAL & ~self.kept_bits) for node in files)
        if stripped:
            which = "1 file" if stripped == 1 else f"{stripped} files"
            self.warn(f"{which} unpacked without set-user-ID or set-group-ID bits (--special-bits restores them)")

    def _name(self, path: bytes) -> str:
        """A path below the temporary folder as the user knows it."""
        return os.path.join(self.target, os.fsdecode(path.lstrip(b"/"))) if path else self.target

    def _write_file(self, file: tuple[int, bytes]) -> None:
        node, path = file
        full = os.path.join(self.folder, path)
        fd = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            self.store.copy_to(self.tree.record(node), fd, self._name(path), self.jobs.count)
            os.fchmod(fd, int(self.tree.mode[node]) & self.kept_bits)
            os.utime(fd, ns=(int(self.tree.mtime[node]), int(self.tree.mtime[node])))
        finally:
            os.close(fd)

    def _make_links(self, links: list[tuple[bytes, int]], files: dict[int, bytes]) -> None:
        """Hard links to the files just written, and symbolic links (which may have several names too)."""
        first = dict(files)
        for path, node in links:
            full = os.path.join(self.folder, path)
            if node in first:
                os.link(os.path.join(self.folder, first[node]), full, follow_symlinks=False)
                continue
            os.symlink(self.tree.target(node), full)
            self._set_time(full, node)
            first[node] = path

    def _set_time(self, path: bytes, node: int) -> None:
        mtime = int(self.tree.mtime[node])
        os.utime(path, ns=(mtime, mtime), follow_symlinks=False)
