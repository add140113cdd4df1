"""Loads the index of files that consist of frames: one scan finds the records, and its result is cached."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from fffs.base.failures import reading
from fffs.errors import MetadataError, ReadError, SourceChangedError
from fffs.files.file import File
from fffs.formats.scanned_file import ScannedFile
from fffs.native import engine, ffi, lib
from fffs.native.checksums import CHECK_CRC32C, CHECK_NONE
from fffs.records import index_cache
from fffs.records.index import RecordIndex

STEP: Final = 1 << 16  # frames between two checks for Ctrl-C
LOOKS: Final = 256  # maximum number of frames that a cached index is compared with


class FrameSpan(NamedTuple):
    """Frames of a file that follow each other: bytes ``begin`` to ``end`` are ``records`` frames.

    The first one has record ``first``, of ``total`` in the file.
    """

    begin: int
    end: int
    first: int
    records: int
    total: int


@dataclass(frozen=True)
class FrameFormat:
    """A format for the C code: its number, the bytes of a frame before and after the data, and its checksum."""

    name: str
    kind: int
    head: int
    tail: int
    check: int


TFRECORD: Final = FrameFormat("TFRecord", lib.FFFS_FRAMES_TFRECORD, 12, 4, CHECK_CRC32C)
OFRECORD: Final = FrameFormat("OFRecord", lib.FFFS_FRAMES_OFRECORD, 8, 0, CHECK_NONE)


class FrameError(MetadataError):
    """A frame is damaged or truncated. Records after it cannot be found; those before it are good.

    ``path`` is the file, ``record`` the number of the record in the frame, ``offset`` the start of the frame in bytes.
    """

    def __init__(self, message: str, *, path: str = "", record: int = -1, offset: int = -1) -> None:
        super().__init__(message)
        self.path = path
        self.record = record
        self.offset = offset


def frame_error(path: str, record: int, offset: int, problem: str) -> FrameError:
    """Return the error for a frame."""
    message = f"{path}: record {record}, whose frame begins at offset {offset}: {problem}"
    return FrameError(message, path=path, record=record, offset=offset)


def load_index(file: File, form: FrameFormat, check: bool) -> RecordIndex:
    """Return the index of a file of frames, cached or scanned. Raises as ``scan``, and FrameError if a frame is bad.

    Only the result of a scan with check=True is cached.
    """
    with reading(file.name):
        key = index_cache.key_of(file)
        if key is not None and (cached := index_cache.load(form.kind, key)):
            index = cached_index(file, form, key.size, cached)
            if index is not None:
                return index
        settled = key is not None and check and index_cache.settle(file, key, form.head + form.tail)
    index, error = scan(file, form, check)
    if error is not None:
        raise error
    if key is not None and settled and index_cache.key_of(file) == key and key.size == index.file_size:
        index_cache.store(form.kind, key, index_cache.Entry(index.ends, index.checksums, form.check))
    return index


def load_span(file: File, form: FrameFormat, span: FrameSpan) -> RecordIndex:
    """Return the index of a file of which only the frames of a span are scanned: all other records are empty in it.

    Raises as ``scan``, and FrameError if a frame is bad or the frames are others.
    """
    part, error = scan(file, form, True, span)
    if error is not None:
        raise error
    if len(part) != span.records:
        raise frame_error(file.name, span.first, span.begin, f"{len(part)} records follow instead of {span.records}")
    behind = span.total - span.first - span.records
    edges = np.full(span.first, span.begin, np.int64), np.full(behind, span.end, np.int64)
    starts, ends = (np.concatenate([edges[0], column, edges[1]]) for column in (part.starts, part.ends))
    checksums = None
    if part.checksums is not None:
        checksums = np.zeros(span.total, np.uint32)
        checksums[span.first : span.first + span.records] = part.checksums
    return RecordIndex(file.name, starts, ends, checksums, form.check, file.current_size(), format=form.name).validate()


def scan(
    file: File, form: FrameFormat, check: bool = True, span: FrameSpan | None = None
) -> tuple[RecordIndex, FrameError | None]:
    """Scan the frames of a file from start to end, or those of a span. check: compare the checksums of lengths, if the
    format has them.

    Returns:
        The index of the records before the first frame that is damaged or truncated, and the error for that frame, or
        None if all frames are good.

    Raises:
        ReadError: the operating system could not read.
        SourceChangedError: the file became shorter meanwhile.

    """
    frames = ffi.new("fffs_frames *")
    begin, frames.size = (span.begin, span.end) if span else (0, file.current_size())
    frames.kind, frames.check, frames.position = form.kind, check, begin
    ends: list[npt.NDArray[np.int64]] = []
    checksums: list[npt.NDArray[np.uint32]] = []
    n, waits = 0, False
    with reading(file.name), ScannedFile(file) as scanned:
        frames.fd = scanned.fd
        while frames.position < frames.size and not frames.fault:
            # The number of frames that fit into the rest of the file, and one more to diagnose an incomplete frame.
            room = min(STEP, (frames.size - frames.position) // (form.head + form.tail) + 1)
            # The data of a record is not needed, only what is around it.
            beyond = form.head + frames.length if frames.length else 0
            scanned.load(frames.position, waits, frames.position + beyond)
            some_ends, some_checksums, waits = _scan_some(frames, scanned, room)
            ends.append(some_ends)
            checksums.append(some_checksums)
            n += len(some_ends)
    first = span.first if span else 0
    error = _fault(frames, file.name, first + n, form) if frames.fault else None
    all_ends = np.concatenate([np.empty(0, np.int64), *ends])
    all_checksums = None if form.check == CHECK_NONE else np.concatenate([np.empty(0, np.uint32), *checksums])
    return _index(file.name, form, frames.size, all_ends, all_checksums, begin), error


def _scan_some(frames: Any, file: ScannedFile, room: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32], bool]:
    """Return the ends and checksums of some frames, and whether the next one needs bytes that are not loaded."""
    ends, checksums = np.empty(room, np.int64), np.empty(room, np.uint32)
    count = ffi.new("size_t *")
    status = lib.fffs_frames_scan(
        frames, ffi.cast("int64_t *", ends.ctypes.data), ffi.cast("uint32_t *", checksums.ctypes.data), room, count
    )
    if status == -errno.ENOMEM:
        raise MemoryError("not enough memory to scan a file")
    waits = status == -errno.ENODATA and file.has_more
    if status == -errno.ENODATA and not waits:
        raise SourceChangedError(f"{file.name}: became shorter while it was scanned; open it when nothing writes to it")
    if status != 0 and not waits:
        raise ReadError(-status, file.name, "a frame")
    return ends[: count[0]].copy(), checksums[: count[0]].copy(), waits


def _index(
    path: str,
    form: FrameFormat,
    size: int,
    ends: npt.NDArray[np.int64],
    checksums: npt.NDArray[np.uint32] | None,
    begin: int = 0,
) -> RecordIndex:
    """Return the index of frames that lie one after another from a byte on without gaps, from their ends."""
    starts = np.empty_like(ends)
    if len(ends):
        starts[0] = begin + form.head
        np.add(ends[:-1], form.tail + form.head, out=starts[1:])
    return RecordIndex(path, starts, ends, checksums, form.check, size, format=form.name).validate()


def cached_index(file: File, form: FrameFormat, size: int, entry: index_cache.Entry) -> RecordIndex | None:
    """Return the index in a cache entry, or None if it does not match the file."""
    last = int(entry.ends[-1]) + form.tail if len(entry.ends) else 0
    if entry.check != form.check or last != size:
        return None
    try:
        index = _index(file.name, form, size, entry.ends, entry.checksums)
    except MetadataError:
        return None
    # The tag of an object identifies its bytes, and each look would be a request.
    return None if index.truncated or not (file.tag or _agrees(file, form, index)) else index


def _agrees(file: File, form: FrameFormat, index: RecordIndex) -> bool:
    """Return whether frames begin where the index says, in a sample of at most LOOKS that costs little beside a scan.
    Different files with the same key, such as those of images with fixed times, differ in most frames.
    """
    looks = min(LOOKS, max(len(index) // 16, 16), len(index))
    rows = np.linspace(0, len(index) - 1, looks).astype(np.int64)
    heads = np.empty((len(rows), form.head), np.uint8)
    requests = np.zeros(len(rows), engine.REQUEST)
    requests["fd"], requests["length"] = file.descriptor, form.head
    requests["offset"] = index.starts[rows] - form.head
    requests["dest"] = heads.ctypes.data + form.head * np.arange(len(rows))
    if not file.read_batch(requests):
        return False  # the scan will report the reason
    lengths = np.ascontiguousarray(heads[:, :8]).view("<u8")[:, 0]
    return bool((lengths == (index.ends - index.starts)[rows].astype(np.uint64)).all())


def _fault(frames: Any, path: str, record: int, form: FrameFormat) -> FrameError:
    """Return the error for the frame at which the scan stopped."""
    position, size, length = frames.position, frames.size, frames.length
    left = size - position
    problem = {
        lib.FFFS_FRAME_CUT_HEAD: (
            f"the file ends after {left} of the {form.head} bytes of the frame's head; it is truncated, copy it again"
        ),
        lib.FFFS_FRAME_CUT: (
            f"it claims {length} bytes, but only {max(left - form.head - form.tail, 0)} follow; the file is truncated "
            "or damaged, copy it again"
        ),
        lib.FFFS_FRAME_LENGTH_CHECKSUM: (
            "the checksum of its length is wrong; the file is damaged"
            if position
            else f"the checksum of its length is wrong; the file is damaged, or not a {form.name} file"
        ),
        lib.FFFS_FRAME_LENGTH_NEGATIVE: f"its length is negative ({length - 2**64}); the file is damaged",
        lib.FFFS_FRAME_EMPTIES: (
            f"{lib.FFFS_EMPTY_FRAMES} empty records in a row, so the bytes are zeros, not frames; the file is damaged"
        ),
    }[frames.fault]
    return frame_error(path, record, position, problem)
