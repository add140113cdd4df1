"""ShardedDatasetWriter: writes a data set as several folders, each a complete data set of bounded size."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fffs.base.paths import PathLike, without_zero
from fffs.base.withblock import Writing
from fffs.errors import UsageError
from fffs.files.atomic_folder import make_folder
from fffs.granular.codecs import Codec
from fffs.granular.dataset_reader import newer_names
from fffs.granular.dataset_writer import DatasetWriter, Encoder
from fffs.granular.shards import shard_name
from fffs.granular.spec import NAME

SHARD_SIZE = 10 << 30


class ShardedDatasetWriter(Writing):
    """Writes rows to the shards ``shard_start``, ``shard_start + shard_step``, … of a data set.

    A shard is closed, and then permanent, once it has ``shard_size`` bytes or ``shard_length`` rows. Several writers
    may write shards of one data set at once, each with its own start, and with the number of writers as step. With
    layout="v3" a writer continues the last of its shards. Otherwise as ``DatasetWriter``.

    Readers need all numbers from 000000 on. If writers begin different numbers of shards, numbers are missing in the
    end: rename the folders then, so that none is.

    ``shardsize``, ``shardlen``, ``shardstart`` and ``shardstep`` are accepted as well.

    Examples:
        >>> encoders = fffs.granular.encoders
        >>> with fffs.granular.ShardedDatasetWriter("new", {"x": "utf8"}, encoders, shard_length=1) as writer:
        ...     writer.append({"x": "a"})
        ...     writer.append({"x": "b"})
        0
        1
        >>> sorted(os.listdir("new"))
        ['000000', '000001']
        >>> fffs.granular.ShardedDatasetReader("new", fffs.granular.decoders)[1]
        {'x': 'b'}

    """

    def __init__(
        self,
        directory: PathLike,
        spec: Mapping[str, str],
        encoders: Mapping[str, Codec] | None = None,
        shard_size: int | None = SHARD_SIZE,
        *,
        shard_length: int | None = None,
        shard_start: int = 0,
        shard_step: int = 1,
        layout: str = "v1",
        **newer: Any,
    ) -> None:
        """A size or length of None means no limit."""
        self.path = without_zero(directory)
        if "shardlen" in newer:
            shard_length = newer.pop("shardlen")
        names = {"shard_size": shard_size, "shard_start": shard_start, "shard_step": shard_step}
        names |= newer_names(newer, *names)
        self._size, self._length = names["shard_size"], shard_length
        self._first, self._step = names["shard_start"] or 0, names["shard_step"] or 1
        if (
            self._first < 0
            or self._step < 1
            or any(limit is not None and limit < 1 for limit in (self._size, shard_length))
        ):
            raise UsageError(
                f"{self.path}: shard_start must be at least 0; shard_step, shard_size and shard_length at least 1"
            )
        self._layout = layout
        self._encoder = self._make_encoder(spec, encoders)
        self._shard: DatasetWriter | None = None
        self._next, self._rows, self._closed_size, self._shards = self._first, 0, 0, 0
        if os.path.lexists(os.path.join(self.path, NAME)):
            raise UsageError(f"{self.path}: this folder has a data set without shards; name another folder")
        make_folder(self.path)
        self._root = os.path.realpath(self.path)  # which a change of the working folder does not redirect
        self._begin(self.path)

    def _make_encoder(self, spec: Mapping[str, str], encoders: Mapping[str, Codec] | None) -> Encoder:
        return Encoder(self.path, spec, encoders, self._layout)

    def _begin_shard(self, folder: str) -> DatasetWriter:
        return DatasetWriter.of(folder, self._encoder, self._layout)

    def _open(self) -> DatasetWriter:
        """Return the shard for the next row."""
        while self._shard is None:
            folder = os.path.join(self._root, shard_name(self._next))
            self._next += self._step
            if self._layout == "v3" and os.path.isdir(os.path.join(self._root, shard_name(self._next))):
                continue  # this shard was closed, since the next one was begun
            self._shard = self._begin_shard(folder)
            if self._full(self._shard):  # a shard of another writer, which is continued
                self._finish()
        return self._shard

    def _full(self, shard: DatasetWriter) -> bool:
        """Whether a shard takes no more rows. An empty one takes a row of any size: its tables alone have bytes."""
        length, size = self._length, self._size
        if not len(shard):
            return False
        return (length is not None and len(shard) >= length) or (size is not None and shard.size >= size)

    def _finish(self) -> None:
        """Close the shard, if there is one. If that fails, the shard is dropped."""
        if self._shard is None:
            return
        shard, self._shard = self._shard, None
        shard.close()
        self._closed_size += shard.size
        self._shards += 1

    def append(self, datapoint: Mapping[str, Any], flush: bool = False) -> int:
        """Add a row. Returns its number among the rows of this writer. Raises as ``DatasetWriter.append``."""
        self._need_open()
        blobs = self._encoder(datapoint)
        try:
            shard = self._open()
            shard.append_blobs(blobs)
            self._rows += 1
            if self._full(shard):
                self._finish()
            elif flush:
                shard.flush()
        except BaseException:
            self.discard()
            raise
        return self._rows - 1

    def flush(self) -> None:
        """As ``DatasetWriter.flush``."""
        self._need_open()
        if self._shard is not None:
            self._shard.flush()

    def close(self) -> None:
        """Close the last shard. May be called again. A writer that begins with shard 0 and has no rows makes an empty
        shard.
        """
        if self.closed:
            return
        self._need_open()
        if self._rows == 0 and self._first == 0 and self._shard is None:
            self._open()
        self.closed = True
        self._finish()

    def discard(self) -> None:
        """Discard rows of the last shard that were not flushed (v1: the whole shard). Closed shards are kept."""
        super().discard()

    def _forget(self) -> None:
        if self._shard is not None:
            self._shard.discard()
            self._shard = None

    @property
    def spec(self) -> dict[str, str]:
        """The keys, sorted, with their types."""
        return dict(self._encoder.spec)

    @property
    def size(self) -> int:
        """The size in bytes of all Bags with their tables in the shards of this writer if it were closed now."""
        return self._closed_size + (self._shard.size if self._shard is not None else 0)

    @property
    def shards(self) -> int:
        """The number of shards that this writer has begun."""
        return self._shards + (self._shard is not None)

    def __len__(self) -> int:
        """Return the number of rows that this writer has written."""
        return self._rows
