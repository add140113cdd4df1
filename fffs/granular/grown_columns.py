"""GrownColumns: appends rows to a data set in layout v3."""

from __future__ import annotations

import errno
import os

from fffs.base.descriptors import above_standard
from fffs.base.failures import reading, writing
from fffs.errors import MetadataError, SourceNotFoundError, UsageError, WriteError
from fffs.files.atomic import PLACE, AtomicFile
from fffs.files.atomic_folder import AtomicFolder, make_folder
from fffs.files.dirfd import close
from fffs.files.file_systems import is_of_this_machine
from fffs.files.pwrite import write_at
from fffs.files.sync import sync_files, sync_together
from fffs.formats.bag import SUFFIX, sidecars
from fffs.granular import spec as specs
from fffs.granular.bag_streams import AppendedBag
from fffs.granular.columns import Blobs, create_file, refuse_misfit
from fffs.granular.flush_marker import FlushMarker

# Rows after which they are flushed, so that a writer which is killed loses no more, and needs bounded memory.
UNFLUSHED = 1 << 16


class GrownColumns:
    """A data set in layout v3, to which rows are appended. Not thread-safe.

    A row exists once it is in all columns. A killed writer may leave rows in only some columns; these are cut off when
    the data set is opened for appending again. Columns of different lengths that have another cause are an error.
    """

    def __init__(self, path: str, spec: dict[str, str], cut_to: int | None = None) -> None:
        """cut_to: cut all columns to this number of rows first, whatever the cause is."""
        self._bags: list[AppendedBag] = []
        self._path = path
        self._is_new = make_columns(path, spec)
        with writing(path):
            self._folder = above_standard(os.open(path, PLACE))
        self._marker = FlushMarker(self._folder, path)
        try:
            for key in spec:
                self._bags.append(AppendedBag(os.path.join(path, key + SUFFIX), self._folder, cut=cut_to is not None))
            self._flushed = self._unfinished() if cut_to is None else self._chosen(cut_to)
            for bag in self._bags:
                bag.begin(self._flushed, asked=cut_to is not None)
            self._marker.create(self._flushed, self._bags[0].rights())
        except BaseException:
            self._marker.remove()
            self._close()
            raise

    def _unfinished(self) -> int:
        """Return how many rows to keep. Raises MetadataError if columns differ for another reason than a killed writer:
        what is in only some of them may be the only copy.
        """
        found = [bag.found for bag in self._bags]
        marked = self._marker.read()
        if min(found) in marked and max(found) in marked:
            return min(found) if min(found) == max(found) else marked.start
        if min(found) != max(found):
            short, long = (self._bags[found.index(count)] for count in (min(found), max(found)))
            raise MetadataError(
                f"{short.path}: it has {min(found)} records, but {os.path.basename(long.path)} has {max(found)}, and "
                f"no killed writer of fffs left that; copy the data set again, or remove what is not in all columns: "
                f"DatasetWriter(..., layout='v3', cut_to={min(found)})"
            )
        for bag in self._bags:
            bag.refuse_lost()
        return min(found)

    def _chosen(self, rows: int) -> int:
        for bag in self._bags:
            if not 0 <= rows <= bag.found:
                raise UsageError(f"{bag.path}: it has {bag.found} records and cannot be cut to {rows}")
        return rows

    def __len__(self) -> int:
        return len(self._bags[0])

    @property
    def size(self) -> int:
        """The size in bytes that all Bags with their tables have after a flush."""
        return sum(bag.size for bag in self._bags)

    def append(self, blobs: Blobs) -> None:
        """Add a row. If this raises, rows that were not flushed must be discarded."""
        for bag, blob in zip(self._bags, blobs, strict=True):
            refuse_misfit(bag.path, os.path.basename(bag.path).removesuffix(SUFFIX), blob, sequence=False)
            bag.append(blob)  # type: ignore[arg-type]  # not a list
        if len(self) - self._flushed == UNFLUSHED:
            self.flush()

    def flush(self) -> None:
        """Make all rows permanent and visible. The disk is waited for twice, however many columns there are."""
        if len(self) == self._flushed:
            return
        for bag in self._bags:
            bag.write_records()
        self._marker.begin_flush(self._flushed, len(self))
        # Before any table: its entries must have their records, and a reader of the marker all numbers of rows.
        with writing(self._path):
            sync_together([*self._marker.descriptors, *(bag.records for bag in self._bags)])
        self._is_new = False  # a new folder is on a disk of this machine, all of which was synced
        for bag in self._bags:
            bag.write_table()
        with writing(self._path):
            sync_together(bag.entries for bag in self._bags)
        for bag in self._bags:
            bag.keep()
        self._flushed = len(self)
        self._marker.end_flush(self._flushed)

    def complete(self) -> str:
        """Flush. Returns the path of the folder."""
        self.flush()
        return self._path

    def finish(self) -> None:
        """Flush and close."""
        self.flush()
        if self._is_new:
            with writing(self._path):
                sync_files(self._bags[0].records)
        self._marker.remove()
        self._close()

    def discard(self) -> None:
        """Discard rows that were not flushed."""
        left = {bag.rollback() for bag in self._bags}
        if len(left) == 1 and None not in left:
            self._marker.remove()
        self._close()

    def _close(self) -> None:
        self._marker.close()
        for bag in self._bags:
            bag.close()
        if self._folder >= 0:
            close(self._folder)
        self._folder = -1


