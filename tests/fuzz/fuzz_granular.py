"""Fuzzes data sets and blobs: rows are those of a model, or an error names one row or the data set.

Input: one byte (0: a data set; otherwise: a supplied decoder, for the rest), then for a data set pieces, each after its
length in two bytes: spec.json, refs.bag (none: v3), then k.bag, k.idx, s.bag, s.idx.
"""

from __future__ import annotations

import functools
import itertools
import json
import shutil
import struct
from typing import Any

import msgpack
import numpy as np
from inside import codecs, refs

from fffs.errors import FffsError, RecordError, UsageError
from fffs.granular import DatasetReader, decoders, encoders
from fuzz import fuzz_bag

FILES = ("spec.json", "refs.bag", "k.bag", "k.idx", "s.bag", "s.idx")
CODECS = sorted(decoders)
IMAGES = ("jpeg", "jpg", "png")
ROWS = 24
codecs.LARGEST_IMAGE = 1 << 24  # below the limit of the fuzzer


def raw(blob: bytes, *_arguments: str) -> bytes:
    """Decode any type as bytes."""
    return blob


def check_folder(pieces: list[bytes]) -> None:
    """Check that a data set of these files is refused, or that each row equals that of the model or fails alone."""
    folder = fuzz_bag.folder() / "set"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, piece in zip(FILES, pieces, strict=True):
        if piece or name == "spec.json":
            (folder / name).write_bytes(piece)
    try:
        reader = DatasetReader(folder, dict.fromkeys(decoders, raw))
    except FffsError:
        return
    with reader:
        assert reader.spec == json.loads(pieces[0])
        expected = Model(dict(zip(FILES, pieces, strict=True)), reader.spec)
        assert len(reader) == expected.rows
        for k in range(min(len(reader), ROWS)):
            try:
                row = reader[k]
            except UsageError as error:
                assert not expected.known and "no decoder" in str(error)
                continue
            except RecordError as error:
                assert not expected.must_read(k), "refused what is a row"
                assert str(folder) in str(error) and error.record >= 0
                continue
            assert row == expected.row(k)
            part = {key: range(1, 3) for key, value in row.items() if isinstance(value, list)}
            assert reader[k, part] == {key: row[key][1:3] for key in part}
    with DatasetReader(folder) as reader:  # with the supplied decoders
        for k in range(min(len(reader), ROWS)):
            try:
                assert list(reader[k]) == sorted(reader.spec)
            except RecordError:
                continue
            except UsageError as error:
                assert "no decoder" in str(error)


class Model:
    """The expected rows of a data set that was opened, computed from the format's definition and msgpack."""

    def __init__(self, files: dict[str, bytes], spec: dict[str, str]) -> None:
        self.spec = spec
        self.refs: tuple[bytes, list[tuple[int, int]]] | None = None
        layout = "v3"
        if "refs" not in spec and files["refs.bag"]:
            data = files["refs.bag"]
            begin = int.from_bytes(data[-8:], "little")
            layout = "v1" if data[begin : begin + 8] == bytes(8) else "v2"
            self.refs = data, self._places(data, None, layout)
        self.columns = {}
        for key in spec:
            data, table = files[f"{key}.bag"], (files[f"{key}.idx"] or None) if layout == "v3" else None
            self.columns[key] = data, self._places(data, table, layout)
        self.rows = len(self.refs[1] if self.refs else next(iter(self.columns.values()))[1])
        self.sequences = {key: layout != "v3" and kind.endswith("[]") for key, kind in spec.items()}
        # Names without arguments and without [].
        self.known = all(kind[: -2 * self.sequences[key] or None] in decoders for key, kind in spec.items())

    def _places(self, data: bytes, table: bytes | None, layout: str) -> list[tuple[int, int]]:
        return list(itertools.pairwise(fuzz_bag.bounds_of(data, table, layout, compressed=False)))

    def blob(self, key: str, number: int) -> bytes:
        """Return a blob of a column. Raises IndexError if it does not exist or is truncated."""
        data, bounds = self.columns[key]
        if type(number) is not int or number < 0:
            raise TypeError
        start, end = bounds[number]
        if end > len(data):
            raise IndexError
        return data[start:end]

    def entries(self, k: int) -> list[Any]:
        """Return the entries of a row in refs.bag."""
        if self.refs is None:
            return [k] * len(self.spec)
        data, bounds = self.refs
        if bounds[k][1] > len(data):
            raise IndexError
        found = msgpack.unpackb(data[slice(*bounds[k])])
        if not isinstance(found, list) or len(found) != len(self.spec):
            raise ValueError
        return found

    def row(self, k: int) -> dict[str, Any]:
        """Return a row. Raises if it does not exist or is damaged."""
        found: dict[str, Any] = {}
        for key, entry in zip(self.spec, self.entries(k), strict=True):
            if self.sequences[key]:
                first, count = entry if entry != [] else (0, 0)
                if not all(type(number) is int and number >= 0 for number in (first, count)):
                    raise TypeError
                if count and first + count > len(self.columns[key][1]):
                    raise IndexError
                found[key] = [self.blob(key, first + i) for i in range(count)]
            else:
                found[key] = self.blob(key, entry)
        return found

    def must_read(self, k: int) -> bool:
        """Whether a row is good and encoded as granular does it: empty sequences have no position."""
        try:
            self.row(k)
        except (ValueError, IndexError, TypeError, msgpack.UnpackException):
            return False
        entries = self.entries(k)
        written = self.refs is None or msgpack.packb(entries) == self.refs[0][slice(*self.refs[1][k])]
        return self.known and written and not any(isinstance(entry, list) and entry[1:] == [0] for entry in entries)


