"""FileReader: verified, batched reads of record files of all formats."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from fffs.base.asynchronous import in_thread
from fffs.base.buffers import writable_bytes
from fffs.base.cache_settings import cache_options, caching
from fffs.base.numbers import Indices
from fffs.base.paths import PathLike
from fffs.base.withblock import Closing
from fffs.errors import ClosedError, UsageError
from fffs.files.file import UInt8Array
from fffs.formats.bag import COMPRESSED
from fffs.formats.sources import expand_sources, open_files
from fffs.formats.table import format_with, recogniser
from fffs.objects.names import shown
from fffs.records import index_cache
from fffs.records.identity import Identity
from fffs.records.index import RecordIndex
from fffs.records.policy import ReadPolicy
from fffs.records.reopening import OpenedNames, opened_again, refuse_others, refuse_replaced
from fffs.records.sequence import RecordSequence
from fffs.records.store import RecordStore

LARGEST_BLOCK = 1 << 30  # bytes: limits what one read fetches, and fits into a request


class FileReader(RecordSequence, Closing):
    """Reads records by number from a file, a folder of parts, or a list of files, whose records are numbered
    consecutively. ``reader[k]``, ``reader[a:b]`` and iteration work, too; ``read`` is the fastest.

    May be used from any thread, and after fork in parent and child. Can be pickled and copied: the copy opens the
    files again, also on another machine, and raises SourceChangedError if they are different. A relative name is that
    of a file in the folder that was current when the reader was opened. The copy compares sizes, positions of records,
    and checksums. Without checksums, a different file with the same size and positions is accepted, unless it is on
    the same device of this machine and has another modification time.

    Examples:
        >>> with fffs.FileReader("train.ffr") as reader:
        ...     [bytes(record) for record in reader.read([2, 0, -2])]
        [b'three', b'one', b'two']

    """

    def __init__(
        self,
        fname: PathLike | list[Any] | tuple[Any, ...],
        check_data: bool = True,
        *,
        format: str | None = None,
        prefix: str | None = None,
        cache: PathLike | None = None,
        cache_size: str | int | None = None,
    ) -> None:
        """Open files. fname: a file, a folder of parts or shards, or a list of both. check_data: compare checksums at
        every read, if the format has them. format: "ffrecord", "tfrecord", "ofrecord" or "bag"; None: recognise each.
        prefix: of the names of OFRecord parts in folders, which are numbers otherwise; None: "part-".
        cache, cache_size: a folder that keeps what is read of objects in stores, or "off", and the most bytes there, as
        "20G" or "30%"; None: as FFFS_CACHE and FFFS_CACHE_SIZE say.

        Raises:
            SourceNotFoundError: a file or a part is missing, or a folder has no record files.
            FormatError: a file is damaged, unfinished, or of an unknown format.
            MetadataError: the checksum sidecar of a file does not match it.
            UsageError: there are no files, an argument is wrong, or a file is a ``.bagz`` (use ``fffs.open``).
            ReadError: the operating system could not read.

        """
        self._store: RecordStore | None = None
        format = format_with(prefix, format)
        self._options = cache_options(cache, cache_size) | ({} if format is None else {"format": format})
        self.check_data = bool(check_data)
        self.fnames = expand_sources(fname, prefix)
        self._names = OpenedNames(self.fnames)
        if not self.fnames:
            raise UsageError("FileReader needs at least one file")
        for name in self.fnames:
            if name.endswith(COMPRESSED) and format is None:
                raise UsageError(f"{name}: its records are compressed; open it with fffs.open")
        with caching(cache, cache_size):
            self._store = RecordStore(open_files(self.fnames, self.check_data, format))
        self._store.expect_random_reads()
        self.n = self._store.n

    @property
    def store(self) -> RecordStore:
        """The store of the open files. Raises ClosedError after ``close``."""
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
            One 1-D writable uint8 array per index, in the same order; duplicates are copies. They outlive the reader
            and share one buffer: copy a record that is kept much longer than the rest of its batch.

        Raises:
            RecordIndexError, UsageError, ChecksumError, TruncatedError, SourceChangedError, ReadError, ClosedError.

        """
        return self.store.read(indices)

    def read_joined(self, indices: Indices) -> tuple[UInt8Array, npt.NDArray[np.int64]]:
        """Read records in one batch, one after another in one buffer, as a batch of tensors needs them.

        Returns:
            The buffer (1-D, uint8, writable, owned by the caller) and offsets, int64[k + 1]: record i of the batch is
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
                torch tensor on the CPU (also a pinned one). No other thread may use it meanwhile.

        Returns:
            Offsets, int64[k + 1]: record i of the batch has the bytes from offsets[i] to offsets[i + 1]. Bytes after
            the last record are unchanged.

        Raises:
            UsageError: out is too small, read-only or not contiguous. Also what ``read`` raises; the content of out is
            then unspecified.

        """
        return self.store.read_into(indices, writable_bytes(out))

    def lengths(self, indices: Indices) -> npt.NDArray[np.int64]:
        """Return the lengths of records in bytes, int64[k], from the index.

        Raises:
            RecordIndexError, UsageError, TruncatedError, ClosedError.

        """
        return self.store.lengths(indices)

    def prefetch(self, indices: Indices) -> None:
        """Start to read records that will be asked for, and return without waiting.

        A program that reads batch after batch leaves the disk, or the network, idle between them. To avoid that, call
        this with the next batch right before reading the current one. It costs about a microsecond per record that is
        already in memory. Records of local files are read into the page cache; a reader that bypasses it does nothing.
        Those of objects in stores are read into memory, at most 256 MiB in a process, until they are asked for.

        Raises:
            RecordIndexError, UsageError, TruncatedError, ClosedError. The later read raises errors of the disk.

        """
        self.store.prefetch(indices)

    def use_direct(self, wanted: bool = True) -> bool:
        """Bypass the page cache for all further batches (O_DIRECT).

        This is for files that are much larger than memory: their pages would evict others, and managing the pages costs
        more than reading. A disk that read 1.5 GB/s through the page cache read 2.3 GB/s without it. Cached data is
        read from the disk as well, so the second epoch is as slow as the first. ``fffs.torch.Dataset`` does this if it
        is faster. Single records are read as before. Pickling keeps the setting.

        Args:
            wanted: False: use the page cache again.

        Returns:
            Whether batches bypass the page cache. This needs io_uring or AIO, and for all files a file system that
            supports it and reports the alignment (ext4, XFS and others, with Linux 6.1 or newer).

        Raises:
            ClosedError.

        """
        return self.store.use_direct(wanted)

    def use_blocks(self, size: int) -> None:
        """Read records of all further batches from the disk in larger blocks, which brings neighbours into the cache.

        This is for small records that are all read, in any order, and fit into the page cache together: a disk reads
        about as many blocks of 64 KiB per second as of 8 KiB. ``fffs.torch.Dataset`` does this if it is faster. Cached
        records and single records are read as before. Pickling keeps the setting.

        Args:
            size: bytes of a block, up to 1 GiB. A record is read with all blocks that contain its bytes. 0: alone.

        Raises:
            UsageError, ClosedError.

        """
        size = operator.index(size)
        if not 0 <= size <= LARGEST_BLOCK:
            raise UsageError(f"the size of a block must be from 0 to {LARGEST_BLOCK} bytes, not {size}")
        self.store.use_blocks(size)

    async def read_async(self, indices: Indices) -> list[UInt8Array]:
        """``read`` in a thread, for tasks of trio or asyncio. If the task is cancelled, the result is discarded."""
        return await in_thread(self.read, indices)

    async def read_joined_async(self, indices: Indices) -> tuple[UInt8Array, npt.NDArray[np.int64]]:
        """``read_joined`` in a thread, as ``read_async``."""
        return await in_thread(self.read_joined, indices)

    def read_one(self, index: int) -> UInt8Array:
        """Read one record as a 1-D writable uint8 array that outlives the reader; raises what ``read`` raises."""
        return self.store.read_one(index)

    def read_range(self, index: int, start: int, stop: int) -> UInt8Array:
        """Return the bytes of one record from start to stop (both limited to its length), verified: uint8[bytes].

        Raises what ``read`` raises.
        """
        return self.store.read_range(index, start, stop)

    def validate(self) -> None:
        """Load the index of each file again, with its checksum. Raises FormatError, ReadError, ClosedError."""
        store = self.store
        with store.use(), index_cache.unused():
            for source in store.files:
                recogniser(self._options.get("format"))(source.file).load_index(source.file, True)

    # ------------------------------------------------------------ the index

    def index(self, file_index: int = 0) -> RecordIndex:
        """Return the positions and checksums of the records of a file. The reader owns the arrays: do not modify them.

        Raises:
            UsageError: there is no such file. ClosedError.

        """
        files = self.store.files
        if not -len(files) <= file_index < len(files):
            raise UsageError(f"there is no file {file_index}: this reader has {len(files)}")
        return files[file_index].index

    def get_offsets(self, file_index: int = 0) -> npt.NDArray[np.int64]:
        """Return the offset of each record of a file, and the file's size: int64[n + 1], new. Raises as ``index``."""
        index = self.index(file_index)
        return np.append(index.starts, index.file_size)

    def get_checksums(self, file_index: int = 0) -> npt.NDArray[np.uint32]:
        """Return the checksums of the records of a file: uint32[n], new. Raises as ``index``.

        They are CRC-32, for TFRecord files CRC-32C, and zeros if there are none.
        """
        index = self.index(file_index)
        return np.zeros(len(index), np.uint32) if index.checksums is None else index.checksums.copy()

    # ------------------------------------------------------------ life

    def close(self) -> None:
        """Close the files when reads in other threads have ended. May be called again."""
        if self._store is not None:
            self._store.close()

    def __reduce__(self) -> tuple[Any, ...]:
        # Pass only arguments that subclasses have, too, unless others were given.
        kind = partial(type(self), **self._options) if self._options else type(self)
        made = opened_again, (kind, self._names, self.check_data)
        if self._store is None:
            return made
        names = self._names.now()
        refuse_replaced(self._store, lambda: FileReader(names, self.check_data, **self._options).store)
        return *made, (self.fnames, self._store.policy, self._store.identity)

    def __setstate__(self, state: tuple[list[str], ReadPolicy, list[Identity]]) -> None:
        self.fnames, policy, identity = state
        refuse_others(self.store, identity)
        self.use_blocks(policy.around)
        self.use_direct(policy.direct)
        if policy.caches:
            self.store.use_caches()

    def __repr__(self) -> str:
        state = "closed" if self._store is None or self._store.closed else f"{self.n} records"
        return f"<FileReader {shown(self.fnames[0])!r}{'…' if len(self.fnames) > 1 else ''}: {state}>"
