"""Files that tasks wrote: whether they are complete and undamaged; what their results say was left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from fffs.base.text import plural
from fffs.cluster.part_task import PartResult
from fffs.errors import FffsError
from fffs.formats.table import FFRECORD
from fffs.layouts import load_packed, load_records
from fffs.layouts.view import TreeView
from fffs.objects.locations import open_file
from fffs.objects.names import is_url
from fffs.packing.verify import verify

LEFT_OUT_MAX: Final = 100  # lines in a result


def has_header(path: str, result: PartResult) -> bool:
    """Whether a file has the size of a result, and the checksum in its header: over those of all of its records."""
    try:
        with open_file(path) as file:
            header = np.zeros(4, np.uint8)
            file.read_at(0, header)
            return (file.size, int.from_bytes(header.tobytes(), "little")) == (result.size, result.checksum)
    except (OSError, FffsError):
        return False


def is_whole_pack(path: str, result: PartResult) -> bool:
    """Whether a pack is there, has the header of the result, and all records have their checksums."""
    return _is_whole(path, result, lambda: load_packed(path))


def is_whole_file(path: str, result: PartResult) -> bool:
    """As ``is_whole_pack``, for a file of records without names."""
    return _is_whole(path, result, lambda: load_records([path], FFRECORD.name))


def _is_whole(path: str, result: PartResult, load: Callable[[], TreeView]) -> bool:
    if not has_header(path, result):
        return False
    if is_url(path):  # the store has compared what it was sent, and keeps it whole
        return True
    try:
        with load() as source:
            return not verify(source)
    except (OSError, FffsError):
        return False


def shortened(lines: list[str]) -> tuple[str, ...]:
    """Return lines about what was left out, or the first ones and how many more there are."""
    if len(lines) <= LEFT_OUT_MAX:
        return tuple(lines)
    more = plural(len(lines) - LEFT_OUT_MAX, "more input")
    return (*lines[:LEFT_OUT_MAX], f"... and {more} left out")
