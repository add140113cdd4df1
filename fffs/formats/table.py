"""The table of all formats of record files, with a row for each, and the recognition of a file's format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from fffs.base.importing import importing
from fffs.errors import UsageError
from fffs.files.file import File
from fffs.formats import bag, features, ffrecord, frames, ofrecord, part_names, tfrecord
from fffs.formats.features import Schema
from fffs.formats.frames import FrameFormat
from fffs.formats.record_writer import RecordWriter, Target
from fffs.objects.fsspec_url import file_part
from fffs.records.index import Int64Array, RecordIndex

HEAD: Final = 4096  # bytes from the start of a file that ``recognise`` gets


@dataclass(frozen=True)
class Format:
    """A format. Callers choose it by ``name``; messages call it ``title``.

    Reading:
        recognise(head, size, path): whether a file of size bytes that begins with head is of this format, judging by
            its content and, if that is not conclusive, by the name in path.
        load_index(file, check_data): loads and validates the index of an open file. check_data: compare the checksums
            of the metadata, if any. Raises FormatError, ReadError, SourceChangedError.
        is_named: recognise files by name before their content, which can be anything.
        has_head(head): whether the first bytes of a file identify this format beyond doubt.
        is_certain(file): whether its further content does, for formats without ``has_head``.
        frames: the frames that records are found by, if a file has no index.
        schema: the type of the messages in the records, for decoding them.
        is_compressed(path): whether records of a file can only be read in sequence, not by number. Then
            read_stream(path) returns a context manager that yields an iterator over the records, as bytes.
        holds_trees: whether packed folders are files of this format.

    Names:
        is_part(name): whether a file of this name may be a part; a folder of parts contains no other files.
        parts_of(folder, names): the files of this format in a folder, in order; empty if there are none.
        parts_named(folder, names, prefix): those that are called by a prefix and a number, by number. None: parts have
            no such names.
        expand(path): the files that a path stands for, if that may be a set. None: as ``expand_sources``.
        is_set(path): whether a path that does not exist is the common name of a set.
        sidecar_endings: suffixes of other files that may lie among parts.
        sidecars(path): paths of other files that may belong to a file.

    Writing:
        create(target, n, layout): returns a writer of a new file of n records.
        has_layouts: whether it depends on the layout.
        is_target(path): whether the name of a new file is of this format. Raises UsageError for variants that cannot
            be written.
        refuse_target(path, layout): raises UsageError if a new file cannot have this name.
        part_name(stem, number, total): the name of a part. None: there are no parts.
        beside(path, layout): paths of other files that are written with a file.
        check_empty(lengths, path): returns a warning about empty records, or None. Raises UnsupportedError if they
            could not be read back.
    """

    name: str
    title: str
    recognise: Callable[[bytes, int, str], bool]
    load_index: Callable[[File, bool], RecordIndex]
    create: Callable[[Target, int, str], RecordWriter]
    is_part: Callable[[str], bool]
    is_target: Callable[[str], bool]
    has_layouts: bool = False
    is_named: bool = False
    has_head: Callable[[bytes], bool] = lambda head: False
    is_certain: Callable[[File], bool] = lambda file: False
    frames: FrameFormat | None = None
    schema: Schema | None = None
    is_compressed: Callable[[str], bool] = lambda path: False
    read_stream: Callable[[str], AbstractContextManager[Iterator[bytes]]] | None = None
    holds_trees: bool = False
    parts_of: Callable[[str, list[str]], list[str]] = lambda folder, names: []
    parts_named: Callable[[str, list[str], str], list[str]] | None = None
    expand: Callable[[str], list[str]] | None = None
    is_set: Callable[[str], bool] = lambda path: False
    sidecar_endings: tuple[str, ...] = ()
    sidecars: Callable[[str], tuple[str, ...]] = lambda path: ()
    refuse_target: Callable[[str, str], None] = lambda path, layout: None
    part_name: Callable[[str, int, int], str] | None = None
    beside: Callable[[str, str], tuple[str, ...]] = lambda path, layout: ()
    check_empty: Callable[[Int64Array, str], str | None] = lambda lengths, path: None


def _create_ffrecord(target: Target, n: int, _layout: str) -> RecordWriter:
    with importing:  # imported late, as in the next function: readers, which know all formats, write nothing
        from fffs.formats.ffrecord_writer import FileWriter
    return FileWriter(target, n)


def _create_bag(target: Target, _n: int, layout: str) -> RecordWriter:
    with importing:
        from fffs.formats.new_bag import NewBag
    return NewBag(target, layout)


def _read_tfrecords(path: str) -> AbstractContextManager[Iterator[bytes]]:
    with importing:
        from fffs.formats.tfrecord_stream import TFRecordStream  # imported late, with all compressors
    return TFRecordStream(path)


FFRECORD: Final = Format(
    "ffrecord",
    "FFRecord",
    ffrecord.recognise,
    ffrecord.load_index,
    create=_create_ffrecord,
    is_part=lambda name: name.endswith(ffrecord.SUFFIX),
    is_target=lambda path: path.endswith(ffrecord.SUFFIX),
    is_certain=ffrecord.is_certain,
    holds_trees=True,
    parts_of=part_names.ffrecord_parts,
    refuse_target=lambda path, layout: ffrecord.refuse_target(path),
    part_name=part_names.ffrecord_shard,
)
BAG: Final = Format(
    "bag",
    "Bag",
    bag.recognise,
    bag.load_index,
    create=_create_bag,
    is_part=lambda name: False,  # several Bags in a folder are a data set
    is_target=bag.is_target,
    is_named=True,
    is_compressed=lambda path: path.endswith(bag.COMPRESSED),
    sidecars=lambda path: bag.sidecars(path) if path.endswith(bag.SUFFIX) else (),
    refuse_target=bag.refuse_target,
    has_layouts=True,
    beside=lambda path, layout: bag.sidecars(path)[:1] if layout == "v3" else (),
)
OFRECORD: Final = Format(
    "ofrecord",
    "OFRecord",
    ofrecord.recognise,
    ofrecord.load_index,
    create=lambda path, n, layout: ofrecord.OFRecordWriter(path, allow_empty=True),
    is_part=lambda name: ofrecord.NAME.fullmatch(name) is not None,
    is_target=ofrecord.is_target,
    frames=frames.OFRECORD,
    schema=features.OFRECORD_SCHEMA,
    parts_of=part_names.ofrecord_parts,
    parts_named=part_names.numbered_parts,
    part_name=part_names.ofrecord_part,
    check_empty=ofrecord.check_empty,
)
TFRECORD: Final = Format(
    "tfrecord",
    "TFRecord",
    tfrecord.recognise,
    tfrecord.load_index,
    create=lambda path, n, layout: tfrecord.TFRecordWriter(path),
    is_part=lambda name: tfrecord.NAME.search(name) is not None,
    is_target=tfrecord.is_target,
    has_head=tfrecord.is_head,
    frames=frames.TFRECORD,
    schema=features.EXAMPLE_SCHEMA,
    is_compressed=tfrecord.is_compressed,
    read_stream=_read_tfrecords,
    parts_of=part_names.tfrecord_shards,
    expand=part_names.expand_shards,
    is_set=part_names.is_set_of_shards,
    sidecar_endings=tfrecord.SIDECARS,
    part_name=part_names.tfrecord_shard,
)

FORMATS: Final = [FFRECORD, BAG, OFRECORD, TFRECORD]
"""All formats, in the order in which they are tried. A file that none recognises is taken for the first. TFRecord is
last: it matches anywhere in the name of a new file, and the suffixes of other formats take precedence.
"""


def format_named(name: str) -> Format:
    """Return the format of that name. Raises UsageError if there is none."""
    for form in FORMATS:
        if form.name == name:
            return form
    raise UsageError(f"there is no format {name!r}; choose one of {', '.join(form.name for form in FORMATS)}")


def format_with(prefix: str | None, name: str | None) -> str | None:
    """Return the name of the format whose parts may have any prefix; without a prefix, the given name.

    Raises:
        UsageError: the prefix cannot begin the name of a file, or parts of the named format have no such names.

    """
    if prefix is None:
        return name
    if not isinstance(prefix, str) or "/" in prefix or "\0" in prefix:
        raise UsageError(f"the prefix {prefix!r} must be what the names of parts begin with, without a folder")
    for form in FORMATS:
        if form.parts_named and name in (None, form.name):
            return form.name
    raise UsageError(f"the prefix {prefix!r} is for parts of OFRecord; files of the format {name!r} have none, omit it")


def format_of_target(path: str) -> Format | None:
    """Return the format that the name of a new file determines, or None.

    Raises:
        UsageError: the name is that of a variant that cannot be written.

    """
    return next((form for form in FORMATS if form.is_target(path)), None)


def format_of(index: RecordIndex) -> Format | None:
    """Return the format of the file that an index belongs to. None: it is not a record file."""
    return next((form for form in FORMATS if form.title == index.format), None)


def recogniser(name: str | None) -> Callable[[File], Format]:
    """Return a function that returns the format of a file: the format of that name, or for None ``find_format``.

    Raises:
        UsageError: there is no format of that name.

    """
    if name is None:
        return find_format
    named = format_named(name)
    return lambda file: named


def find_format(file: File) -> Format:
    """Return the format of a file, judging by its content first and its name second.

    The name comes first only for formats whose content can be anything, even a file of another format. A file that no
    format recognises is taken for the first, whose loader reports what is wrong.

    Raises:
        ReadError: the operating system could not read.

    """
    path, size = file_part(file.name), file.current_size()
    head = file.read_bytes(0, HEAD, "the header")
    if form := named_format(path):
        return form
    for name in ("", path):
        for form in FORMATS:
            if not form.is_named and form.recognise(head, size, name):
                return form
    return FORMATS[0]


def named_format(path: str) -> Format | None:
    """Return the format that a file's name alone determines (see ``Format.is_named``), or None."""
    name = file_part(path)
    return next((form for form in FORMATS if form.is_named and form.recognise(b"", 0, name)), None)
