"""The writers of granular 0.24, with its arguments: each goes on with what is there, and flushes after each record.

``fffs.install_as_granular`` puts them in the place of granular's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from fffs.base.failures import writing
from fffs.base.withblock import Writing
from fffs.errors import MetadataError, UsageError
from fffs.files.sync import sync_together
from fffs.formats.bag import sidecars
from fffs.granular import spec as specs
from fffs.granular.bag_writer import BagWriter, GrownBag
from fffs.granular.codecs import Codec
from fffs.granular.dataset_writer import Columns, DatasetWriter, Encoder
from fffs.granular.exact_codecs import path_of, raw
from fffs.granular.resumed_bag import ResumedBag
from fffs.granular.resumed_columns import ResumedColumns
from fffs.granular.sharded_writer import ShardedDatasetWriter
from fffs.granular.spec import Type


class _KeepingWriter(Writing):
    """A writer whose with-block keeps what was appended before an exception, as a stopped process does."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception:
            if kind is None:
                raise
        finally:
            self.discard()


class _OneBag(GrownBag):
    """The Bag of a ResumingBagWriter: a flush does not wait for the disk."""

    _bag: ResumedBag

    def flush(self) -> None:
        self._bag.write_records()
        self._bag.write_table()
        self._bag.keep()

    def finish(self) -> None:
        self.flush()
        files = self._bag.finish()
        with writing(self._bag.path):
            sync_together(files)
        self._bag.close()


class ResumingBagWriter(_KeepingWriter, BagWriter):
    """Appends records to ``X.bag`` with ``X.idx``, new or existing: ``granular.BagWriter`` of 0.24.

    Bytes that a stopped writer left after the last complete record must be those that are appended next; UsageError
    says if they are not. Flushed records survive the end of the process; after ``close``, also a power failure.
    Otherwise as ``fffs.granular.BagWriter`` with layout="v3". Not thread-safe; must not be used in a child of fork.
    """

    def __init__(self, bag_path: Any, idx_path: Any = None) -> None:
        """bag_path: ends in .bag. idx_path: that of the table, which is X.idx beside X.bag."""
        self.path, self.layout = path_of(bag_path), "v3"
        table = sidecars(self.path)[0]
        if idx_path is not None and os.path.abspath(path_of(idx_path)) != os.path.abspath(table):
            raise UsageError(f"{self.path}: its table can only be {table}; omit idx_path")
        self.bag_path, self.idx_path = Path(self.path), Path(table)
        self._output: Any = _OneBag(ResumedBag(self.path))
        self._begin(self.path)

    def append(self, record: Any, flush: bool = True) -> int:
        """As ``fffs.granular.BagWriter.append``, but flushes by default."""
        return super().append(record, flush)


class _ExactEncoder(Encoder):
    """Encodes rows with the encoder of each key's type, which is looked up as a whole."""

    def __init__(self, path: str, spec: Mapping[str, str], encoders: Mapping[str, Codec] | None) -> None:
        self.path = path
        try:
            self.spec = specs.check(spec, f"{path}: the spec given")
        except MetadataError as error:
            raise UsageError(str(error)) from None
        for text in (*self.spec, *self.spec.values()):
            if not re.match("[a-z_]", text):
                raise UsageError(f"{path}: keys and types must begin with a-z or _, not {text!r}")
        self._types = {key: Type(kind, kind, (), False) for key, kind in self.spec.items()}
        self._encode = {key: raw(encoders, kind, f"{path}: the encoder") for key, kind in self.spec.items()}


class ResumingDatasetWriter(_KeepingWriter, DatasetWriter):
    """Appends rows to a data set of one folder in layout v3, new or existing: ``granular.DatasetWriter`` of 0.24.

    Columns that a stopped writer left longer than others must have the records that are appended next; UsageError says
    if they do not. Flushed rows survive the end of the process; after ``close``, also a power failure. Otherwise as
    ``fffs.granular.DatasetWriter`` with layout="v3". Not thread-safe; must not be used in a child of fork.
    """

    def __init__(self, directory: Any, spec: Mapping[str, str], encoders: Mapping[str, Codec] | None) -> None:
        """encoders: type -> function that returns bytes, or None for values that are bytes; None: for all types."""
        path = path_of(directory)
        self._open(path, _ExactEncoder(path, spec, encoders), "v3")

    @staticmethod
    def _columns(path: str, spec: dict[str, str], layout: str, cut_to: int | None) -> Columns:
        return ResumedColumns(path, spec)

    @property
    def directory(self) -> Path:
        """The folder."""
        return Path(self.path)

    def append(self, datapoint: Mapping[str, Any], flush: bool = True) -> int:
        """As ``fffs.granular.DatasetWriter.append``, but flushes by default."""
        return super().append(datapoint, flush)


class ResumingShardedWriter(_KeepingWriter, ShardedDatasetWriter):
    """Writes rows to shards in layout v3: ``granular.ShardedDatasetWriter`` of 0.24.

    It goes on with the last of its shards, unless that one has ``shardlen`` rows. ``len`` counts the rows that were in
    the shards which it has opened as well. Otherwise as ``fffs.granular.ShardedDatasetWriter`` with layout="v3". Not
    thread-safe; must not be used in a child of fork.
    """

    def __init__(
        self,
        directory: Any,
        spec: Mapping[str, str],
        encoders: Mapping[str, Codec] | None,
        shardlen: int | None = None,
        shardstart: int = 0,
        shardstep: int = 1,
    ) -> None:
        """encoders: as for ResumingDatasetWriter. shardlen: rows of a shard; None: no limit."""
        super().__init__(
            path_of(directory),
            spec,
            encoders,
            None,
            shard_length=shardlen or None,
            shard_start=shardstart,
            shard_step=shardstep,
            layout="v3",
        )

    def _make_encoder(self, spec: Mapping[str, str], encoders: Mapping[str, Codec] | None) -> Encoder:
        return _ExactEncoder(self.path, spec, encoders)

    def _begin_shard(self, folder: str) -> DatasetWriter:
        shard = ResumingDatasetWriter.of(folder, self._encoder, "v3")
        self._rows += len(shard)
        return shard

    @property
    def directory(self) -> Path:
        """The folder of the shards."""
        return Path(self.path)

    @property
    def shardnum(self) -> int:
        """The number of the shard that is written, or of the next one."""
        return self._next - self._step if self._shard is not None else self._next

    def append(self, datapoint: Mapping[str, Any], flush: bool = True) -> int:
        """As ``fffs.granular.ShardedDatasetWriter.append``, but flushes by default."""
        return super().append(datapoint, flush)
