"""Zip: reads the members of zip archives without unpacking them to a disk."""

from __future__ import annotations

import calendar
import stat
import struct
import zipfile
from collections.abc import Iterator
from typing import Final

from fffs.base.jobs import Jobs, Progress
from fffs.converting.archive import Archive
from fffs.converting.zip_directory import EXTRA, read_directory
from fffs.errors import MetadataError, UnsupportedError
from fffs.formats.streams import Stream
from fffs.native.checksums import crc32
from fffs.native.engine import BLOCK
from fffs.packing.arrange import KINDS
from fffs.packing.contents import Work
from fffs.packing.names import Contents

ZIP_METHODS: Final = {zipfile.ZIP_STORED: None, zipfile.ZIP_DEFLATED: "deflate", zipfile.ZIP_BZIP2: "bz2"}
ZIP_RATIO: Final = 1 << 21  # no method decompresses one byte to more bytes than this
ENCRYPTED: Final = 0x41  # bits of a zip member's flags: encrypted, strongly encrypted
UTF8: Final = 0x800
DOS: Final = 0
UNIX: Final = 3  # the system that made a zip member: members of 3 and 19 (macOS) have modes
LOCAL: Final = struct.Struct("<4s22xHH")
EXTENDED_TIME: Final = 0x5455
UNICODE_PATH: Final = 0x7075
NTFS: Final = 0x000A
NTFS_TIMES: Final = 1  # a tag in that field: of the times of modification, access and creation
NTFS_EPOCH: Final = 11_644_473_600 * 10**7  # 1970 in units of 100 ns since 1601


class Zip(Archive):
    """A zip archive. zipfile reads only its directory, not the data: its bz2 and lzma have no bounds on memory."""

    def scan(self, progress: Progress | None) -> None:
        """As in ``Archive``."""
        self._infos = read_directory(self.file, self.names)
        self._backslashes = False
        self._refuse_overlaps()
        for k, info in enumerate(self._infos):
            self._add(k, info)

    def _refuse_overlaps(self) -> None:
        """Raise MetadataError if members share bytes: a small archive could then fill any disk."""
        end = 0
        for info in sorted(self._infos, key=lambda info: info.header_offset):
            if info.header_offset < end:
                raise MetadataError(f"{self.path}: {info.filename!a:.200} overlaps another member; it is damaged")
            if end == 0 and info.header_offset > 0:
                self.names.warn(
                    f"{self.path}: the archive begins after {info.header_offset} other bytes, which are left out"
                )
            end = info.header_offset + LOCAL.size + info.compress_size
        if end > self.size:
            raise MetadataError(f"{self.path}: members reach past the end of the file; it is truncated, copy it again")

    def _add(self, k: int, info: zipfile.ZipInfo) -> None:
        name, mode, mtime = self._name(info), info.external_attr >> 16, _zip_time(info)
        if info.create_system not in (UNIX, 19):
            mode = 0
        kind = stat.S_IFDIR if name.endswith(b"/") else stat.S_IFMT(mode) or stat.S_IFREG  # as unzip decides
        if kind == stat.S_IFDIR:
            if info.file_size:
                self.names.warn(f"{self.path}: {info.filename!a:.200}: a folder with {info.file_size} bytes, left out")
            self.names.add_folder(name, stat.S_IMODE(mode) if mode else 0o755, mtime)
        elif kind in (stat.S_IFREG, stat.S_IFLNK):
            if info.flag_bits & ENCRYPTED:
                raise UnsupportedError(f"{self.path}: {info.filename!a:.200} is encrypted; unpack it, pack the folder")
            if info.compress_type not in ZIP_METHODS:
                raise UnsupportedError(
                    f"{self.path}: {info.filename!a:.200} is compressed by method {info.compress_type}, which is not "
                    "supported; unpack it, pack the folder"
                )
            if info.file_size > info.compress_size * ZIP_RATIO:
                raise MetadataError(f"{self.path}: {info.filename!a:.200} claims more bytes than it can have")
            if kind == stat.S_IFREG:
                self.names.add_file(name, k, info.file_size, stat.S_IMODE(mode) if mode else 0o644, mtime)
            else:
                self.names.add_symlink(name, self._target(k, info), mtime)
        else:
            self.names.leave_out(name, f"a {KINDS.get(kind, 'member of unknown type')}")

    def _name(self, info: zipfile.ZipInfo) -> bytes:
        """Return the name of a member. Some programs for Windows separate folders with backslashes."""
        name = _zip_name(info)
        if info.create_system != DOS or b"/" in name or b"\\" not in name:
            return name
        if not self._backslashes:
            self._backslashes = True
            self.names.warn(f"{self.path}: names from Windows: '\\' separates folders, as in {info.filename!a:.200}")
        return name.replace(b"\\", b"/")

    def _target(self, k: int, info: zipfile.ZipInfo) -> bytes:
        size = min(info.file_size, 1 << 16)  # add_symlink refuses a target that is longer than a path
        return b"".join(self._pieces(k, size)) if size == info.file_size else bytes(size)

    def each(self, work: Work, contents: Contents, jobs: Jobs, threads: int) -> None:
        """As in ``Archive``."""

        def next_file(record: int) -> None:
            work.file(record, self._pieces(int(contents.places[record]), int(contents.sizes[record])))

        jobs.run(next_file, range(len(contents.sizes)), threads)

    def _pieces(self, place: int, size: int) -> Iterator[bytes]:
        """Yield the bytes of the member of that number."""
        info = self._infos[place]
        head = self.file.read_bytes(info.header_offset, LOCAL.size)
        magic, name, extra = LOCAL.unpack(head) if len(head) == LOCAL.size else (b"", 0, 0)
        if magic != b"PK\x03\x04":
            raise MetadataError(f"{self.path}: {info.filename!a:.200}: its header is damaged")
        if not info.compress_size and not size and not info.CRC:
            return  # an empty file, whose compressed data has not even an end mark
        start = info.header_offset + LOCAL.size + name + extra
        stream = Stream(self.file, ZIP_METHODS[info.compress_type], start, start + info.compress_size)
        crc, left = 0, size
        while left:
            piece = stream.read(min(left, BLOCK))
            crc = crc32(piece, crc)
            left -= len(piece)
            if not piece:
                break
            if left == 0 and crc == info.CRC and not stream.read(1):
                yield piece
                return
            if left:
                yield piece
        if size or info.CRC or stream.read(1):
            raise MetadataError(
                f"{self.path}: {info.filename!a:.200}: size or CRC-32 differs from the central directory; the archive "
                "is damaged, copy it again"
            )


