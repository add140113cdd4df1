"""unpack: restores a packed folder as a real one.

The folder is built under a temporary name beside the target and renamed when complete. Nothing is written outside it:
the tree has no name that contains ``/`` or is ``..``, and every path is opened one folder at a time, by descriptors
from the new folder on, never through a symbolic link, even if a folder is replaced meanwhile (``fffs.files.dirfd``).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import unicodedata
from collections.abc import Callable

import numpy as np

from fffs.base.descriptors import above_standard
from fffs.base.failures import writing
from fffs.base.jobs import Jobs, Progress, default_jobs
from fffs.base.numbers import check_positive
from fffs.base.paths import PathLike, named
from fffs.base.text import plural
from fffs.errors import ReadError, RecordError, WriteError
from fffs.files.atomic_folder import AtomicFolder, refuse_content
from fffs.files.dirfd import Ways
from fffs.files.pwrite import NewFile
from fffs.files.rights import set_mode, set_time
from fffs.files.write_back import WriteBack
from fffs.layouts import load_source
from fffs.layouts.view import TreeView
from fffs.native.engine import BLOCK
from fffs.packing.linking import NEW_FILE, Linker
from fffs.packing.new_files import NewFiles
from fffs.packing.places import Places
from fffs.packing.runs import RUNS
from fffs.packing.shared_records import refuse_multiplied
from fffs.tree.tree import ROOT

log = logging.getLogger("fffs.unpack")

ONE_NAME = "its file system takes it for another name of the source, as if case did not matter; use another one"
SPECIAL = stat.S_ISUID | stat.S_ISGID


def unpack(
    source: PathLike | TreeView,
    target: PathLike,
    *,
    special_bits: bool = False,
    jobs: int | None = None,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
    leave_out: Callable[[str, RecordError | ReadError], None] | None = None,
) -> None:
    """Unpack a source into ``target``, a missing or empty folder. The target appears complete or not at all.

    Args:
        source: a path, or a result of ``load_source``, which the caller closes.
        target: the folder to make.
        special_bits: restore set-user-ID and set-group-ID bits, and the sticky bits of files. By default they are left
            out with a warning: otherwise the author of the pack could choose what runs with the rights of the user who
            unpacks it. The sticky bits of folders only restrict rights, and are always restored.
        jobs: how many threads write files.
        progress: called with (bytes done, total bytes) from time to time, from any thread.
        warn: called with a line for each thing that is not restored, is a copy instead of a hard link, or is hidden in
            the source; the default logs it.
        leave_out: called, from any thread, with the path in the target and the error of each file whose record is bad;
            the other files are unpacked. Without it, the first bad record ends unpacking.

    Raises:
        SourceNotFoundError, FormatError, ReadError: the source is a path that cannot be opened.
        UsageError: the target exists and is not an empty folder, is a mount point or the current folder, or is an empty
            folder that would lose its owner or other properties of its own, or is locked.
        UnsupportedError: files share records and would take more bytes than the source has; or the file system cannot
            make all hard links, and the copies in their place would take more than that.
        ChecksumError, TruncatedError, ReadError: a record is bad, and leave_out is None. The target is unchanged.
        WriteError: the target cannot be written.

    Examples:
        >>> fffs.unpack("photos.ffr", "restored")
        >>> sorted(os.listdir("restored"))
        ['cat', 'dog']

    """
    check_positive(jobs=jobs)
    name = named(target, "the folder to unpack into")
    refuse_content(name, follow=True)
    path = os.path.realpath(name) if os.path.islink(name.rstrip("/")) else name
    with contextlib.ExitStack() as opened:
        if not isinstance(source, TreeView):
            source = opened.enter_context(load_source(source))
            for line in source.warnings:
                (warn or log.warning)(line)
        refuse_multiplied(source)
        folder = opened.enter_context(AtomicFolder(path, name))
        _Unpacker(source, folder, special_bits, progress, warn or log.warning, leave_out).run(jobs or default_jobs())


class _Unpacker:
    """Makes folders, writes files in parallel, makes links, then sets modes and times of folders, deepest first."""

    def __init__(
        self,
        source: TreeView,
        folder: AtomicFolder,
        special_bits: bool,
        progress: Progress | None,
        warn: Callable[[str], None],
        leave_out: Callable[[str, RecordError | ReadError], None] | None,
    ) -> None:
        self.tree, self.store = source.tree, source.store
        self.folder, self.warn, self.leave_out = folder, warn, leave_out
        self.plain: list[int] = []  # how many modes or times could not be set
        self.left_out: dict[int, RecordError | ReadError] = {}
        self.special_bits, self.progress = special_bits, progress
        self.places = Places(self.tree)
        self.files = NewFiles(self.tree, self.store, self.places, self._mode_mask(False))
        self.ways = Ways(folder.fd, force=True)  # a umask may forbid entering the folders that were just made
        self.linker = Linker(self.ways, folder.shown, self.store.size, self._copy_again)

    def run(self, jobs: int) -> None:
        """Restore everything below the folder, then rename it to the target."""
        runs = len(self.files.runs) - 1
        try:
            self._make_folders()
            self._check_links()
            self.jobs = Jobs(int(self.files.sizes.sum()), self.progress)
            # Threads that make files in one folder wait for each other, so each takes many runs at a time.
            self.jobs.run(self._make_files, range(runs), jobs, max(RUNS, runs // (8 * jobs)))
            self._make_links()
            for path, node in reversed(self.places.folders):
                with writing(self._shown(path)), self.ways.at(path) as fd:
                    self._restore(fd, node)
        except WriteError as error:
            if error.errno == errno.EEXIST and self._has_like_names(error.filename):
                error.detail = ONE_NAME
            raise
        finally:
            self.ways.close()
        self.folder.commit(self._mode(ROOT), int(self.tree.mtime[ROOT]))
        if line := self.linker.warning():
            self.warn(line)
        if count := sum(self.plain):
            names = plural(count, "name")
            self.warn(f"{self.folder.shown}: {names} without mode or time: this file system does not let fffs set them")
        self._warn_of_bits()

    def _make_folders(self) -> None:
        for path, _ in self.places.folders:
            parent, name = os.path.split(path)
            with writing(self._shown(path)), self.ways.at(parent) as fd:
                os.mkdir(name, 0o700, dir_fd=fd)

    def _has_like_names(self, shown: str) -> bool:
        """Whether the source has another name beside this one that differs from it only in case or Unicode form."""
        folder, name = os.path.split(os.fsencode(os.path.relpath(shown, self.folder.shown)))
        beside = (os.fsdecode(other) for other, _ in self.tree.entries(self.tree.find(folder)))
        return sum(_folded(other) == _folded(os.fsdecode(name)) for other in beside) > 1

    def _shown(self, path: bytes) -> str:
        """Return the name of a path below the folder for messages."""
        return os.path.join(self.folder.shown, os.fsdecode(path))

    def _check_links(self) -> None:
        """Check that all hard links, or copies in their place, can be made."""
        nodes = self.tree.entry_nodes[self.places.links]
        nodes = nodes[self.tree.kinds[nodes] == stat.S_IFREG]
        with writing(self.folder.shown):
            self.linker.check(sum(self._size_of(node) for node in nodes.tolist()))

    def _size_of(self, node: int) -> int:
        """Return how many bytes a copy of the node would take."""
        is_file = self.tree.is_file(node)
        return self.store.length(self.tree.record(node)) if is_file else len(self.tree.target(node))

    def _make_files(self, run: int) -> None:
        """Make a large file, or several small ones of a folder."""
        files, first, last = self.files, int(self.files.runs[run]), int(self.files.runs[run + 1])
        data = files.read(first, last) if files.sizes[first] <= BLOCK else None
        if data is None:
            for k in range(first, last):
                self._make_alone(k)
            return
        at, folder = first, self.places.folder_of(int(files.entries[first]))
        while at < last:
            begin = at
            with writing(self._shown(folder)), self.ways.at(folder) as fd:
                at, error, plain = files.make(first, last, data, begin, fd)
            self.plain.append(plain)
            if error not in (0, errno.EBADMSG):
                raise WriteError(error, self._shown(self.places.path(int(files.entries[at]))))
            self.jobs.count(int(files.sizes[begin:at].sum()))
            if error:
                self._make_alone(at)  # which says what is wrong with its record
                at += 1

    def _make_alone(self, k: int) -> None:
        entry = int(self.files.entries[k])
        self._write(int(self.tree.entry_nodes[entry]), self.places.path(entry), self.jobs.count)

    def _copy_again(self, node: int, path: bytes) -> None:
        """Write a node a second time, at another path. This does not count as progress."""
        if self.tree.is_file(node):
            self._write(node, path, lambda _: None)
        else:
            self._make_symlink(node, path)

    def _write(self, node: int, path: bytes, count: Callable[[int], None]) -> None:
        try:
            self._copy(node, path, count)
        except (RecordError, ReadError) as error:
            if self.leave_out is None:
                _name_file(error, path)
                raise
            error.with_traceback(None)  # a traceback would keep the frames of _copy alive for each bad file
            folder, name = os.path.split(path)
            with writing(self._shown(path)), self.ways.at(folder) as dir_fd:
                os.unlink(name, dir_fd=dir_fd)
            self.left_out[node] = error
            self.leave_out(self._shown(path), error)

    def _copy(self, node: int, path: bytes, count: Callable[[int], None]) -> None:
        folder, name = os.path.split(path)
        with writing(self._shown(path)):
            with self.ways.at(folder) as dir_fd:
                fd = above_standard(os.open(name, NEW_FILE, 0o600, dir_fd=dir_fd))
            write_back = WriteBack(fd)

            def wrote(size: int) -> None:
                write_back.wrote(size)
                count(size)

            try:
                self.store.copy_to(self.tree.record(node), NewFile(fd, self._shown(path)), wrote)
                self._restore(fd, node)
            finally:
                os.close(fd)

    def _make_links(self) -> None:
        """Make hard links to the written files, and symbolic links, which may also have several names."""
        first: dict[int, bytes] = {}
        for entry in self.places.links.tolist():
            node, path = int(self.tree.entry_nodes[entry]), self.places.path(entry)
            if self.leave_out and node in self.left_out:
                self.leave_out(self._shown(path), self.left_out[node])
                continue
            with writing(self._shown(path)):
                if node not in first and self.tree.is_file(node):
                    first[node] = self.places.first_path(node)
                if node in first:
                    first[node] = self.linker.link(node, self._size_of(node), first[node], path)
                else:
                    self._make_symlink(node, path)
                    first[node] = path

    def _make_symlink(self, node: int, path: bytes) -> None:
        folder, name = os.path.split(path)
        with self.ways.at(folder) as fd:
            os.symlink(self.tree.target(node), name, dir_fd=fd)
            if not set_time(name, int(self.tree.mtime[node]), fd):
                self.plain.append(1)

    def _mode_mask(self, is_folder: bool) -> int:
        return 0o7777 if self.special_bits else 0o1777 if is_folder else 0o777

    def _mode(self, node: int) -> int:
        return int(self.tree.mode[node]) & self._mode_mask(self.tree.is_dir(node))

    def _restore(self, fd: int, node: int) -> None:
        """Set mode and time, if the file system supports them."""
        if not set_mode(fd, self._mode(node)) or not set_time(fd, int(self.tree.mtime[node])):
            self.plain.append(1)

    def _warn_of_bits(self) -> None:
        if self.special_bits:
            return
        special, kinds = self.tree.mode & SPECIAL != 0, self.tree.kinds
        special[list(self.left_out)] = False
        counts = [int(np.count_nonzero(special & (kinds == kind))) for kind in (stat.S_IFREG, stat.S_IFDIR)]
        which = [plural(count, what) for count, what in zip(counts, ("file", "folder"), strict=True) if count]
        if which:
            self.warn(
                f"{' and '.join(which)} unpacked without set-user-ID or set-group-ID bits "
                "(--special-bits restores them)"
            )


def _name_file(error: RecordError | ReadError, path: bytes) -> None:
    """Add the path of the file to the error of its record."""
    name = repr(os.fsdecode(path))
    if isinstance(error, ReadError):
        error.detail = f"{error.detail}, {name}" if error.detail else name
    else:
        error.args = (f"{error} (file {name})",)


def _folded(name: str) -> str:
    """Return what is equal for names that a file system may take for one."""
    return unicodedata.normalize("NFC", name.casefold())
