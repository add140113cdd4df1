"""Writes and checks index files of TFRecord files (``.idx``, ``.tfindex``): lines with a frame's offset and length."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from fffs.base.failures import reading, writing
from fffs.base.paths import PathLike
from fffs.errors import MetadataError
from fffs.files.atomic import AtomicFile
from fffs.formats.frames import TFRECORD
from fffs.objects.locations import open_in_order
from fffs.records.index import RecordIndex

LINE: Final = re.compile(rb"([0-9]{1,18}) ([0-9]{1,18})\r?\n?")
LONGEST: Final = 18 + 1 + 18 + 2
STEP: Final = 1 << 16  # number of lines that are written at a time


def frame_table(index: RecordIndex) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the offsets and the lengths of the frames of a TFRecord file, in bytes: int64[n] each."""
    begins = index.starts - TFRECORD.head
    return begins, index.ends + TFRECORD.tail - begins


def export_index(index: RecordIndex, path: PathLike) -> None:
    """Write the index file of a TFRecord file, in the format of DALI's ``tfrecord2idx`` and the ``tfrecord`` package.

    It appears complete or not at all. Raises WriteError.

    Example: ``fffs.tfrecord.check_index_file``.
    """
    begins, lengths = frame_table(index)
    with AtomicFile(path) as target:
        with writing(target.path), open(target.fd, "wb", closefd=False) as file:
            for k in range(0, len(index), STEP):
                rows = zip(begins[k : k + STEP].tolist(), lengths[k : k + STEP].tolist(), strict=True)
                file.write(b"".join(b"%d %d\n" % row for row in rows))
        target.commit()


def check_index_file(index: RecordIndex, path: PathLike) -> None:
    """Compare an index file with the index of its TFRecord file.

    Raises:
        MetadataError: a line is malformed or differs from its frame, or there are too few or too many lines.
        SourceNotFoundError, UsageError, ReadError: the index file cannot be opened or read.

    Examples:
        >>> with fffs.open("train.tfrecord") as reader:
        ...     fffs.tfrecord.export_index(reader.index(), "train.idx")
        ...     fffs.tfrecord.check_index_file(reader.index(), "train.idx")

    """
    begins, lengths = frame_table(index)
    with _lines(path) as (name, lines):
        row = 0
        for row, line in enumerate(lines, 1):
            entry = LINE.fullmatch(line)
            if entry is None:
                raise MetadataError(f"{name}: line {row} is not an offset and a length; write the index file again")
            if row > len(index):
                raise MetadataError(
                    f"{name}: line {row}: {index.path} has only {len(index)} records; write the index file again"
                )
            offset, length = int(entry[1]), int(entry[2])
            if (offset, length) != (begins[row - 1], lengths[row - 1]):
                raise MetadataError(
                    f"{name}: line {row} says that record {row - 1} of {index.path} has {length} bytes at offset "
                    f"{offset}, but it has {lengths[row - 1]} at {begins[row - 1]}; write the index file again"
                )
        if row < len(index):
            raise MetadataError(
                f"{name}: ends after {row} lines, but {index.path} has {len(index)} records; write the index file again"
            )


@contextlib.contextmanager
def _lines(path: PathLike) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield the name of an index file and an iterator over its lines. Lines that are too long are split."""
    with open_in_order(os.fsdecode(path)) as opened, reading(opened.name), io.BufferedReader(opened.stream()) as file:
        yield opened.name, iter(lambda: file.readline(LONGEST + 1), b"")
