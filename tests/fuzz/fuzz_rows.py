"""Fuzzes messages as folders: the files of a mounted record are all of its features, under safe names.

Input: one byte (0: TFRecord, 1: OFRecord), then a message.
"""

from __future__ import annotations

import hashlib
import io
import random
import re
from typing import Any

import numpy as np
from frame_files import OFRECORD, TFRECORD, of_frame, tf_frame
from inside import FileContent, LocalFile, Row, RowFolder, find_format, load_shown

from fffs.errors import RecordError
from fuzz import fuzz_bag, messages

NPY = b".npy"


class _Shown:
    """A row, read as a user of its files does."""

    def __init__(self, row: Row, record: bytes) -> None:
        self._row, self._record = row, record

    def items(self, node: int) -> list[tuple[bytes, int]]:
        """Return (name, node) of a folder's entries, after checking the names."""
        folder = self._row.nodes[node]
        assert isinstance(folder, RowFolder)
        for name, child in folder.nodes.items():
            assert name not in (b"", b".", b"..")
            assert len(name) <= 255
            assert not re.search(rb"[\0-\x1f\x7f/]", name)
            assert self._row.names[child] == name
            assert self._row.parents[child] == node
        assert folder.folders == sum(isinstance(self._row.nodes[k], RowFolder) for k in folder.nodes.values())
        return list(folder.nodes.items())

    def content(self, node: int) -> bytes:
        """Return the bytes of a file."""
        file = self._row.nodes[node]
        assert isinstance(file, FileContent)
        assert not file.problem
        assert file.length == 0 or (file.record == 0 and file.start + file.length <= len(self._record))
        data = file.prefix + self._record[file.start : file.start + file.length]
        assert len(data) == file.size
        return data

    def feature(self, name: bytes, node: int) -> tuple[bytes, Any]:
        """Return the name without its ending, and a list as in ``messages``."""
        if isinstance(self._row.nodes[node], RowFolder):
            items = self.items(node)
            assert [int(item) for item, _ in items] == list(range(len(items)))
            return name, ("bytes", [self.content(child) for _, child in items])
        if name.endswith(NPY):
            numbers = np.load(io.BytesIO(self.content(node)), allow_pickle=False)
            return name.removesuffix(NPY), (messages.CODES[numbers.dtype.name], [one.tobytes() for one in numbers])
        return name, ("bytes", [self.content(node)])

    def features(self, node: int) -> dict[bytes, Any]:
        """Return the features in a folder, by file name."""
        found = [self.feature(*item) for item in self.items(node)]
        assert len(dict(found)) == len(found)
        return dict(found)

    def lists(self, node: int) -> dict[bytes, Any]:
        """Return the folders of features, by folder name."""
        found = {}
        for name, child in self.items(node):
            rows = self.features(child)
            assert [int(row) for row in rows] == list(range(len(rows)))
            found[name] = list(rows.values())
        return found


def means(file: bytes, name: str) -> bool:
    """Whether a file name is the encoding of this name and no other."""
    cut, tilde, digest = file.partition(b"%~")
    if tilde:
        return digest.decode() == hashlib.sha256(name.encode()).hexdigest()
    if file == b"%":
        return not name
    return re.sub(rb"%([0-9A-F]{2})", lambda code: bytes([int(code[1], 16)]), cut) == name.encode()


def same(found: dict[bytes, Any], expected: dict[str, Any]) -> bool:
    """Whether these files are those features."""
    left = dict(expected)
    for file, value in found.items():
        names = [name for name in left if means(file, name)]
        if len(names) != 1 or value != with_lists(left.pop(names[0])):
            return False
    return not left


def with_lists(value: Any) -> Any:
    """Return a feature without a kind as an empty list of bytes, which looks the same."""
    if isinstance(value, list):
        return [with_lists(item) for item in value]
    return ("bytes", []) if value is None else value


def one_input(data: bytes) -> None:
    """Run the target on one input."""
    of, message = data[:1] == b"\1", data[1:]
    folder = fuzz_bag.folder() / "rows"  # other targets may have left sidecars in their folder
    folder.mkdir(exist_ok=True)
    path = folder / ("part-0" if of else "x.tfrecord")
    path.write_bytes(of_frame(message) if of else tf_frame(message))
    with LocalFile.open(path) as file:
        if find_format(file).name == "ffrecord":
            return  # neither format has a magic number
    expected: dict[str, Any] | None = None
    reason = ""
    try:
        expected = messages.ofrecord(message) if of else messages.sequence(message)
    except messages.BadMessageError as error:
        reason = str(error)
    with load_shown([path], decode=True) as view:
        try:
            row = view.decode(0)
        except RecordError as error:
            assert str(path) in str(error)
            assert expected is None or "files" in str(error)
            return
    if expected is None:
        assert reason == "name", "shown, although it is no message"  # files may have names of any bytes
        return
    shown = _Shown(row, message)
    if not of and (2, 2) in [(number, wire) for number, wire, _ in messages.fields(message)]:  # a SequenceExample
        top = dict(shown.items(0))
        assert set(top) == {b"context", b"feature_lists"}
        assert same(shown.features(top[b"context"]), expected["context"])
        assert same(shown.lists(top[b"feature_lists"]), expected["feature_lists"])
    else:
        assert same(shown.features(0), expected if of else expected["context"])


# ---------------------------------------------------------------- seeds


def named(name: bytes, kind: int) -> bytes:
    """Return a message with one feature of one value."""
    value = {1: b"\x0a\x01v", 2: b"\x0a\x04\0\0\x80?", 3: b"\x0a\x01\x07"}[kind]
    feature = bytes([8 * kind + 2, len(value)]) + value
    entry = b"\x0a" + varint(len(name)) + name + b"\x12" + bytes([len(feature)]) + feature
    return b"\x0a" + varint(len(entry)) + entry


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def seeds() -> dict[str, bytes]:
    """Return names that are difficult as file names, and the golden messages, intact and damaged."""
    chance = random.Random(20240617)
    hard = [b"", b".", b"..", b"../x", b"/", b"a/b", b"\0", b"%", b"%2E", b"%~", b"a.npy", b"a%2Enpy", b"\n", b"a"]
    hard += ["ü".encode() * 127, "ü".encode() * 128, b"n" * 251, b"n" * 252, b"n" * 256, b"%" * 90, b"%41"]
    found = {f"name-{k}-{kind}": b"\1" + named(name, kind) for k, name in enumerate(hard) for kind in (1, 2, 3)}
    found |= {f"pair-{k}": b"\1" + named(name, 1) + named(b"a", 2) for k, name in enumerate(hard)}
    context = b"".join(named(name, 1) for name in hard)
    found["all"] = b"\1" + context
    found["example"] = b"\0\x0a" + varint(len(context)) + context
    for golden, what in ((TFRECORD, b"\0"), (OFRECORD, b"\1")):
        for path in golden.single():
            entry = golden.files[path]
            if entry.get("compression") or entry.get("content", "message") == "raw" or entry["size"] > 6000:
                continue
            for k, message in enumerate(golden.records(path)[:3]):
                found[f"{path.replace('/', '-')}-{k}"] = what + message
                for j in range(4 if message else 0):
                    damaged = bytearray(message)
                    damaged[chance.randrange(len(damaged))] = chance.randrange(256)
                    found[f"{path.replace('/', '-')}-{k}-damaged-{j}"] = what + bytes(damaged)
    return found
