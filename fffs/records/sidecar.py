"""Checksum sidecars: ``FILE.fffs-crc`` beside a file whose format has no checksums, not beside a link to it.

Little-endian: magic, u64 number of records, u64 size of the file, u32 CRC-32 of the begins and ends of its records (two
int64 each); a u32 CRC-32 of each record; u32 CRC-32 of everything before it. See FORMATS.md.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from fffs.base.text import is_page
from fffs.errors import MetadataError, SourceChangedError
from fffs.files.file import File
from fffs.files.sidecar_names import CHECKSUMS, real_path
from fffs.native.checksums import CHECK_CRC32, CHECK_NONE, crc32
from fffs.records.index import RecordIndex

MAGIC: Final = b"fffsCRC1"
HEAD: Final = struct.Struct("<8sQQI")
CRC: Final = struct.Struct("<I")
_PAGE: Final = 64  # bytes by which a page of a web server is known


def _fingerprint(index: RecordIndex) -> int:
    """Return the CRC-32 of the table of records, which ties a sidecar to its file."""
    crc = crc32(index.starts.astype("<i8"))
    return crc32(index.ends.astype("<i8"), crc)


def encode_head(index: RecordIndex) -> bytes:
    """Return the header of a sidecar of the file with this index."""
    return HEAD.pack(MAGIC, len(index), index.file_size, _fingerprint(index))


def with_checksums(file: File, index: RecordIndex) -> RecordIndex:
    """Return the index, with the checksums of the file's sidecar if it has none itself and there is a sidecar.

    Raises:
        MetadataError: the sidecar is damaged, or does not match the current file.
        SourceChangedError: the file was replaced meanwhile.
        ReadError: the sidecar cannot be read.

    """
    if index.check != CHECK_NONE:
        return index
    try:
        found = _find(file, index)
    except MetadataError:
        _refuse_replaced(file)
        raise
    _refuse_replaced(file)
    return found


def _refuse_replaced(file: File) -> None:
    """Raise SourceChangedError if a new file, with a new sidecar or none, may have taken the name meanwhile."""
    if not file.is_named():
        raise SourceChangedError(f"{file.name}: it was replaced while it was opened; open it again")


def _find(file: File, index: RecordIndex) -> RecordIndex:
    sidecar = file.open_beside(real_path(index.path) + CHECKSUMS)
    if sidecar is None:
        return index
    with sidecar:
        if file.answers_with_pages and is_page(sidecar.read_bytes(0, min(sidecar.size, _PAGE))):
            return index
        checksums = _load(sidecar, index)
    return replace(index, checksums=checksums, check=CHECK_CRC32).validate()


def _load(sidecar: File, index: RecordIndex) -> npt.NDArray[np.uint32]:
    n, path = len(index), sidecar.name
    size = HEAD.size + 4 * n + CRC.size
    stale = f"{path}: does not match the current {index.path}; make it again (fffs verify --keep), or remove it"
    # The number of records comes from the index, not from the sidecar.
    if sidecar.size != size:
        raise MetadataError(stale)
    data = sidecar.read_bytes(0, size)
    if len(data) != size or CRC.unpack(data[-CRC.size :])[0] != crc32(data[: -CRC.size]):
        raise MetadataError(f"{path}: damaged; make it again (fffs verify --keep), or remove it")
    if not data.startswith(encode_head(index)):
        raise MetadataError(stale)
    return np.frombuffer(data, "<u4", n, HEAD.size).astype(np.uint32)
