"""DatasetReader, ShardedDatasetReader: the rows of a granular data set of any generation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from fffs.base.paths import PathLike
from fffs.errors import SourceNotFoundError, UsageError
from fffs.granular import spec as specs
from fffs.granular.codecs import Codec
from fffs.granular.rows import RowReader
from fffs.granular.shards import find_shards, is_shard, shard_name


class DatasetReader(RowReader):
    """The rows of a data set in one folder. Can be pickled and copied, when the decoders can: that opens it anew, and
    raises SourceChangedError where it is another one, as ``fffs.FileReader``.

    ``cache_index``, ``cache_keys`` and ``parallel`` are taken for granular's sake: indexes are always in memory, what
    was read stays in the page cache, and the engine reads in parallel.
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
        """decoders: for each type a function from bytes; without them, ``fffs.granular.decoders``. spec: for a data set
        that was never flushed and has no spec.json. check_data: compare the checksums that ``fffs verify --keep`` has
        put beside the files, if there are any.

        Raises:
            SourceNotFoundError: there is no data set. FormatError, MetadataError: it is damaged.
            UsageError: it is sharded, or spec is not its own. ReadError: the operating system could not read.

        """
        path = os.fsdecode(directory)
        super().__init__(path, decoders, check_data)
        self._given = None if spec is None else dict(spec)
        self._arguments = (path, decoders, cache_index, cache_keys, parallel)
        try:
            found = specs.load_common([path], self._given)
        except SourceNotFoundError as error:
            if os.path.isdir(os.path.join(path, shard_name(0))):
                raise UsageError(f"{path}: a sharded data set; open it with ShardedDatasetReader") from None
            raise error
        self._open([path], found)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced(partial(type(self), spec=self._given, check_data=self.check_data), self._arguments)


class ShardedDatasetReader(RowReader):
    """The rows of some or all shards of a data set, numbered through; otherwise as ``DatasetReader``.

    Of the shards 0, 1, 2 … it has those from ``shard_start``, before ``shard_stop``, every ``shard_step``-th: a worker
    gives its number and how many there are. ``shardstart``, ``shardstop`` and ``shardstep`` are taken as well.
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
        """Arguments and errors are those of ``DatasetReader``; UsageError: it is not sharded."""
        path = os.fsdecode(directory)
        super().__init__(path, decoders, check_data)
        names = {"shard_start": shard_start, "shard_stop": shard_stop, "shard_step": shard_step}
        names |= newer_names(newer, "shard_start", "shard_stop", "shard_step")
        start, stop, step = names["shard_start"] or 0, names["shard_stop"], names["shard_step"] or 1
        if start < 0 or step < 1 or (stop is not None and stop < 0):
            raise UsageError(f"{path}: shard_start and shard_stop must not be negative, and shard_step at least 1")
        self._given = None if spec is None else dict(spec)
        self._arguments = (path, decoders, start, stop, step)
        if is_shard(path):
            raise UsageError(f"{path}: not sharded; open it with DatasetReader")
        folders = find_shards(path)
        chosen = folders[start:stop:step]
        self._open(chosen, specs.load_common([folders[0], *chosen], self._given))

    @property
    def shards(self) -> int:
        """How many shards there are of those chosen."""
        return len(self._shards)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced(partial(type(self), spec=self._given, check_data=self.check_data), self._arguments)


def newer_names(given: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Arguments under the names that granular 0.8 and later give them, without the underscore, under ours."""
    known = {name.replace("_", ""): name for name in names}
    for name in given:
        if name not in known:
            raise TypeError(f"unexpected argument {name!r}")
    return {known[name]: value for name, value in given.items()}
