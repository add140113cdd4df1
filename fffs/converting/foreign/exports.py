"""The table of formats of other libraries that are written, with a row for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, Final, Protocol

from fffs.base.jobs import Jobs
from fffs.converting.foreign import array_record_file, table_export, tar_export
from fffs.converting.foreign.exported import Exported, ExportReading
from fffs.errors import UsageError
from fffs.files.file import File
from fffs.formats.part_names import shard_name
from fffs.records.index import Int64Array


class Pass(Protocol):
    """One pass over the source, in which each part is written, or compared, after the one before."""

    def write(self, sink: BinaryIO) -> None:
        """Write the next part to an empty file. Raises WriteError, and as reading the source."""

    def compare(self, file: File, target: str) -> None:
        """Raise RecordError unless a file is the next part. target: its name in messages."""


@dataclass(frozen=True)
class Export:
    """A format of another library. Callers choose it by ``name``; messages call it ``title``.

    counted: what a file consists of.
    ending: of the name of a new file.
    part_name(stem, number, total): the name of a part.
    prepare(content, split): returns lines about what the format does not keep. Raises UsageError, UnsupportedError if
        it cannot hold the content at all, or a library is missing.
    sizes(content): the sizes of what is divided into parts, in bytes: int64[n].
    begin(content, bounds, reading, work): begins a pass. bounds: the first items of all parts but the first.
    uses_key: whether the key of records is in their names, or names a column.
    refuse_target, beside, sidecars: as of ``Format``.
    """

    name: str
    title: str
    counted: str
    ending: str
    part_name: Callable[[str, int, int], str]
    prepare: Callable[[Exported, bool], list[str]]
    sizes: Callable[[Exported], Int64Array]
    begin: Callable[[Exported, Sequence[int], ExportReading, Jobs], Pass]
    uses_key: bool = True
    refuse_target: Callable[[str, str], None] = lambda path, layout: None
    beside: Callable[[str, str], tuple[str, ...]] = lambda path, layout: ()
    sidecars: Callable[[str], tuple[str, ...]] = lambda path: ()


TAR: Final = Export(
    "tar",
    "tar archive",
    "file",
    ".tar",
    part_name=lambda stem, number, total: f"{stem}-{number:06}.tar",
    prepare=tar_export.prepare,
    sizes=tar_export.sizes_of_groups,
    begin=tar_export.TarPass,
)

PARQUET: Final = Export(
    "parquet",
    "Parquet file",
    "row",
    ".parquet",
    part_name=partial(shard_name, end=".parquet"),
    prepare=table_export.prepare_table,
    sizes=table_export.sizes_of_files,
    begin=table_export.begin_parquet,
)
ARROW: Final = Export(
    "arrow",
    "Arrow file",
    "row",
    ".arrow",
    part_name=partial(shard_name, end=".arrow"),
    prepare=table_export.prepare_table,
    sizes=table_export.sizes_of_files,
    begin=table_export.begin_arrow,
)

ARRAY_RECORD: Final = Export(
    "array_record",
    "array_record file",
    "record",
    ".array_record",
    part_name=partial(shard_name, end=".array_record"),
    prepare=array_record_file.prepare_array_record,
    sizes=table_export.sizes_of_files,
    begin=array_record_file.ArrayRecordPass,
    uses_key=False,
    refuse_target=array_record_file.refuse_url,
)

EXPORTS: Final = [TAR, PARQUET, ARROW, ARRAY_RECORD]
"""All formats of other libraries that are written."""


def export_named(name: str | None) -> Export | None:
    """Return the format of that name, or None."""
    return next((export for export in EXPORTS if export.name == name), None)


def export_of_target(path: str) -> Export | None:
    """Return the format that the name of a new file determines, or None."""
    return next((export for export in EXPORTS if path.lower().endswith(export.ending)), None)


def find_export(to: str | None, target: str) -> Export | None:
    """Return the format that an option, or else the name of a new file, determines, or None."""
    return export_named(to) if to else export_of_target(target)


def refuse_export(to: str | None, target: str) -> None:
    """Raise UsageError for what only one process writes: no plan has tasks for it."""
    if export := find_export(to, target):
        raise UsageError(
            f"{target}: {export.title}s are written by one process only; omit --executor, --restart and --report"
        )
