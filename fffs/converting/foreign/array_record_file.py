"""Reads and writes array_record files through their library, which gets open descriptors."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Generator, Iterator, Sequence
from typing import Any, BinaryIO, Final

from fffs.base.jobs import Jobs
from fffs.converting.foreign.exported import Exported, ExportedPack, ExportReading, WholeFiles
from fffs.converting.foreign.items import Bytes, ForeignItems
from fffs.converting.verifying import differs
from fffs.errors import MetadataError, UnsupportedError, UsageError
from fffs.files.file import File
from fffs.granular.optional import library
from fffs.objects.names import is_url

SIGNATURE: Final = bytes.fromhex("83af70d10d884a3f") + bytes(8) + (64).to_bytes(8, "little") + bytes.fromhex("91bac23c")
LARGEST: Final = 2**31 - 1  # bytes of a record
_MODULE: Final = "array_record.python.array_record_module"


def is_array_record(head: bytes) -> bool:
    """Return whether a file begins like those of Riegeli, of which array_record is a kind."""
    return head.startswith(SIGNATURE)


class ArrayRecordItems(ForeignItems):
    """The records of array_record files, which have no names."""

    def _load(self) -> None:
        library(_MODULE, f"{self.shown}: reading it")

    def files(self) -> Iterator[tuple[bytes, Bytes]]:
        """As in ``ForeignItems``."""
        raise UsageError(f"{self.shown}: its records have no names")

    def values(self, column: str | None) -> Iterator[Bytes]:
        """As in ``ForeignItems``, without columns."""
        for file in self.open_files:
            with file.local() as fd:
                yield from _records(fd, file.name)

    def left_out(self, column: str | None, *, names: bool) -> list[str]:
        """As in ``ForeignItems``."""
        if column is not None:
            raise UsageError(f"{self.shown}: has no columns; omit --column")
        return []


def _records(fd: int, shown: str) -> Generator[bytes, None, None]:
    with _decoding(shown):
        reader = library(_MODULE, shown).ArrayRecordReader(f"/proc/self/fd/{fd}")
    try:
        if not reader.ok():
            raise MetadataError(f"{shown}: not an array_record file, damaged or truncated")
        for _ in range(reader.num_records()):
            with _decoding(shown):
                record = reader.read()
            yield record
    finally:
        with contextlib.suppress(RuntimeError):  # of a damaged file, which was reported already
            reader.close()


@contextlib.contextmanager
def _decoding(shown: str) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError, IndexError) as error:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise MetadataError(f"{shown}: damaged or truncated: {line:.200}") from error


# ---------------------------------------------------------------- writing


def prepare_array_record(content: Exported, split: bool) -> list[str]:
    """See ``Export``."""
    library(_MODULE, f"{content.shown}: writing an array_record file")
    if isinstance(content, ExportedPack):
        raise UsageError(
            f"{content.shown}: a packed folder: the names would be lost; --from ffrecord converts the records"
        )
    for entry in content.entries():
        if entry.size > LARGEST:
            raise UnsupportedError(f"{content.shown}: record {entry.record} has more than 2 GiB")
    return []


def refuse_url(path: str, layout: str) -> None:
    """Raise UsageError for a URL: the library writes local files only."""
    if is_url(path):
        raise UsageError(f"{path}: array_record files are written by their library, which knows local files only")


class ArrayRecordPass:
    """Writes or compares all records, one after the other. See ``Pass``."""

    def __init__(self, content: Exported, bounds: Sequence[int], reading: ExportReading, work: Jobs) -> None:
        self._files = WholeFiles(content.entries(), bounds, reading, work)

    def write(self, sink: BinaryIO) -> None:
        """Write the next file, in groups of one record, which is how single records are read fast."""
        writer: Any = library(_MODULE, "writing").ArrayRecordWriter(f"/proc/self/fd/{sink.fileno()}", "group_size:1")
        try:
            for _, record in self._files.next_part():
                writer.write(record)
            writer.close()
        except RuntimeError as error:
            raise _write_error(error) from error

    def compare(self, file: File, target: str) -> None:
        """Raise RecordError unless a file has the next records."""
        number = 0
        with file.local() as fd, contextlib.closing(_records(fd, target)) as written:
            for _, record in self._files.next_part():
                if next(written, None) != record:
                    raise differs(target, number)
                number += 1
            if next(written, None) is not None:
                raise differs(target, number)


def _write_error(error: RuntimeError) -> OSError:
    """Return the error for what the library reports in words only."""
    code = next((code for code in errno.errorcode if os.strerror(code) in str(error)), errno.EIO)
    return OSError(code, os.strerror(code))
