"""Job: one conversion, from what it was asked for to the result in place."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fffs import tfrecord
from fffs.base.jobs import Jobs, Progress, default_jobs
from fffs.converting import kinds, packs
from fffs.converting.archives import open_archive
from fffs.converting.keeping import Kept
from fffs.converting.parts import cut
from fffs.converting.records import Records, StoredRecords, StreamedRecords
from fffs.converting.sources import Sources
from fffs.converting.verifying import compare_records, differs, forget, readable
from fffs.errors import FormatError, RecordError, UsageError
from fffs.files.atomic import CHECKSUMS, AtomicFile, new_folder, refuse_content
from fffs.files.local import open_source
from fffs.formats.bag import COMPRESSED, sidecars
from fffs.formats.bag_writer import no_appenders
from fffs.formats.ffrecord import SUFFIX
from fffs.formats.sources import open_files
from fffs.formats.table import format_named
from fffs.layouts import load_source, packed
from fffs.packing.pack import pack_folder
from fffs.records.store import RecordStore
from fffs.tree.tree import ROOT

if TYPE_CHECKING:  # what needs granular is imported when there is a data set
    from fffs.converting.datasets import BlobRows

DEFAULT_JOBS = 2  # one thread reads and checks while another writes: a file system lets one write to a file at a time

Done = tuple[int, int, int]
"""Records (or rows, or files), their bytes, and in how many parts they are."""


@dataclass
class Job:
    """What is to be converted, and how; see ``fffs.convert``. ``forced``: the source's kind was given."""

    source: str
    target: str
    kind: str
    forced: bool
    form: str | None
    layout: str
    key: str
    parts: int | None
    part_size: int | None
    jobs: int | None
    verify: bool
    force: bool
    progress: Progress | None
    warn: Callable[[str], None]

    @property
    def split(self) -> bool:
        """Whether parts were asked for."""
        return self.parts is not None or self.part_size is not None

    def run(self) -> Done:
        """Convert. What is replaced by force comes back when that fails, or is interrupted."""
        self.sources = Sources(self.kind, self.source)
        replaced = self._replaced() if self.force else []
        beside = [name + CHECKSUMS for name in replaced if os.path.lexists(name + CHECKSUMS)]
        with no_appenders(replaced), Kept([*replaced, *beside]):
            try:
                return self._run()
            except (FormatError, RecordError):
                self.sources.refuse_changed()  # that is why
                raise

    def _run(self) -> Done:
        if self.kind in (*kinds.ARCHIVES, "folder"):
            return self._pack()
        if self.kind == "granular":
            from fffs.converting.datasets import load_folder

            return self._from_data_set(load_folder(self.source))
        if self.kind == "ffrecord":
            return self._from_ffrecord()
        self._choose(None)
        with contextlib.closing(self._open_records()) as records:
            return self._from_records(records)

    # ------------------------------------------------------------ destinations

    def _choose(self, default: str | None) -> str:
        """The destination's format, and the check that it may be written there."""
        self.form = self.form or default
        if self.form is None:
            raise UsageError(f"{self.target}: its name does not say what it shall be; say so with --to")
        if self.split and self.form in kinds.RECORDS and format_named(self.form).part_name is None:
            raise UsageError(f"{self.target}: Bags have no parts; a data set has (--to granular)")
        self.sources.refuse_inside(self.target)
        if self.split or self.form == "granular":
            refuse_content(self.target)  # with --force as well: nobody should lose many files by an option
            return self.form
        for name in self._replaced():
            if os.path.isdir(name) or not self.force:
                raise UsageError(f"{name}: already exists{'' if os.path.isdir(name) else '; --force replaces it'}")
            self.sources.refuse(name)
        self.sources.refuse(self.target + CHECKSUMS)  # which goes with the file that is replaced
        return self.form

    def _replaced(self) -> list[str]:
        """The files that are where the result will be."""
        names = [self.target, *(sidecars(self.target)[:1] if self._has_table() else ())]
        return [name for name in names if os.path.lexists(name)]

    @contextlib.contextmanager
    def _comparing(self, *more: str) -> Iterator[None]:
        """Remove the result unless it turns out to be good; more: other files that belong to it."""
        with readable((self.target, *more)):
            try:
                forget(self.target)
                yield
            except BaseException:
                for name in (self.target, *more):
                    if os.path.isdir(name):
                        shutil.rmtree(name, ignore_errors=True)
                    else:
                        with contextlib.suppress(OSError):
                            os.unlink(name)
                raise

    # ------------------------------------------------------------ archives and folders

    def _pack(self) -> Done:
        self._need_pack("an archive" if self.kind in kinds.ARCHIVES else "a folder")
        if self.kind == "folder":
            summary = pack_folder(self.source, self.target, jobs=self.jobs, progress=self.progress, warn=self.warn)
            if self.verify:
                with self._comparing():
                    packs.compare_folder(self.source, self.target, self.progress)
            return summary.files, summary.total_bytes, 1
        jobs = self.jobs or default_jobs()
        fd, path = open_source(self.source)
        with open_archive(fd, path, self.kind, self.warn) as archive:
            contents = packs.pack_archive(archive, self.target, jobs, self.progress)
            if self.verify:
                with self._comparing():
                    packs.compare_archive(archive, contents, self.target, jobs, self.progress)
        return len(contents.files), contents.total_bytes, 1

    def _need_pack(self, what: str) -> None:
        """That the destination is a packed folder."""
        if self._choose("ffrecord") != "ffrecord":
            raise UsageError(f"{self.target}: {what} can only become a packed folder, whose name ends in {SUFFIX}")
        if self.split:
            raise UsageError(f"{self.target}: a packed folder is one file, without parts")
        if not self.target.endswith(SUFFIX):
            raise UsageError(f"{self.target}: the name of a packed folder must end in {SUFFIX}")

    # ------------------------------------------------------------ data sets

    def _from_data_set(self, data: BlobRows) -> Done:
        from fffs.converting import datasets

        with contextlib.closing(data):
            self._choose("granular")
            if self.form == "granular":
                return self._write_rows(data)
            if self.form != "ffrecord" and data.counts.shape[1] == 1 and (data.counts == datasets.SCALAR).all():
                return self._to_files(data.blobs)
            self._need_pack("a data set of several keys, or with sequences,")
            work = Jobs(data.total_bytes * (1 + self.verify), self.progress)
            with AtomicFile(self.target) as file:
                datasets.pack_rows(data, file, work, self.sources.refuse_changed)
            if self.verify:
                with self._comparing():
                    self._compare(data, datasets.load_packed(load_source(self.target), self.target), work)
            return len(data), data.total_bytes, 1

    def _from_ffrecord(self) -> Done:
        """The records; or a packed folder as the data set in it, unless it is to be taken for its records."""
        with contextlib.closing(self._open_stored()) as records:
            files = records.store.files
            is_packed = any(map(packed.is_packed, files))
            if is_packed and (self.split or len(files) > 1):
                self._refuse_torn(several=len(files) > 1)
            if not is_packed or self.forced or (self.form not in (None, "granular") and not self.split):
                self._choose(None)
                if is_packed and not self.forced and self.form != "ffrecord":
                    self.warn(f"{self.source}: the names of its files go along as the last record, for the way back")
                return self._from_records(records)
        from fffs.converting import datasets
        from fffs.granular.spec import NAME

        source = load_source(self.source)
        try:
            if self.form is None and source.tree.lookup(ROOT, NAME.encode()) is None:
                self._choose(None)  # raises: it would be a data set by its content alone
            return self._from_data_set(datasets.load_packed(source, self.source))
        finally:
            source.close()

    def _refuse_torn(self, *, several: bool) -> None:
        """The last record of a packed folder gives names to those in front of it: it must stay alone with them."""
        what = "packed folders" if several else "a packed folder"
        if self.form == "ffrecord":
            raise UsageError(
                f"{self.source}: {what}: names would lead to other files' records; "
                + ("convert each by itself" if several else "leave the parts out")
            )
        if not self.forced and self.form in kinds.RECORDS:
            raise UsageError(f"{self.source}: {what}: the names would be lost; --from ffrecord takes the records")

    def _write_rows(self, data: BlobRows) -> Done:
        from fffs.converting import datasets
        from fffs.granular.shards import shard_name

        data.refuse_layout(self.layout, self.target)
        work = Jobs(data.total_bytes * (1 + self.verify), self.progress)
        bounds = cut(data.sizes, self.parts, self.part_size)
        rows, edges, ready = data.rows(), [0, *bounds, len(data)], self.sources.refuse_changed
        if not self.split and self.layout == "v1":
            datasets.write_rows(rows, len(data), self.target, data.spec, self.layout, work, ready)
        else:
            with new_folder(self.target) as here:
                for k in range(len(edges) - 1):
                    folder = os.path.join(here, shard_name(k)) if self.split else here
                    datasets.write_rows(rows, edges[k + 1] - edges[k], folder, data.spec, self.layout, work, ready)
        if self.verify:
            with self._comparing():
                result = datasets.load_folder(self.target)
                self._compare(data, result, work)
        return len(data), data.total_bytes, len(edges) - 1

    def _compare(self, data: BlobRows, result: BlobRows, work: Jobs) -> None:
        with contextlib.closing(result):
            if data.spec != result.spec or not np.array_equal(data.counts, result.counts):
                raise differs(self.target, 0)
            compare_records(data.blobs, result.blobs, self.target, work)

    def _to_data_set(self, records: Records) -> Done:
        from fffs.converting import datasets

        counts = np.full((len(records.lengths), 1), datasets.SCALAR, np.int64)
        return self._write_rows(datasets.BlobRows(self.source, {self.key: "bytes"}, counts, records, 0))

    # ------------------------------------------------------------ record files

    def _open_records(self) -> Records:
        if self.source.endswith(COMPRESSED) and self.kind == "bag":
            from fffs.granular.bag_reader import BagReader

            bag = BagReader(self.source)
            return StreamedRecords(lambda: contextlib.nullcontext(iter(bag)), self.source, bag.close)
        if format_named(self.kind).is_compressed(self.source):
            return StreamedRecords(lambda: tfrecord.read(self.source), self.source)
        return self._open_stored()

    def _open_stored(self) -> StoredRecords:
        return StoredRecords(RecordStore(open_files(self.sources.records, True, self.kind)), self.source)

    def _from_records(self, records: Records) -> Done:
        return self._to_data_set(records) if self.form == "granular" else self._to_files(records)

    def _to_files(self, records: Records) -> Done:
        assert self.form is not None
        lengths = records.lengths
        total = int(lengths.sum())
        form = format_named(self.form)
        if line := form.check_empty(lengths, self.source):
            self.warn(line)
        work = Jobs(total * (1 + self.verify), self.progress)
        bounds = cut(lengths, self.parts, self.part_size)
        count = len(bounds) + 1
        if self.split:
            stem = os.path.splitext(os.path.basename(self.target))[0]
            assert form.part_name is not None
            names = [form.part_name(stem, k, count) for k in range(count)]
            with new_folder(self.target) as here:
                self._write(records, [os.path.join(here, name) for name in names], bounds, work)
            paths = [os.path.join(self.target, name) for name in names]
        else:
            self._write(records, [self.target], bounds, work)
            paths = [self.target]
        if self.verify:
            with self._comparing(*(sidecars(self.target)[:1] if not self.split and self._has_table() else ())):
                files = open_files(paths, True, self.form)
                with contextlib.closing(StoredRecords(RecordStore(files), self.target)) as result:
                    compare_records(records, result, self.target, work)
        return len(lengths), total, count

    def _has_table(self) -> bool:
        return (self.form, self.layout) == ("bag", "v3")

    def _write(self, records: Records, paths: list[str], bounds: list[int], work: Jobs) -> None:
        """Write all records to files, each to its part."""
        assert self.form is not None
        form, edges = format_named(self.form), [0, *bounds, len(records.lengths)]
        with contextlib.closing(records.batches(bounds, self.jobs or DEFAULT_JOBS)) as batches:
            for path, begin, end in zip(paths, edges[:-1], edges[1:], strict=True):
                with form.create(path, end - begin, self.layout) as writer:
                    while writer.count < end - begin:
                        batch = next(batches)
                        writer.write_batch(batch.data, batch.offsets)
                        work.count(len(batch.data))
                        del batch
                    if end == edges[-1]:
                        next(batches, None)  # what a source says when it has ended
                    self.sources.refuse_changed()
