"""pyfuse3's operations over a Tree some of whose files are decoded when somebody looks at them."""

from __future__ import annotations

import errno
from typing import NoReturn

import pyfuse3

from fffs.errors import ReadError, RecordError, SourceChangedError
from fffs.layouts import Source
from fffs.layouts.rows import File
from fffs.mount.fs.cache import Cache
from fffs.mount.fs.operations import Operations
from fffs.mount.fs.refusals import answered
from fffs.mount.options import MountOptions


class DecodedOperations(Operations):
    """As ``Operations``, but for these files."""

    def __init__(self, source: Source, options: MountOptions) -> None:
        super().__init__(source, options)
        assert source.decoded is not None
        self._store = source.store
        self._is_decoded = memoryview(source.decoded.nodes)
        self._cache = Cache(source.decoded.load)

    async def _file(self, node: int) -> File:
        record = self._ref[node]
        try:
            return await self._cache.get(record, self._store.length(record), self._ranges.limiter(record))
        except (RecordError, ReadError, SourceChangedError, MemoryError) as error:
            self._fail(node, error)

    def _fail(self, node: int, error: Exception) -> NoReturn:
        self.failures.add(node, self._ref[node], error)
        raise pyfuse3.FUSEError(errno.EIO) from None

    async def entry(self, node: int) -> pyfuse3.EntryAttributes:
        """As in ``Operations``. What cannot be read has a byte at least, so that somebody asks for it."""
        if not self._is_decoded[node]:
            return self._attributes.entry(node)
        file = await self._file(node)
        if not file.problem:
            return self._attributes.entry(node, file.size)
        entry = self._attributes.entry(node, max(file.size, 1))
        entry.entry_timeout = entry.attr_timeout = 0  # its source may become good again
        return entry

    @answered
    async def read(self, fh: int, off: int, size: int) -> bytes:
        """Verified bytes."""
        node = fh - 1
        if not self._is_decoded[node]:
            return await super().read(fh, off, size)
        file = await self._file(node)
        if file.problem:
            self._fail(node, RecordError(file.problem))
        try:
            return await self._ranges.read_file(file, off, size)
        except (RecordError, ReadError, SourceChangedError) as error:
            self._fail(node, error)
