"""ResumedColumns: goes on with a data set in layout v3 that granular's writers may have written to, too."""

from __future__ import annotations

import os

from fffs.base.descriptors import above_standard
from fffs.base.failures import writing
from fffs.errors import UsageError
from fffs.files.atomic import PLACE
from fffs.files.dirfd import close
from fffs.files.sync import sync_together
from fffs.formats.bag import SUFFIX
from fffs.granular.columns import Blobs, refuse_misfit
from fffs.granular.grown_columns import UNFLUSHED, make_columns
from fffs.granular.resumed_bag import ResumedBag


class ResumedColumns:
    """A data set in layout v3, to which rows are appended as granular 0.24 does. Not thread-safe.

    A stopped writer may leave more records in some columns than in others. The rows that are in all columns count; the
    next rows must have the records that are there already. A flush passes rows to the operating system, so that they
    survive the end of the process; ``finish`` syncs them, all files together.
    """

    def __init__(self, path: str, spec: dict[str, str]) -> None:
        """Raises as ``make_columns`` and ResumedBag."""
        self._path, self._keys = path, list(spec)
        self._bags: list[ResumedBag] = []
        make_columns(path, spec)
        with writing(path):
            self._folder = above_standard(os.open(path, PLACE))
        try:
            for key in spec:
                self._bags.append(ResumedBag(os.path.join(path, key + SUFFIX), self._folder))
        except BaseException:
            self._close()
            raise
        self._rows = self._flushed = min(bag.found for bag in self._bags)

    def __len__(self) -> int:
        return self._rows

    @property
    def size(self) -> int:
        """The size in bytes that all Bags with their tables have after a flush."""
        return sum(bag.size for bag in self._bags)

    def append(self, blobs: Blobs) -> None:
        """Add a row. If this raises, rows that were not flushed must be discarded.

        Raises:
            UsageError: a column has another record in this row already. WriteError.

        """
        ahead = [bag for bag in self._bags if bag.found > self._rows]
        for key, bag, blob in zip(self._keys, self._bags, blobs, strict=True):
            refuse_misfit(bag.path, key, blob, sequence=False)
            if bag in ahead and bag.read_record(self._rows) != bytes(blob):  # type: ignore[arg-type]  # not a list
                raise UsageError(
                    f"{bag.path}: Record mismatch in column {key!r} at index {self._rows}: a stopped writer left"
                    f" another there; append the rows that it appended, or remove what is not in all columns: "
                    f"fffs.granular.DatasetWriter(..., layout='v3', cut_to={self._rows})"
                )
        for bag, blob in zip(self._bags, blobs, strict=True):
            if bag not in ahead:
                bag.append(blob)  # type: ignore[arg-type]  # not a list
        self._rows += 1
        if self._rows - self._flushed == UNFLUSHED:
            self.flush()

    def flush(self) -> None:
        """Make all rows visible. They survive a killed process, but a power failure only after ``finish``."""
        for bag in self._bags:
            bag.write_records()
        for bag in self._bags:
            bag.write_table()
            bag.keep()
        self._flushed = self._rows

    def complete(self) -> str:
        """Flush. Returns the path of the folder."""
        self.flush()
        return self._path

    def finish(self) -> None:
        """Flush, sync all files, and close."""
        self.flush()
        files = [fd for bag in self._bags for fd in bag.finish()]
        with writing(self._path):
            sync_together(files)
        self._close()

    def discard(self) -> None:
        """Discard rows that were not flushed."""
        for bag in self._bags:
            bag.rollback()
        self._close()

    def _close(self) -> None:
        for bag in self._bags:
            bag.close()
        if self._folder >= 0:
            close(self._folder)
        self._folder = -1
