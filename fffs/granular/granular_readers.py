"""The readers of granular 0.24, with its arguments. ``fffs.install_as_granular`` puts them in granular's place."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from fffs.base.withblock import closed_on_error
from fffs.files.file import File
from fffs.formats.bag import SUFFIX, load, load_with_table, sidecars, tail_layout
from fffs.granular.bag_reader import BagReader
from fffs.granular.buffer_file import BufferFile, SharedBuffer
from fffs.granular.codecs import Codec
from fffs.granular.dataset_reader import DatasetReader, ShardedDatasetReader
from fffs.granular.exact_codecs import path_of, raw
from fffs.granular.row_reader import RowReader
from fffs.objects.locations import open_file
from fffs.records.source_file import SourceFile


class StoredBagReader(BagReader):
    """Reads a Bag: ``granular.BagReader`` of 0.24. Otherwise as ``fffs.granular.BagReader``."""

    def __init__(
        self,
        bag_source: Any,
        idx_source: Any = None,
        cache_index: bool = True,
        cache_data: bool = False,
        single_file: bool = False,
    ) -> None:
        """Open a Bag.

        Args:
            bag_source: a path, a URL, bytes or a SharedBuffer.
            idx_source: the table, in the same forms. None: X.idx beside X.bag; a Bag of an older version has none.
            cache_index: ignored: the index is always in memory.
            cache_data: ignored: the page cache keeps what was read.
            single_file: read the table at the end of the file, even if another one lies beside it.

        Raises:
            As ``fffs.granular.BagReader``.

        """
        self._sources = bag_source, idx_source, single_file
        path = "" if _is_buffer(bag_source) else path_of(bag_source)
        if path.endswith(SUFFIX) and not single_file and _is_beside(path, idx_source):
            super().__init__(path)
        else:
            self.path, self.check_data = path or "a Bag in memory", True
            self._decompress = None
            self._open(*self._open_parts(bag_source, idx_source, single_file))
        ends = self.index().ends
        self.size = int(ends[-1]) + 8 * len(ends) if len(ends) else 0

    def _open_parts(self, bag: Any, table: Any, single_file: bool) -> tuple[SourceFile, str]:
        file = _open_part(bag, self.path)
        with closed_on_error((file,)):
            if single_file or (table is None and _is_buffer(bag)):
                index, layout = load(file, tail_layout(file))
                return SourceFile(file, index), layout
            beside = os.path.splitext(self.path)[0] + ".idx"
            with _open_part(beside if table is None else table, f"the table of {self.path}") as entries:
                return SourceFile(file, load_with_table(file, entries)), "v3"

    @property
    def length(self) -> int:
        """The number of records."""
        return self.n

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._store.closed

    def copy(self) -> StoredBagReader:
        """Return a reader that opens the Bag again."""
        return copy.copy(self)

    def __reduce__(self) -> tuple[Any, ...]:
        bag, table, single_file = self._sources
        return type(self), (bag, table, True, False, single_file)


def _is_buffer(source: Any) -> bool:
    return isinstance(source, (bytes, bytearray, memoryview, SharedBuffer))


def _is_beside(path: str, table: Any) -> bool:
    """Whether a table is where readers look for it."""
    if _is_buffer(table):
        return False
    return table is None or os.path.abspath(path_of(table)) == os.path.abspath(sidecars(path)[0])


def _open_part(source: Any, shown: str) -> File:
    if isinstance(source, SharedBuffer):
        return BufferFile(shown, source)
    if _is_buffer(source):
        return BufferFile(shown, SharedBuffer(source))
    return open_file(path_of(source))


class _CopyingReader(RowReader):
    """What both readers of data sets have in common."""

    def _choose(self, decoders: Mapping[str, Codec | None] | None) -> None:
        """Look decoders up by the whole text of a type, as granular does."""
        self._decoders = {kind: raw(decoders, kind, f"{self.path}: the decoder") for kind in set(self._spec.values())}

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._store.closed

    def copy(self) -> Any:
        """Return a reader that opens the data set again."""
        return copy.copy(self)


class StoredDatasetReader(_CopyingReader, DatasetReader):
    """Reads a data set: ``granular.DatasetReader`` of 0.24, also of older versions' data sets.

    ``reader[i]``, ``reader[i, keys]``, ``reader[a:b]``: as ``fffs.granular.DatasetReader``.
    """

    def __init__(
        self,
        directory: Any,
        decoders: Mapping[str, Codec | None] | None,
        cache_index: bool = True,
        cache_keys: Any = (),
        parallel: bool = False,
        pool_name: Any = None,
        *,
        spec: Mapping[str, str] | None = None,
        check_data: bool = True,
    ) -> None:
        """decoders: type -> function of bytes, or None for bytes; None: for all types. cache_index, cache_keys,
        parallel and pool_name are ignored. spec, check_data: as for ``fffs.granular.DatasetReader``.

        Raises:
            UsageError: a type has no decoder. Otherwise as ``fffs.granular.DatasetReader``.

        """
        super().__init__(path_of(directory), None, cache_index, cache_keys, parallel, spec=spec, check_data=check_data)
        self._arguments = (decoders, cache_index, cache_keys, parallel)  # type: ignore[assignment]
        with closed_on_error((self,)):
            self._choose(decoders)


class StoredShardedReader(_CopyingReader, ShardedDatasetReader):
    """Reads the shards of a data set: ``granular.ShardedDatasetReader`` of 0.24. As StoredDatasetReader otherwise."""

    def __init__(
        self,
        directory: Any,
        decoders: Mapping[str, Codec | None] | None,
        cache_index: bool = True,
        cache_keys: Any = (),
        parallel: bool = False,
        shardstart: int = 0,
        shardstep: int = 1,
        *,
        spec: Mapping[str, str] | None = None,
        check_data: bool = True,
    ) -> None:
        """decoders: as for StoredDatasetReader. The shards are ``range(shardstart, None, shardstep)``."""
        path = path_of(directory)
        super().__init__(path, None, shardstart, None, shardstep, spec=spec, check_data=check_data)
        self._decoded_by = decoders
        with closed_on_error((self,)):
            self._choose(decoders)

    def __reduce__(self) -> tuple[Any, ...]:
        _, start, _, step = self._arguments
        kind = partial(type(self), spec=self._given, check_data=self.check_data)
        return self._reduced(kind, (self._decoded_by, True, (), False, start, step))
