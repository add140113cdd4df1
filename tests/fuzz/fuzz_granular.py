"""Fuzzes data sets and blobs: an error of fffs.errors that names one row or all, or rows of the keys of the spec.

Input: one byte (0: a data set; else: one decoder of the supplied ones, for the rest), then for a data set pieces with
two bytes of length each: spec.json, refs.bag (none: v3), then k.bag, k.idx, s.bag, s.idx.
"""

from __future__ import annotations

import functools
import itertools
import json
import shutil
import struct

import numpy as np

from fffs.errors import FffsError, RecordError, UsageError
from fffs.granular import DatasetReader, decoders, encoders, refs
from fffs.granular.messages import SMALL
from fuzz import fuzz_bag

FILES = ("spec.json", "refs.bag", "k.bag", "k.idx", "s.bag", "s.idx")
CODECS = sorted(decoders)
ROWS = 24


def check_folder(pieces: list[bytes]) -> None:
    """A data set of these files is refused, or each row is read or fails alone."""
    folder = fuzz_bag.folder() / "set"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, piece in zip(FILES, pieces, strict=True):
        if piece or name == "spec.json":
            (folder / name).write_bytes(piece)
    try:
        reader = DatasetReader(folder, dict.fromkeys(decoders, bytes))
    except FffsError:
        return
    with reader:
        assert reader.spec == json.loads(pieces[0])
        assert len(reader) <= sum(map(len, pieces)) // 8
        for k in range(min(len(reader), ROWS)):
            try:
                row = reader[k]
            except (RecordError, UsageError):
                continue
            assert sorted(row) == sorted(reader.spec)
            for key, value in row.items():
                data = (folder / f"{key}.bag").read_bytes()
                for blob in value if isinstance(value, list) else [value]:
                    assert blob in data
            part = {key: range(1, 3) for key, value in row.items() if isinstance(value, list)}
            assert reader[k, part] == {key: row[key][1:3] for key in part}


def check_blob(name: str, blob: bytes) -> None:
    """A decoder gives a value or a ValueError; the value has no more items than the blob has bytes."""
    try:
        value = decoders[name](blob)
    except ValueError:
        return
    if isinstance(value, np.ndarray) and name == "array":
        assert value.nbytes <= len(blob)
        assert not value.dtype.hasobject
    elif isinstance(value, (list, dict, str, bytes)):
        assert len(value) <= len(blob)


def check_refs(blob: bytes) -> None:
    """A row of refs.bag that is taken is what msgpack would pack, but for the width of its numbers."""
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
    """What fuzzing begins with."""

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
    for name, records in {"short": rows[:2], "wrong": [*rows[:2], bytes.fromhex("92cd0102920001")]}.items():
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
    for name in ("msgpack", "tree"):
        found[f"{name}-claims"] = bytes([CODECS.index(name) + len(CODECS)]) + b"\xdd\xff\xff\xff\xff" * 40
        found[f"{name}-nests"] = bytes([CODECS.index(name) + len(CODECS)]) + b"\x91" * (SMALL + 100)
    return found
