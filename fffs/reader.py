"""FileReader: verified, batched reads of record files of every format."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from fffs.base.asynchronous import in_thread
from fffs.base.numbers import Indices
from fffs.base.paths import PathLike
from fffs.base.views import writable_bytes
from fffs.base.withblock import Closing
from fffs.errors import ClosedError, UsageError
from fffs.files.file import UInt8Array
from fffs.formats.bag import COMPRESSED
from fffs.formats.sources import expand_sources, open_files
from fffs.formats.table import recogniser
from fffs.records.identity import Identity
from fffs.records.index import RecordIndex
from fffs.records.policy import ReadPolicy
from fffs.records.reopening import refuse_others, refuse_replaced
from fffs.records.store import RecordStore

# What one read may bring along, and what a request has room for.
LARGEST_BLOCK = 1 << 30


class FileReader(Closing):
    """Reads records by number from one file, a folder of parts, or a list of files, numbered through.

    May be used from any thread, and after fork in parent and child. Can be pickled and copied: the copy opens the
    files anew, also on another machine, and raises SourceChangedError where they are not those that they were. That is
    seen by their sizes, and by where their records lie and their checksums; in formats without checksums a file of the
    same size and framing passes, but for the file itself on this machine, which must have its modification time.
    """

    def __init__(
        self,
        fname: PathLike | list[Any] | tuple[Any, ...],
        check_data: bool = True,
        *,
        format: str | None = None,
    ) -> None:
        """fname: a path, a folder of parts or shards, or a list of paths. check_data: compare checksums at every read,
        where the format has them. format: "ffrecord", "tfrecord", "ofrecord", "bag"; None: as each file is recognised.

        Raises:
            SourceNotFoundError: a file is not there, a folder has no record files, or parts of them are missing.
            FormatError: a file is damaged, unfinished, or of no known format.
            MetadataError: a table of checksums beside it does not fit.
            UsageError: no file, an unknown format, or a ``.bagz``, for which there is ``fffs.open``.
            ReadError: the operating system could not read.

        """
        self._store: RecordStore | None = None
        self._format = format
        self.check_data = bool(check_data)
        self.fnames = expand_sources(fname)
        if not self.fnames:
            raise UsageError("FileReader needs at least one file")
        for name in self.fnames:
            if name.endswith(COMPRESSED) and format is None:
                raise UsageError(f"{name}: its records are compressed; open it with fffs.open")
        self._store = RecordStore(open_files(self.fnames, self.check_data, format), ReadPolicy(check=self.check_data))
        self._store.expect_random_reads()
        self.n = self._store.n

    @property
    def store(self) -> RecordStore:
        """The open files; raises ClosedError after ``close``."""
        if self._store is None or self._store.closed:
            raise ClosedError("FileReader has been closed.")
        return self._store

    def __len__(self) -> int:
        return self.n

    # ------------------------------------------------------------ reading

    def read(self, indices: Indices) -> list[UInt8Array]:
        """Read any number of records in one batch.

        Args:
            indices: list, tuple, range, set, generator or integer array of record numbers; negative ones count from
                the end.

        Returns:
            One 1-D writable uint8 array per index, in the order asked; duplicates are copies. They outlive the reader
            and share one buffer: copy a record that is kept much longer than the rest of its batch.

        Raises:
            RecordIndexError, ChecksumError, TruncatedError, ReadError, ClosedError.

        """
        return self.store.read(indices)

    def read_joined(self, indices: Indices) -> tuple[UInt8Array, npt.NDArray[np.int64]]:
        """Read records in one batch, one after another in one buffer: what a batch of tensors wants.

        Returns:
            The buffer (1-D, uint8, writable, the caller's) and int64[k + 1]: record i of the batch is
            ``buffer[offsets[i]:offsets[i + 1]]``.

        Raises:
            What ``read`` raises.

        """
        return self.store.read_joined(indices)

    def read_into(self, indices: Indices, out: Any) -> npt.NDArray[np.int64]:
        """Read records in one batch, one after another into the beginning of the caller's memory.

        Args:
            indices: as for ``read``.
            out: writable and contiguous, of any type and shape: an array, a bytearray, a memoryview, shared memory, a
                torch tensor on the CPU (also a pinned one). Nobody else may use it meanwhile.

        Returns:
            int64[k + 1]: the bytes of record i of the batch are those from offsets[i] to offsets[i + 1]. What is
            behind the last is untouched.

        Raises:
            UsageError: out is too small, read-only or not contiguous; and what ``read`` raises: then out's content is
            unspecified.

        """
        return self.store.read_into(indices, writable_bytes(out))

    def lengths(self, indices: Indices) -> npt.NDArray[np.int64]:
        """How long records are, in bytes: int64[k]; nothing is read.

        Raises:
            RecordIndexError, UsageError, TruncatedError, ClosedError.

        """
        return self.store.lengths(indices)

    def prefetch(self, indices: Indices) -> None:
        """Let the kernel begin to read records that will be wanted next, and return at once.

        Who reads batch after batch leaves a disk without work between one and the next, unless it is told: for that,
        call this with the next batch right before reading this one. What is in memory anyway costs a microsecond each.
        Does nothing for a reader that reads past the page cache.

        Raises:
            RecordIndexError, UsageError, TruncatedError, ClosedError. Errors of the disk come from the read.

        """
        self.store.prefetch(indices)

    def use_direct(self, wanted: bool = True) -> bool:
        """From now on read batches past the page cache, straight from the disk (O_DIRECT).

        For files that are much larger than memory: their pages would only push others out, and making, filling and
        forgetting them costs more than the reading. A disk that gives 1.5 GB/s through the page cache gave 2.3 past it.
        What is in the page cache is read from the disk all the same, so the second epoch is as slow as the first.
        ``fffs.torch.Dataset`` does this where it pays. Single records are read as before. Copies made by pickle do the
        same.

        Args:
            wanted: False: through the page cache again.

        Returns:
            Whether batches are read so: not unless all files are on file systems that can, and tell how (ext4, XFS and
            others, with Linux 6.1 or newer), nor where neither io_uring nor AIO can be used.

        Raises:
            ClosedError.

        """
        return self.store.use_direct(wanted)

    def use_blocks(self, size: int) -> None:
        """From now on let what a batch needs from the disk come with its neighbours, which then are there when wanted.

        For small records that will all be read, in any order, and fit into the page cache together: a disk gives blocks
        of 64 KiB about as often as it gives 8 KiB. ``fffs.torch.Dataset`` does this where it pays. What is in memory is
        read as before, and so are single records. Copies made by pickle do the same.

        Args:
            size: bytes of a block, up to 1 GiB; a record is read with all of the blocks that it is in. 0: alone.

        Raises:
            UsageError, ClosedError.

        """
        size = operator.index(size)
        if not 0 <= size <= LARGEST_BLOCK:
            raise UsageError(f"a block to read around a record has from 0 to {LARGEST_BLOCK} bytes, not {size}")
        self.store.use_blocks(size)

    async def read_async(self, indices: Indices) -> list[UInt8Array]:
        """``read`` for tasks of trio or asyncio: others run meanwhile. When it is cancelled, the batch is dropped."""
        return await in_thread(self.read, indices)

    async def read_joined_async(self, indices: Indices) -> tuple[UInt8Array, npt.NDArray[np.int64]]:
        """``read_joined`` for tasks of trio or asyncio."""
        return await in_thread(self.read_joined, indices)

    def read_one(self, index: int) -> UInt8Array:
        """Read one record as a 1-D writable uint8 array that outlives the reader; raises what ``read`` raises."""
        return self.store.read_one(index)

    def read_range(self, index: int, start: int, stop: int) -> UInt8Array:
        """The bytes from start to stop of one record (both clipped to it), verified like everything else."""
        return self.store.read_range(index, start, stop)

    def validate(self) -> None:
        """Check the index of each file again, as when it was opened; raises MetadataError."""
        store = self.store
        with store.use():
            for source in store.files:
                recogniser(self._format)(source.file).load_index(source.file, True)

    # ------------------------------------------------------------ the index

    def index(self, file_index: int = 0) -> RecordIndex:
        """Where the records of one file lie, and how they are checked. Its arrays are shared: copy what you change.

        Raises:
            UsageError: there is no such file. ClosedError.

        """
        files = self.store.files
        if not -len(files) <= file_index < len(files):
            raise UsageError(f"there is no file {file_index}: this reader has {len(files)}")
        return files[file_index].index

    def get_offsets(self, file_index: int = 0) -> npt.NDArray[np.int64]:
        """int64[n + 1]: where each record of a file begins, and the file's size. A new array; raises as ``index``."""
        index = self.index(file_index)
        return np.append(index.starts, index.file_size)

    def get_checksums(self, file_index: int = 0) -> npt.NDArray[np.uint32]:
        """uint32[n]: the checksum of each record of a file: CRC-32, of TFRecord CRC-32C; zeros where there is none.

        A new array; raises as ``index``.
        """
        index = self.index(file_index)
        return np.zeros(len(index), np.uint32) if index.checksums is None else index.checksums.copy()

    # ------------------------------------------------------------ life

    def close(self) -> None:
        """Close the files, once reads in other threads are done. May be called again."""
        if self._store is not None:
            self._store.close()

    def __reduce__(self) -> tuple[Any, ...]:
        # Without a format, what subclasses take as well.
        kind = type(self) if self._format is None else partial(type(self), format=self._format)
        made = kind, (self.fnames, self.check_data)
        if self._store is None:
            return made
        refuse_replaced(self._store, lambda: FileReader(self.fnames, self.check_data, format=self._format).store)
        return *made, (self._store.policy, self._store.identity)

    def __setstate__(self, state: tuple[ReadPolicy, list[Identity]]) -> None:
        policy, identity = state
        refuse_others(self.store, identity)
        self.use_blocks(policy.around)
        self.use_direct(policy.direct)

    def __repr__(self) -> str:
        state = "closed" if self._store is None or self._store.closed else f"{self.n} records"
        return f"<FileReader {self.fnames[0]!r}{'…' if len(self.fnames) > 1 else ''}: {state}>"