def _zip_name(info: zipfile.ZipInfo) -> bytes:
    """Return the name of a member as bytes: the UTF-8 name, if it belongs to the stored one; else the stored bytes, if
    the member was made on a system whose names are bytes; else the stored name converted from code page 437.
    """
    name = info.orig_filename
    if info.flag_bits & UTF8:
        return name.encode("utf-8", "surrogateescape")
    stored = name.encode("cp437")
    if (data := _extra(info, UNICODE_PATH)) and data[0] == 1 and len(data) > 5:
        crc, unicode = int.from_bytes(data[1:5], "little"), data[5:]
        if crc == crc32(stored):
            return unicode
    return stored if info.create_system in (UNIX, 19) else name.encode("utf-8")


def _extra(info: zipfile.ZipInfo, wanted: int) -> bytes:
    """Return the first extra field of a kind, or b""."""
    at = 0
    while at + EXTRA.size <= len(info.extra):
        kind, size = EXTRA.unpack_from(info.extra, at)
        at += EXTRA.size + size
        if kind == wanted:
            return info.extra[at - size : at]
    return b""


def _zip_time(info: zipfile.ZipInfo) -> int:
    """Return nanoseconds since 1970, from the extended timestamp field, or that of NTFS, or from the DOS date.

    A DOS date is in the local time of the machine that made the archive, which nothing in it tells. It is taken for
    UTC: the time zone of the reader would be as wrong, and the same archive would become other packs elsewhere.
    """
    data = _extra(info, EXTENDED_TIME)
    if len(data) >= 5 and data[0] & 1:
        return int.from_bytes(data[1:5], "little", signed=True) * 10**9
    if (ticks := _ntfs_time(_extra(info, NTFS))) is not None:
        return ticks
    try:
        return calendar.timegm(info.date_time) * 10**9
    except (OverflowError, ValueError):  # no date, such as one of zeros
        return 0


def _ntfs_time(data: bytes) -> int | None:
    """Return nanoseconds since 1970 from the extra field of NTFS: 4 bytes, and then attributes, each with a tag and a
    size. None: it has no modification time.
    """
    at = 4
    while at + EXTRA.size <= len(data):
        tag, size = EXTRA.unpack_from(data, at)
        at += EXTRA.size
        if tag == NTFS_TIMES and size >= 8 and at + 8 <= len(data):
            since_1601 = int.from_bytes(data[at : at + 8], "little")
            nanoseconds = (since_1601 - NTFS_EPOCH) * 100
            return nanoseconds if since_1601 and abs(nanoseconds) < 1 << 63 else None
        at += size
    return None
