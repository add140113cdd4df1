"""Which formats of record files there are, one row for each, and which of them a file is of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fffs.errors import UsageError
from fffs.files.file import File
from fffs.formats import bag, ffrecord, ofrecord, part_names, tfrecord
from fffs.formats.bag_writer import NewBag
from fffs.formats.ffrecord_writer import FileWriter
from fffs.formats.record_writer import RecordWriter
from fffs.records.index import Int64Array, RecordIndex

HEAD: Final = 4096  # bytes of a file by which it is recognised


@dataclass(frozen=True)
class Format:
    """One format. ``name`` is what callers give, ``title`` what people read.

    ``recognise(head, size, path)``: whether a file of size bytes that begins with head is one, to judge by its content
    and, where that says nothing, by the name in path. ``load_index(file, check_data)``: see ``fffs.formats``.
    ``create(path, n, layout)``: a writer of a new file of n records; only Bags have layouts. ``is_part(name)``: whether
    a folder of nothing but such names is one of parts. ``is_target(path)``: whether the name of a new file says that it
    is of this format; raises UsageError where it says a kind that is not written. ``part_name(stem, number, total)``:
    what a part is called; without it there are no parts. ``expand(path)``: the files that a path means; without it,
    what ``expand_sources`` says. ``is_compressed(path)``: whether the records of a file can only be read in sequence.
    ``refuse_target(path, layout)``: raises UsageError for a name that a new file cannot have.
    ``beside(path, layout)``: the files that belong to one that is written. ``check_empty(lengths, path)``: a warning
    about empty records; raises UnsupportedError where they could not be read again. ``holds_trees``: whether a packed
    folder is a file of this format.
    """

    name: str
    title: str
    recognise: Callable[[bytes, int, str], bool]
    load_index: Callable[[File, bool], RecordIndex]
    create: Callable[[str, int, str], RecordWriter]
    is_part: Callable[[str], bool]
    is_target: Callable[[str], bool]
    part_name: Callable[[str, int, int], str] | None = None
    expand: Callable[[str], list[str]] | None = None
    is_compressed: Callable[[str], bool] = lambda path: False
    refuse_target: Callable[[str, str], None] = lambda path, layout: None
    beside: Callable[[str, str], tuple[str, ...]] = lambda path, layout: ()
    check_empty: Callable[[Int64Array, str], str | None] = lambda lengths, path: None
    holds_trees: bool = False


FFRECORD: Final = Format(
    "ffrecord",
    "FFRecord",
    ffrecord.recognise,
    ffrecord.load_index,
    create=lambda path, n, layout: FileWriter(path, n),
    is_part=lambda name: name.endswith(ffrecord.SUFFIX),
    is_target=lambda path: path.endswith(ffrecord.SUFFIX),
    part_name=part_names.ffrecord_part,
    refuse_target=lambda path, layout: ffrecord.refuse_target(path),
    holds_trees=True,
)
TFRECORD: Final = Format(
    "tfrecord",
    "TFRecord",
    tfrecord.recognise,
    tfrecord.load_index,
    create=lambda path, n, layout: tfrecord.TFRecordWriter(path),
    is_part=lambda name: tfrecord.NAME.search(name) is not None,
    is_target=tfrecord.is_target,
    part_name=part_names.tfrecord_shard,
    expand=part_names.expand_shards,
    is_compressed=tfrecord.is_compressed,
)
OFRECORD: Final = Format(
    "ofrecord",
    "OFRecord",
    ofrecord.recognise,
    ofrecord.load_index,
    create=lambda path, n, layout: ofrecord.OFRecordWriter(path, allow_empty=True),
    is_part=lambda name: ofrecord.NAME.fullmatch(name) is not None,
    is_target=ofrecord.is_target,
    part_name=part_names.ofrecord_part,
    check_empty=ofrecord.check_empty,
)
BAG: Final = Format(
    "bag",
    "Bag",
    bag.recognise,
    bag.load_index,
    create=lambda path, n, layout: NewBag(path, layout),
    is_part=lambda name: False,  # several Bags in a folder are a data set
    is_target=bag.is_target,
    is_compressed=lambda path: path.endswith(bag.COMPRESSED),
    refuse_target=bag.refuse_target,
    beside=lambda path, layout: bag.sidecars(path)[:1] if layout == "v3" else (),
)

FORMATS: Final = (FFRECORD, TFRECORD, OFRECORD, BAG)


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
    return next((form for form in (FFRECORD, BAG, TFRECORD, OFRECORD) if form.is_target(path)), None)


def may_hold_tree(index: RecordIndex) -> bool:
    """Whether a file is of a format that packed folders are."""
    return any(form.holds_trees and form.title == index.format for form in FORMATS)


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

    Only of a Bag the name comes first: its content can be anything, also a file of another format. What nothing
    recognises is taken for FFRecord, whose loader says what is wrong with it.

    Raises:
        ReadError: the operating system could not read.

    """
    path, size = file.name, file.current_size()
    head = file.read_bytes(0, HEAD, "the header")
    if bag.recognise(head, size, path):
        return BAG
    for name in ("", path):
        for form in (FFRECORD, TFRECORD, OFRECORD):
            if form.recognise(head, size, name):
                return form
    return FFRECORD