def check_blob(name: str, blob: bytes) -> None:
    """Check that a decoder returns a value or raises ValueError. The value must have no more items than the blob has
    bytes, and must be equal after encoding and decoding.
    """
    try:
        value = decoders[name](blob)
    except ValueError:
        return
    if isinstance(value, np.ndarray) and name == "array":
        assert value.nbytes <= len(blob)
        assert not value.dtype.hasobject
        items = value.ravel().tolist()
        assert all(ord(character) < 0x110000 for text in items if isinstance(text, str) for character in text)
    elif isinstance(value, (list, dict, str, bytes)):
        assert len(value) <= len(blob)
    if name not in IMAGES:
        again = encoders[name](value)
        assert encoders[name](decoders[name](again)) == again


def check_refs(blob: bytes) -> None:
    """Check that an accepted row of refs.bag equals what msgpack packs, except for the width of numbers."""
    for sequences in itertools.product([False, True], repeat=2):
        try:
            row = refs.decode(blob, sequences)
        except ValueError:
            continue
        assert refs.decode(refs.encode(row), sequences) == [
            ref if isinstance(ref, int) or ref[1] else (0, 0) for ref in row
        ]


def one_input(data: bytes) -> None:
    """Run the target on one input."""
    if not data or data[0] == 0:
        at, pieces = 1, []
        for _ in FILES:
            size = int.from_bytes(data[at : at + 2], "little")
            pieces.append(data[at + 2 : at + 2 + size])
            at += 2 + size
        check_folder(pieces)
        return
    check_blob(CODECS[data[0] % len(CODECS)], data[1:])
    check_refs(data[1:])


def bag(*records: bytes) -> tuple[bytes, list[int]]:
    """The bytes of records and where each ends."""
    return b"".join(records), list(itertools.accumulate(map(len, records)))


@functools.cache
def seeds() -> dict[str, bytes]:
    """Return the seeds."""

    def folder(*pieces: bytes) -> bytes:
        return b"\0" + b"".join(struct.pack("<H", len(piece)) + piece for piece in pieces)

    def packed(form: str, *records: bytes) -> bytes:
        data, ends = bag(*records)
        return data + struct.pack(f"<{len(ends) + (form == 'v1')}Q", *([0] if form == "v1" else []), *ends)

    found: dict[str, bytes] = {}
    spec, flat = b'{"k": "bytes", "s": "bytes[]"}', b'{"k": "bytes", "s": "bytes"}'
    rows = [bytes.fromhex(text) for text in ("920090", "9201920001", "9202920102")]
    for form in ("v1", "v2"):
        columns = packed(form, b"a", b"bc", b"def"), packed(form, b"gh", b"i", b"jkl")
        found[form] = folder(spec, packed(form, *rows), columns[0], b"", columns[1], b"")
        found[f"{form}-flat"] = folder(flat, packed(form, b"\x92\0\0"), columns[0], b"", columns[1], b"")
    wrong = {
        "short": "9201920001",
        "far": "92cd0102920001",
        "behind": "920090ff",
        "one": "92009101",
        "three": "920093000101",
        "cut": "9200",
    }
    wrong |= {"negative": "92ff90", "key-less": "9100", "signed": "92d00090", "many": "92009200ceffffffff"}
    wrong |= {"nowhere": "9200920500", "wide": "92cc0092ce00000000d90101", "true": "92c390"}
    for name, text in wrong.items():
        records = [rows[0], bytes.fromhex(text)]
        found[name] = folder(spec, packed("v1", *records), packed("v1", b"a"), b"", packed("v1", b"b", b""), b"")
    data, ends = bag(b"a", b"", b"cde")
    table = struct.pack("<3Q", *ends)
    found["v3"] = folder(flat, b"", data, table, data, table)
    found["v3-unlike"] = folder(flat, b"", data, table, data, table[:16])
    found["refs-as-a-column"] = folder(b'{"refs": "bytes"}', data, b"", b"", b"", b"")
    found["hostile-key"] = folder(b'{"../x": "bytes"}', b"", data, table, data, table)
    array = np.arange(3, dtype="<f4")
    values = {"array": array, "tree": {"a": [array, 1]}, "msgpack": [1, {"b": "c"}], "int": 300, "i64": 5, "u64": 5}
    values |= {"utf8": "grün", "bytes": b"x", "jpeg": array.reshape(3, 1).astype("u1"), "png": np.zeros((2, 2), "u1")}
    for name, value in values.items():
        found[name] = bytes([CODECS.index(name) + len(CODECS)]) + encoders[name](value)
    for name in ("i64", "u64", "array", "png"):
        blob = encoders[name](values[name])
        found |= {f"{name}-{end}": bytes([CODECS.index(name) + len(CODECS)]) + blob[:end] for end in (0, 7, 20, -1)}
        found[f"{name}-behind"] = bytes([CODECS.index(name) + len(CODECS)]) + blob + b"x"
    for name in ("msgpack", "tree"):
        found[f"{name}-claims"] = bytes([CODECS.index(name) + len(CODECS)]) + b"\xdd\xff\xff\xff\xff" * 40
        found[f"{name}-nests"] = bytes([CODECS.index(name) + len(CODECS)]) + b"\x91" * 8300
    return found
