"""TFRecord and OFRecord files for tests: golden files, and files made frame by frame.

Expected values come from the manifests or from bytes made by struct, never from fffs.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from golden_files import FOLDER, Golden, sha256
from inside import LocalFile

from fffs.ofrecord import FrameError

CASTAGNOLI = 0x82F63B78


def _table() -> list[int]:
    table = []
    for byte in range(256):
        state = byte
        for _ in range(8):
            state = state >> 1 ^ (CASTAGNOLI if state & 1 else 0)
        table.append(state)
    return table


TABLE = _table()


def crc32c(data: bytes) -> int:
    """Compute a CRC-32C byte by byte."""
    state = 0xFFFFFFFF
    for byte in data:
        state = state >> 8 ^ TABLE[(state ^ byte) & 255]
    return state ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """Return a checksum as TFRecord stores it."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def tf_head(length: int) -> bytes:
    """Return any length with its right checksum."""
    word = struct.pack("<Q", length % 2**64)
    return word + struct.pack("<I", masked(crc32c(word)))


def tf_frame(data: bytes) -> bytes:
    return tf_head(len(data)) + data + struct.pack("<I", masked(crc32c(data)))


def of_frame(data: bytes) -> bytes:
    return struct.pack("<q", len(data)) + data


class FrameGolden(Golden):
    """The golden files of a format, with their manifest."""

    def __init__(self, name: str) -> None:
        self.folder = FOLDER.parent / name
        self.manifest: dict[str, Any] = json.loads((self.folder / "manifest.json").read_text())
        self.files = {entry["path"]: entry for entry in self.manifest["files"]}
        self.corruptions = {entry["id"]: entry for entry in self.manifest["corruptions"]}

    def single(self, **having: Any) -> list[str]:
        """Return the paths of all files (not folders) whose entries in the manifest have these items."""
        wanted = having.items()
        files = [(path, entry) for path, entry in self.files.items() if entry["kind"].endswith(" file")]
        return [path for path, entry in files if all(entry.get(key) == value for key, value in wanted)]

    def records(self, path: str) -> list[bytes]:
        """Return the records of an uncompressed file, found by the offsets in the manifest."""
        entry, data = self.files[path], self.bytes(path)
        records = [data[row["data_offset"] : row["data_offset"] + row["len"]] for row in entry["records"]]
        assert [sha256(record) for record in records] == [row["sha256"] for row in entry["records"]]
        assert len(records) == entry["n"]
        return records


TFRECORD = FrameGolden("tfrecord")
OFRECORD = FrameGolden("ofrecord")


# ---------------------------------------------------------------- features in the manifests

NUMBERS = {"float_list": "<f4", "double_list": "<f8", "int32_list": "<i4", "int64_list": "<i8"}


def agrees(feature: dict[str, Any], values: Any) -> bool:
    """Whether a decoded list is the one that the manifest describes."""
    kind = feature["kind"]
    if kind is None or values is None:
        return kind is None and values is None
    if len(values) != feature["count"]:
        return False
    if kind == "bytes_list":
        return all(same_item(a, b) for a, b in zip(feature["values"], values, strict=True))
    if values.dtype != NUMBERS[kind]:
        return False
    if "bits_sha256" in feature:
        return bool(feature["bits_sha256"] == sha256(values.tobytes()))
    return bool(
        feature["bits"] == values.tobytes().hex() if "bits" in feature else feature["values"] == values.tolist()
    )


def same_item(described: Any, item: bytes) -> bool:
    """Whether bytes equal those in the manifest, which are in hexadecimal or, if long, a digest."""
    if isinstance(described, dict):
        return bool(described["len"] == len(item) and described["sha256"] == sha256(item))
    return bool(described == item.hex())


def changes(message: bytes) -> Iterator[bytes]:
    """Yield the message with one byte changed, for each byte and several values."""
    for at, byte in enumerate(message):
        for new in {(byte + 1) & 255, (byte - 1) & 255, byte ^ 0x80, byte ^ 7, 0, 255} - {byte}:
            yield message[:at] + bytes([new]) + message[at + 1 :]


def path_of(folder: Path, name: str, data: bytes) -> Path:
    """Write a new file."""
    path = folder / name
    path.write_bytes(data)
    return path


def assert_says_where(error: FrameError, path: Path, record: int, offset: int) -> None:
    """Assert that the error names the file, the record, and the offset of its frame."""
    assert (error.path, error.record, error.offset) == (str(path), record, offset)
    assert str(error).startswith(f"{path}: record {record}, whose frame begins at offset {offset}: ")


def assert_whole_before(files: Any, path: Path, whole: list[bytes], error: FrameError) -> None:
    """Assert that a format's partial_index returns exactly these records of a damaged file, and the error."""
    with LocalFile.open(path) as file:
        index, again = files.partial_index(file)
    data = path.read_bytes()
    assert [data[a:b] for a, b in zip(index.starts, index.ends, strict=True)] == whole
    assert str(again) == str(error)
    assert len(index) == error.record
