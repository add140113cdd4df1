"""Which formats of record files there are, one row for each, and which of them a file is of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from fffs.errors import UsageError
from fffs.files.file import File
from fffs.formats import bag, features, ffrecord, ofrecord, part_names, tfrecord
from fffs.formats.features import Schema
from fffs.formats.ffrecord_writer import FileWriter
from fffs.formats.new_bag import NewBag
from fffs.formats.record_writer import RecordWriter
from fffs.formats.tfrecord_stream import TFRecordStream
from fffs.records.index import Int64Array, RecordIndex

HEAD: Final = 4096  # bytes of a file by which it is recognised


@dataclass(frozen=True)
class Format:
    """One format. ``name`` is what callers give, ``title`` what people read.

    Reading:
        recognise(head, size, path): whether a file of size bytes that begins with head is one, to judge by its content
            and, where that says nothing, by the name in path.
        load_index(file, check_data): see ``fffs.formats``.
        is_named: the name of a file says that it is of this format before its content is looked at, which can be
            anything.
        has_head(head): whether the first bytes of a file are such as nothing else has by chance.
        is_certain(file): whether more of its content is, where ``has_head`` cannot tell.
        schema: the messages that its records are, for who decodes them.
        is_compressed(path): whether the records of a file can only be read in sequence, and not by number; then
            read_stream(path): a context manager, which gives an iterator over the records, as bytes.
        holds_trees: whether a packed folder is a file of this format.

    Names:
        is_part(name): whether a folder of nothing but such names is one of parts.
        parts_of(folder, names): the files of a folder that are of this format, in order; none: it has none.
        expand(path): the files that a path means that may be of a set; without it, what ``expand_sources`` says.
        is_set(path): whether a path, at which there is nothing, is what the names of such a set have in common.
        sidecar_endings: what the names of other files end in that may lie among parts.
        sidecars(path): the files that may belong to one.

    Writing:
        create(path, n, layout): a writer of a new file of n records; only Bags have layouts.
        is_target(path): whether the name of a new file says that it is of this format; raises UsageError where it says
            a kind that is not written.
        refuse_target(path, layout): raises UsageError for a name that a new file cannot have.
        part_name(stem, number, total): what a part is called; without it there are no parts.
        beside(path, layout): the files that belong to one that is written.
        check_empty(lengths, path): a warning about empty records; raises UnsupportedError where they could not be read
            again.
    """

    name: str
    title: str
    recognise: Callable[[bytes, int, str], bool]
    load_index: Callable[[File, bool], RecordIndex]
    create: Callable[[str, int, str], RecordWriter]
    is_part: Callable[[str], bool]
    is_target: Callable[[str], bool]
    is_named: bool = False
    has_head: Callable[[bytes], bool] = lambda head: False
    is_certain: Callable[[File], bool] = lambda file: False
    schema: Schema | None = None
    is_compressed: Callable[[str], bool] = lambda path: False
    read_stream: Callable[[str], AbstractContextManager[Iterator[bytes]]] | None = None
    holds_trees: bool = False
    parts_of: Callable[[str, list[str]], list[str]] = lambda folder, names: []
    expand: Callable[[str], list[str]] | None = None
    is_set: Callable[[str], bool] = lambda path: False
    sidecar_endings: tuple[str, ...] = ()
    sidecars: Callable[[str], tuple[str, ...]] = lambda path: ()
    refuse_target: Callable[[str, str], None] = lambda path, layout: None
    part_name: Callable[[str, int, int], str] | None = None
    beside: Callable[[str, str], tuple[str, ...]] = lambda path, layout: ()
    check_empty: Callable[[Int64Array, str], str | None] = lambda lengths, path: None


FFRECORD: Final = Format(
    "ffrecord",
    "FFRecord",
    ffrecord.recognise,
    ffrecord.load_index,
    create=lambda path, n, layout: FileWriter(path, n),
    is_part=lambda name: name.endswith(ffrecord.SUFFIX),
    is_target=lambda path: path.endswith(ffrecord.SUFFIX),
    is_certain=ffrecord.is_certain,
    holds_trees=True,
    parts_of=part_names.ffrecord_parts,
    refuse_target=lambda path, layout: ffrecord.refuse_target(path),
    part_name=part_names.ffrecord_part,
)
BAG: Final = Format(
    "bag",
    "Bag",
    bag.recognise,
    bag.load_index,
    create=lambda path, n, layout: NewBag(path, layout),
    is_part=lambda name: False,  # several Bags in a folder are a data set
    is_target=bag.is_target,
    is_named=True,
    is_compressed=lambda path: path.endswith(bag.COMPRESSED),
    sidecars=lambda path: bag.sidecars(path) if path.endswith(bag.SUFFIX) else (),
    refuse_target=bag.refuse_target,
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
    schema=features.OFRECORD_SCHEMA,
    parts_of=part_names.ofrecord_parts,
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
    schema=features.EXAMPLE_SCHEMA,
    is_compressed=tfrecord.is_compressed,
    read_stream=TFRecordStream,
    parts_of=part_names.tfrecord_shards,
    expand=part_names.expand_shards,
    is_set=part_names.is_set_of_shards,
    sidecar_endings=tfrecord.SIDECARS,
    part_name=part_names.tfrecord_shard,
)

FORMATS: Final = [FFRECORD, BAG, OFRECORD, TFRECORD]
"""All formats, in the order in which they are asked. What nothing recognises is taken for the first. Among names of new
files an ending counts before what may be anywhere in a name, so TFRecord is the last.
"""


def format_named(name: str) -> Format:
    """The format of that name; raises UsageError when there is none."""
    for form in FORMATS:
        if form.name == name:
            return form
    raise UsageError(f"there is no format {name!r}; there are {', '.join(form.name for form in FORMATS)}")


def format_of_target(path: str) -> Format | None:
    """The format that the name of a new file says; an ending counts before what may be anywhere in a name.

    Raises:
        UsageError: the name is of a kind that is not written.

    """
    return next((form for form in FORMATS if form.is_target(path)), None)


def format_of(index: RecordIndex) -> Format | None:
    """The format that an index was loaded by; None: it is not one of record files."""
    return next((form for form in FORMATS if form.title == index.format), None)


def recogniser(name: str | None) -> Callable[[File], Format]:
    """What says which format a file is of: ``find_format``, unless one is named.

    Raises:
        UsageError: there is no format of that name.

    """
    if name is None:
        return find_format
    named = format_named(name)
    return lambda file: named


def find_format(file: File) -> Format:
    """The format of a file, by its content first and its name second.

    Its name comes first only where the content can be anything, also that of a file of another format. What nothing
    recognises is taken for the first format, whose loader says what is wrong with it.

    Raises:
        ReadError: the operating system could not read.

    """
    path, size = file.name, file.current_size()
    head = file.read_bytes(0, HEAD, "the header")
    if form := named_format(path):
        return form
    for name in ("", path):
        for form in FORMATS:
            if not form.is_named and form.recognise(head, size, name):
                return form
    return FORMATS[0]


def named_format(path: str) -> Format | None:
    """The format of a file whose name says it before its content is looked at, if it does."""
    return next((form for form in FORMATS if form.is_named and form.recognise(b"", 0, path)), None)
