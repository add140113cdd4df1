"""unpack: a packed folder back into a real one.

It is built under a temporary name beside the target and renamed when complete. Nothing is ever written outside: the tree holds no name
with ``/`` and no ``..``, every folder is made here, and nothing is below a symbolic link.
"""

from __future__ import annotations

import errno
import glob
import logging
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from fffs.errors import ReadError, UsageError, WriteError
from fffs.layouts import Source
from fffs.native import lib
from fffs.pack import Progress, default_jobs
from fffs.tree import ROOT

log = logging.getLogger("fffs.unpack")

SUFFIX = ".fffs-tmp"
SPECIAL = stat.S_ISUID | stat.S_ISGID
SLICE = 256


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
        special_bits: give files their set-user-ID and set-group-ID bits; otherwise they are left out with a warning, because whoever
            made the pack would choose what runs with the rights of whoever unpacks it.
        jobs: how many files are written at once.
        progress: called with (bytes done, bytes in all) from time to time, from any thread.
        warn: called with a line for what is not restored; the default logs it.

    Raises:
        UsageError: the target is there and not empty.
        ChecksumError, TruncatedError, ReadError: a record is bad; nothing is left at the target.
        WriteError: the target cannot be written.

    """
    path = os.fsencode(target).rstrip(b"/") or b"/"
    if os.path.lexists(path) and not (os.path.isdir(path) and not os.listdir(path)):
        raise UsageError(f"{os.fsdecode(path)}: already exists; unpack into a new or an empty folder")
    with _temporary_folder(path) as temporary:
        _Unpacker(source, temporary, special_bits, progress, warn or log.warning).run(jobs or default_jobs())
        try:
            os.rename(temporary, path)
        except OSError as error:
            raise WriteError(error.errno or errno.EIO, os.fsdecode(path)) from error


@contextmanager
def _temporary_folder(target: bytes) -> Iterator[bytes]:
    """A new folder beside the target, removed unless it was renamed away. Leftovers of the dead are removed first."""
    parent, name = os.path.split(target)
    stem = b"." + name[:200] + b"."
    for left in glob.glob(os.path.join(glob.escape(parent), glob.escape(stem) + b"*" + SUFFIX.encode())):
        pid = left[: -len(SUFFIX)].rsplit(b"-", 1)[-1]
        if pid.isdigit() and not os.path.exists(b"/proc/" + pid):
            shutil.rmtree(left, ignore_errors=True)
    unique = f"{secrets.token_hex(6)}-{os.getpid()}{SUFFIX}".encode()
    temporary = os.path.join(parent, stem + unique)
    try:
        os.mkdir(temporary, 0o700)
    except OSError as error:
        raise WriteError(error.errno or errno.EIO, os.fsdecode(target)) from error
    try:
        yield temporary
    finally:
        if os.path.lexists(temporary):
            shutil.rmtree(temporary, ignore_errors=True)


class _Unpacker:
    """One unpacking: folders first, then files in parallel, then links, then the folders' modes and times from below."""

    def __init__(
        self, source: Source, folder: bytes, special_bits: bool, progress: Progress | None, warn: Callable[[str], None]
    ) -> None:
        self.source, self.tree, self.store = source, source.tree, source.store
        self.folder, self.progress, self.warn = folder, progress, warn
        self.kept_bits = 0o7777 if special_bits else 0o7777 & ~SPECIAL
        self.stripped = 0
        self.total = self.done = 0

    def run(self, jobs: int) -> None:
        """Restore everything below the folder."""
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
            self.total = sum(self.store.length(self.tree.record(node)) for node in files)
            self._write_files(list(files.items()), jobs)
            self._make_links(links, files)
            for path, node in reversed(folders):
                full = os.path.join(self.folder, path) if path else self.folder
                os.chmod(full, int(self.tree.mode[node]) & 0o7777)
                self._set_time(full, node)
            self._sync()
        except OSError as error:
            if isinstance(error, (ReadError, WriteError)):
                raise
            raise WriteError(error.errno or errno.EIO, os.fsdecode(error.filename or self.folder)) from error
        if self.stripped:
            self.warn(f"{self.stripped} files lost their set-user-ID or set-group-ID bit (--special-bits keeps them)")

    def _write_files(self, files: list[tuple[int, bytes]], jobs: int) -> None:
        slices = [files[k : k + SLICE] for k in range(0, len(files), SLICE)]
        with ThreadPoolExecutor(jobs) as pool:
            futures = [pool.submit(self._write_slice, part) for part in slices]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _write_slice(self, files: list[tuple[int, bytes]]) -> None:
        for node, path in files:
            self._write_file(node, os.path.join(self.folder, path))
            self.done += self.store.length(self.tree.record(node))
            if self.progress:
                self.progress(self.done, self.total)

    def _write_file(self, node: int, path: bytes) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            self.store.copy_to(self.tree.record(node), fd, os.fsdecode(path))
            mode = int(self.tree.mode[node])
            self.stripped += bool(mode & SPECIAL & ~self.kept_bits)
            os.fchmod(fd, mode & self.kept_bits)
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

    def _sync(self) -> None:
        """Everything to disk before the rename: one call for the file system instead of one per file."""
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            status = lib.fffs_syncfs(fd)
        finally:
            os.close(fd)
        if status != 0:
            raise OSError(-status, os.strerror(-status), self.folder)