def make_columns(path: str, spec: dict[str, str]) -> bool:
    """Create an empty data set, or its spec.json in an existing folder, or check that an existing spec is equal.

    Returns whether its folder is new and not durable yet: the caller syncs the file system, one of this machine, at the
    end of its first flush at the latest.

    Raises:
        UsageError: the folder has a data set with another spec, or of another layout.
        MetadataError: a column is missing. WriteError: nothing can be made there.

    """
    if specs.REFS not in spec and os.path.lexists(os.path.join(path, specs.REFS + SUFFIX)):
        raise UsageError(f"{path}: cannot append to a data set of granular before 0.22; write a new one")
    is_new = not os.path.lexists(path) and _make_empty(path, spec)
    make_folder(path)  # or raise because it is none
    try:
        _refuse_other(path, specs.load(path), spec)
        _refuse_missing(path, spec)
    except SourceNotFoundError:
        _refuse_missing(path, spec)
        _refuse_other(path, _write_spec(path, spec), spec)
    return is_new


def _refuse_other(path: str, found: dict[str, str], spec: dict[str, str]) -> None:
    if found != spec:
        raise UsageError(f"{path}: a data set with another spec: {found}"[:500])


def _files_of(bag: str) -> list[str]:
    """Return the files of a Bag that exist."""
    return [name for name in (bag, sidecars(bag)[0]) if os.path.lexists(name)]


def _make_empty(path: str, spec: dict[str, str]) -> bool:
    """Create an empty data set, which appears complete, unless another process makes that folder meanwhile.

    Returns as ``make_columns``. File systems of this machine keep the order of changes to folders, so that a power
    failure leaves all files or no folder; only the content of spec.json must be on the disk before.
    """
    make_folder(os.path.dirname(path.rstrip("/")) or ".")
    with AtomicFolder(path, path) as folder:
        is_here = is_of_this_machine(folder.fd)
        contents = {specs.NAME: specs.encode(spec)}
        for key in spec:
            contents |= dict.fromkeys((key + SUFFIX, os.path.basename(sidecars(key + SUFFIX)[0])), b"")
        for name, content in contents.items():
            file = create_file(folder.fd, os.path.join(path, name))
            try:
                write_at(file, [content], 0)
                if content and is_here:
                    with writing(file.path):
                        os.fdatasync(file.fd)
            finally:
                close(file.fd)
        try:
            folder.commit(durable=not is_here)
        except WriteError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            return False
    return is_here


def _write_spec(path: str, spec: dict[str, str]) -> dict[str, str]:
    """Write spec.json, unless another process writes one meanwhile. Returns that which is there."""
    with AtomicFile(os.path.join(path, specs.NAME)) as file:
        file.replaces = False
        write_at(file, [specs.encode(spec)], 0)
        try:
            file.commit()
        except WriteError as error:
            if error.errno != errno.EEXIST:
                raise
    return specs.load(path)


def _refuse_missing(path: str, spec: dict[str, str]) -> None:
    """Raise MetadataError if a column is missing while another one has records: it was lost, or its key was added."""
    bags = [os.path.join(path, key + SUFFIX) for key in spec]
    with reading(path):
        sizes = {bag: [os.lstat(name).st_size for name in _files_of(bag)] for bag in bags}
    full = [bag for bag, found in sizes.items() if any(found)]
    for bag, found in sizes.items():
        if full and not found:
            raise MetadataError(
                f"{bag}: this column is missing, but {os.path.basename(full[0])} has records; copy it from where the "
                f"data set came from, or remove its key from {os.path.join(path, specs.NAME)}"
            )
