"""What a source is, by its content first, and what a destination shall be, by its name."""

from __future__ import annotations

import os
from typing import Final

from fffs.base.failures import reading
from fffs.converting.archives import is_tar, is_zip
from fffs.errors import UsageError
from fffs.files.atomic import CHECKSUMS
from fffs.files.dirfd import close
from fffs.files.local import open_source
from fffs.formats import bag, ffrecord, ofrecord, tfrecord
from fffs.formats.ffrecord import SUFFIX
from fffs.formats.part_names import PATTERN
from fffs.formats.table import FORMATS, find_format

RECORDS: Final = tuple(form.name for form in FORMATS)

ARCHIVES: Final = ("tar", "zip")
SOURCES: Final = (*RECORDS, "granular", *ARCHIVES, "folder")
DESTINATIONS: Final = (*RECORDS, "granular")
SIDECARS: Final = (*tfrecord.SIDECARS, CHECKSUMS)


def kind_of_source(path: str) -> str:
    """One of SOURCES. Raises SourceNotFoundError, UsageError, ReadError."""
    if os.path.isdir(path):
        return _kind_of_folder(path)
    if not os.path.lexists(path) and (PATTERN.fullmatch(os.path.basename(path)) or _has_shards(path)):
        return "tfrecord"
    fd, path = open_source(path)
    try:
        with reading(path):
            if bag.recognise(b"", 0, path):
                return "bag"  # a record of a Bag may be anything, and it begins with one
            if tfrecord.is_head(os.pread(fd, tfrecord.HEAD.size, 0)):
                return "tfrecord"  # nothing else begins with such a checksum
            kind = "tar" if is_tar(fd, path, named=_is_named_as_records(path)) else "zip" if is_zip(fd, path) else None
            if kind is None:
                return find_format(fd, path).name
            return "ffrecord" if ffrecord.is_certain(fd, path) else kind
    finally:
        close(fd)


def _is_named_as_records(path: str) -> bool:
    name = os.path.basename(path)
    return name.endswith(SUFFIX) or bool(ofrecord.NAME.fullmatch(name) or tfrecord.NAME.search(name))


def _has_shards(path: str) -> bool:
    """Whether a name is what shards have in common."""
    folder, stem = os.path.split(path)
    try:
        return any(name.startswith(f"{stem}-0") and "-of-" in name for name in os.listdir(folder or "."))
    except OSError:
        return False


def _kind_of_folder(path: str) -> str:
    """A folder with nothing but parts in it is taken for these, any other for what it is."""
    with reading(path):
        names = [name for name in os.listdir(path) if not name.startswith(".") and not name.endswith(SIDECARS)]
    from fffs.granular.shards import data_set_folders  # imported for a folder at most, like all of granular

    if data_set_folders(path):
        return "granular"
    parts = {
        "ffrecord": lambda name: name.endswith(SUFFIX),
        "ofrecord": lambda name: ofrecord.NAME.fullmatch(name) is not None,
        "tfrecord": lambda name: tfrecord.NAME.search(name) is not None,
    }
    return next((kind for kind, is_part in parts.items() if names and all(map(is_part, names))), "folder")


def kind_of_destination(path: str) -> str | None:
    """One of DESTINATIONS; None when the name does not say."""
    name = os.path.basename(path)
    if name.endswith(SUFFIX):
        return "ffrecord"
    if name.endswith(bag.SUFFIX):
        return "bag"
    if name.endswith(bag.COMPRESSED):
        raise UsageError(f"{path}: no {bag.COMPRESSED} is written; name a {bag.SUFFIX}")
    if tfrecord.NAME.search(name):
        if name.endswith((".gz", ".zlib")):
            raise UsageError(f"{path}: no compressed files are written; name a .tfrecord, and compress it afterwards")
        return "tfrecord"
    return "ofrecord" if ofrecord.NAME.fullmatch(name) or name.endswith(".ofrecord") else None
