"""ConvertTask: converts a part of some sources into one file of a set."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from fffs.base.jobs import Jobs, Progress, default_jobs
from fffs.cluster.part_task import PartResult, PartTask
from fffs.converting import kinds
from fffs.converting.archive_parts import Archives
from fffs.converting.pack_again import pack_parts_again
from fffs.converting.packs import compare_contents
from fffs.converting.record_files import DEFAULT_JOBS, FRAME, compare_with, write_records
from fffs.converting.records import Batches, StoredRecords
from fffs.converting.source_parts import ChainedRecords, SourcePart, open_records, shown_of
from fffs.errors import FffsError
from fffs.files.atomic_output import AtomicOutput, NewOutput
from fffs.formats.sources import open_files
from fffs.formats.table import format_named
from fffs.native.checksums import crc32
from fffs.objects.locations import open_file
from fffs.objects.names import is_url
from fffs.packing.contents import pack_contents
from fffs.packing.whole import is_whole_pack, shortened
from fffs.records import index_cache
from fffs.records.store import RecordStore


@dataclass(frozen=True)
class ConvertTask(PartTask):
    """Converts ``sources``, which follow each other.

    ``kind``: of the sources, one of ``kinds.sources()``. ``to``: the name of a format. ``names``: the sources are
    packed folders, and so are the parts. ``align`` is for packs.
    ``verify``: the part is read back and compared before it has its name.
    """

    sources: tuple[SourcePart, ...]
    kind: str
    to: str
    names: bool = False
    align: bool = False
    verify: bool = False

    def to_fields(self) -> dict[str, Any]:
        """See ``PartTask``."""
        return {"sources": [part.to_fields() for part in self.sources], "total_bytes": self.total_bytes}

    @staticmethod
    def from_fields(fields: dict[str, Any]) -> dict[str, Any]:
        """See ``PartTask``."""
        return {"sources": tuple(map(SourcePart.of, fields["sources"])), "total_bytes": int(fields["total_bytes"])}

    @property
    def makes_packs(self) -> bool:
        """Whether the part is a packed folder."""
        return self.names or self.kind in kinds.ARCHIVES

    @property
    def shown(self) -> str:
        """The input, for messages."""
        return shown_of(self.sources)

    def _write(self, new: NewOutput, jobs: int | None, progress: Progress | None) -> PartResult:
        lines: list[str] = []
        write = self._pack_again if self.names else self._pack if self.makes_packs else self._write_records
        with index_cache.unused(), new() as file:
            done = write(file, jobs, self._scaled(progress), lines.append)
        return PartResult(
            part=self.number,
            path=self.path,
            size=done.size,
            checksum=done.checksum,
            records=done.records,
            total_bytes=done.total_bytes,
            left_out=shortened(lines),
        )

    def _scaled(self, progress: Progress | None) -> Progress | None:
        """Return a function that counts in bytes of the sources, of which archives and compressed files have others."""
        whole = self.total_bytes
        return progress and (lambda done, total: progress(done * whole // max(total, 1), whole))

    def _pack(
        self, file: AtomicOutput, jobs: int | None, progress: Progress | None, warn: Callable[[str], None]
    ) -> _Written:
        """Pack archives, and put the pack in place."""
        threads = jobs or default_jobs()
        with Archives(self.sources, self.kind, warn) as archives:
            contents = archives.scan()
            checksum = pack_contents(archives, contents, file, threads, progress, self.align)
            if self.verify:
                compare_contents(archives, contents, file, threads, None)
            archives.refuse_changed()
            size = os.fstat(file.fd).st_size
            file.commit()
            return _Written(size, checksum, len(contents.sizes), contents.total_bytes)

    def _pack_again(
        self, file: AtomicOutput, jobs: int | None, progress: Progress | None, warn: Callable[[str], None]
    ) -> _Written:
        """Pack files of packed folders, and put the pack in place."""
        checksum, sizes = pack_parts_again(self.sources, file, self.align, self.verify, progress)
        size = os.fstat(file.fd).st_size
        file.commit()
        return _Written(size, checksum, len(sizes), int(sizes.sum()))

    def _write_records(
        self, file: AtomicOutput, jobs: int | None, progress: Progress | None, warn: Callable[[str], None]
    ) -> _Written:
        """Write records, and put the file in place."""
        form = format_named(self.to)
        with contextlib.closing(open_records(self.sources, format_named(self.kind))) as records:
            lengths = records.lengths
            if line := form.check_empty(lengths, self.shown):
                warn(line)
            total = int(lengths.sum())
            work = Jobs(total, progress)
            with form.create(file, len(lengths), "v1") as writer:
                writer.expect_size(total + len(lengths) * FRAME)
                checksum = _Checksum()
                with contextlib.closing(checksum.of(records.batches((), jobs or DEFAULT_JOBS))) as batches:
                    write_records(writer, batches, len(lengths), work)
                    next(batches, None)  # lets a stream check that it has no further records
                writer.finish()
                size = os.fstat(file.fd).st_size
                if self.verify:
                    bounds = records.bounds if isinstance(records, ChainedRecords) else ()
                    compare_with(records, [writer.reread()], file.path, Jobs(total, None), bounds)
        return _Written(size, checksum.value, len(lengths), total)

    def _is_whole(self, path: str, result: PartResult) -> bool:
        if self.makes_packs:
            return is_whole_pack(path, result)
        try:
            with open_file(path) as file:
                if file.size != result.size:
                    return False
            if is_url(path):  # the store has compared what it was sent, and keeps it whole
                return True
            return _checksum_of(path, self.to) == result.checksum
        except (OSError, FffsError):
            return False


class _Written(NamedTuple):
    """What a task wrote. ``checksum``: that of the header of a pack; of records, the CRC-32 of their bytes."""

    size: int
    checksum: int
    records: int
    total_bytes: int


class _Checksum:
    """The CRC-32 of the bytes of all records that have passed."""

    value = 0

    def of(self, batches: Batches) -> Batches:
        """Yield the batches."""
        with contextlib.closing(batches):
            for batch in batches:
                self.value = crc32(batch.data, self.value)
                yield batch
                del batch


def _checksum_of(path: str, form: str) -> int:
    """Return the CRC-32 of the bytes of all records of a file, which are verified."""
    checksum, files = _Checksum(), open_files([path], True, form)
    with contextlib.closing(StoredRecords(RecordStore(files), path)) as records:
        with contextlib.closing(checksum.of(records.batches())) as batches:
            for batch in batches:
                del batch
    return checksum.value
