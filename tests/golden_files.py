"""The golden files and their manifest.

This module does not use fffs. Expected values come from the manifest, or from bytes that this module parses itself.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "golden" / "ffrecord"


def sha256(data: Any) -> str:
    """Return the SHA-256 of a contiguous buffer in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def record_content(tag: str, index: int, length: int) -> bytes:
    """Return the content that ``made`` in the manifest defines: SHA256('ffr-golden-1/TAG/i/k') for k = 0, 1, …, cut to
    length.
    """
    blocks = range(-(-length // 32))
    return b"".join(hashlib.sha256(f"ffr-golden-1/{tag}/{index}/{k}".encode()).digest() for k in blocks)[:length]


@dataclass(frozen=True)
class RawRecordFile:
    """A parsed record file."""

    data: bytes

    @property
    def n(self) -> int:
        return int(struct.unpack_from("<q", self.data, 4)[0])

    @property
    def checksums(self) -> list[int]:
        return list(struct.unpack_from(f"<{self.n}I", self.data, 12))

    @property
    def offsets(self) -> list[int]:
        """Return n + 1 offsets: the last one is the size of the file."""
        return [*struct.unpack_from(f"<{self.n}q", self.data, 12 + 4 * self.n), len(self.data)]

    @property
    def records(self) -> list[bytes]:
        offsets = self.offsets
        return [self.data[start:end] for start, end in pairwise(offsets)]


class Golden:
    """The folder of golden files and its manifest."""

    def __init__(self) -> None:
        self.folder = FOLDER
        self.manifest: dict[str, Any] = json.loads((FOLDER / "manifest.json").read_text())
        self.files: dict[str, dict[str, Any]] = {entry["path"]: entry for entry in self.manifest["files"]}
        self.corruptions: dict[str, dict[str, Any]] = {entry["id"]: entry for entry in self.manifest["corruptions"]}

    def of_kind(self, *kinds: str) -> list[str]:
        """Return the paths of all files of these kinds."""
        return [path for path, entry in self.files.items() if entry["kind"] in kinds]

    def path(self, name: str) -> Path:
        return self.folder / name

    def bytes(self, name: str) -> bytes:
        return self.path(name).read_bytes()

    def raw(self, name: str) -> RawRecordFile:
        return RawRecordFile(self.bytes(name))

    def corrupt(self, identity: str) -> bytes:
        """Return the damaged variant of that name, after comparing it with the manifest."""
        corruption = self.corruptions[identity]
        data = bytearray(self.bytes(corruption["base"]))
        for edit in corruption["edits"]:
            offset = edit.get("offset", 0)
            if edit["op"] == "xor":
                data[offset] ^= edit["mask"]
            elif edit["op"] == "set":
                new = bytes.fromhex(edit["hex"])
                data[offset : offset + len(new)] = new
            elif edit["op"] == "fill":
                data[offset : offset + edit["length"]] = bytes([edit["byte"]]) * edit["length"]
            elif edit["op"] == "truncate":
                del data[edit["size"] :]
            elif edit["op"] == "append":
                data += bytes.fromhex(edit["hex"])
            else:
                raise ValueError(f"{identity}: unknown edit {edit['op']!r}")
        assert sha256(data) == corruption["sha256"], f"{identity}: the edits do not give the manifest's file"
        return bytes(data)


GOLDEN = Golden()
