"""DatasetReader, ShardedDatasetReader: read the rows of a granular data set of any layout."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from fffs.base.numbers import as_number
from fffs.base.paths import PathLike, without_zero
from fffs.errors import SourceNotFoundError, UsageError
from fffs.granular import spec as specs
from fffs.granular.codecs import Codec
from fffs.granular.row_reader import RowReader
from fffs.granular.shards import find_shards, is_shard, shard_name


class DatasetReader(RowReader):
    """Reads a data set in one folder. Can be pickled and copied if the decoders can: the copy opens the data set again,
    and raises SourceChangedError if it is another one, as ``fffs.FileReader`` does.

    ``cache_index``, ``cache_keys`` and ``parallel`` are accepted for compatibility with granular, and ignored: indexes
    are always in memory, the page cache keeps what was read, and the engine reads in parallel.

    Examples:
        >>> with fffs.granular.DatasetReader("rows", fffs.granular.decoders) as reader:
        ...     reader[1]
        {'label': 7, 'name': 'b'}

    """

    def __init__(
        self,
        directory: PathLike,
        decoders: Mapping[str, Codec] | None = None,
        cache_index: bool = True,
        cache_keys: Any = (),
        parallel: bool = False,
        *,
        spec: Mapping[str, str] | None = None,
        check_data: bool = True,
    ) -> None:
        """decoders: type -> function of bytes; default: ``fffs.granular.decoders``. spec: for a data set that was never
        flushed and has no spec.json. check_data: verify the checksums that ``fffs verify --keep`` wrote beside the
        files, if there are any.

        Raises:
            SourceNotFoundError: the data set does not exist. FormatError, MetadataError: it is damaged.
            UsageError: it is sharded, or has another spec. ReadError: the operating system could not read.

        """
        path = without_zero(directory)
        super().__init__(path, decoders, check_data)
        self._given = None if spec is None else dict(spec)
        self._arguments = (decoders, cache_index, cache_keys, parallel)
        try:
            found = specs.load_common([path], self._given)
        except SourceNotFoundError as error:
            if is_shard(os.path.join(path, shard_name(0))):
                raise UsageError(f"{path}: a sharded data set; open it with ShardedDatasetReader") from None
            raise error
        self._open([path], found)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced(partial(type(self), spec=self._given, check_data=self.check_data), self._arguments)


class ShardedDatasetReader(RowReader):
    """Reads some or all shards of a data set, with rows numbered through; otherwise as ``DatasetReader``.

    The shards are ``range(shard_start, shard_stop, shard_step)``. A worker passes its number as ``shard_start`` and the
    number of workers as ``shard_step``. ``shardstart``, ``shardstop`` and ``shardstep`` are accepted as well.

    Example: ``fffs.granular.ShardedDatasetWriter``.
    """

    def __init__(
        self,
        directory: PathLike,
        decoders: Mapping[str, Codec] | None = None,
        shard_start: int = 0,
        shard_stop: int | None = None,
        shard_step: int = 1,
        *,
        spec: Mapping[str, str] | None = None,
        cache_index: bool = True,
        cache_keys: Any = (),
        parallel: bool = False,
        check_data: bool = True,
        **newer: int,
    ) -> None:
        """Arguments and errors are those of ``DatasetReader``. UsageError: the data set is not sharded."""
        path = without_zero(directory)
        super().__init__(path, decoders, check_data)
        names = {"shard_start": shard_start, "shard_stop": shard_stop, "shard_step": shard_step}
        names |= newer_names(newer, "shard_start", "shard_stop", "shard_step")
        # Newer versions of granular take cache_index here, and True would mean 1.
        numbers = {name: None if value is None else as_number(value, name) for name, value in names.items()}
        start, stop, step = numbers["shard_start"] or 0, numbers["shard_stop"], numbers["shard_step"] or 1
        if start < 0 or step < 1 or (stop is not None and stop < 0):
            raise UsageError(f"{path}: shard_start and shard_stop must be at least 0, and shard_step at least 1")
        self._given = None if spec is None else dict(spec)
        self._arguments = (decoders, start, stop, step)
        if is_shard(path):
            raise UsageError(f"{path}: not sharded; open it with DatasetReader")
        folders = find_shards(path)
        chosen = folders[start:stop:step]
        self._open(chosen, specs.load_common([folders[0], *chosen], self._given))

    @property
    def shards(self) -> int:
        """The number of chosen shards."""
        return len(self._shards)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced(partial(type(self), spec=self._given, check_data=self.check_data), self._arguments)


def newer_names(given: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Translate arguments from their names in granular 0.8 and later, without underscores, to those in ``names``."""
    known = {name.replace("_", ""): name for name in names}
    for name in given:
        if name not in known:
            raise TypeError(f"unexpected argument {name!r}")
    return {known[name]: value for name, value in given.items()}
