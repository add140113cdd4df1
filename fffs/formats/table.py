"""Which formats of record files there are, one row for each, and which of them a file is of."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fffs.base.failures import reading
from fffs.errors import UsageError
from fffs.formats import bag, ffrecord, ofrecord, tfrecord
from fffs.records.index import RecordIndex

HEAD: Final = 4096  # bytes of a file by which it is recognised


@dataclass(frozen=True)
class Format:
    """One format. ``name`` is what callers give, ``title`` what people read.

    ``recognise(head, size, path)``: whether a file of size bytes that begins with head is one, to judge by its content
    and, where that says nothing, by the name in path. ``load_index(fd, path, check_data)``: see ``fffs.formats``.
    """

    name: str
    title: str
    recognise: Callable[[bytes, int, str], bool]
    load_index: Callable[[int, str, bool], RecordIndex]


FFRECORD: Final = Format("ffrecord", "FFRecord", ffrecord.recognise, ffrecord.load_index)
TFRECORD: Final = Format("tfrecord", "TFRecord", tfrecord.recognise, tfrecord.load_index)
OFRECORD: Final = Format("ofrecord", "OFRecord", ofrecord.recognise, ofrecord.load_index)
BAG: Final = Format("bag", "Bag", bag.recognise, bag.load_index)

FORMATS: Final = (FFRECORD, TFRECORD, OFRECORD, BAG)


def format_named(name: str) -> Format:
    """The format of that name; raises UsageError when there is none."""
    for form in FORMATS:
        if form.name == name:
            return form
    raise UsageError(f"there is no format {name!r}; there are {', '.join(form.name for form in FORMATS)}")


def recogniser(name: str | None) -> Callable[[int, str], Format]:
    """What says which format the file open as fd, at path, is of: ``find_format``, unless one is named.

    Raises:
        UsageError: there is no format of that name.

    """
    if name is None:
        return find_format
    named = format_named(name)
    return lambda fd, path: named


def find_format(fd: int, path: str) -> Format:
    """The format of the file open as fd, by its content first and its name second.

    Only of a Bag the name comes first: its content can be anything, also a file of another format. What nothing
    recognises is taken for FFRecord, whose loader says what is wrong with it.

    Raises:
        ReadError: the operating system could not read.

    """
    size = os.fstat(fd).st_size
    with reading(path, "the header"):
        head = os.pread(fd, HEAD, 0)
    if bag.recognise(head, size, path):
        return BAG
    for name in ("", path):
        for form in (FFRECORD, TFRECORD, OFRECORD):
            if form.recognise(head, size, name):
                return form
    return FFRECORD
