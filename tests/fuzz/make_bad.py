"""Makes the bad files. Each is small, and its name describes the error.

``python -m fuzz.make_bad FOLDER`` writes them. Without a folder it writes ``bad.sha256``, the list of the files with
their hashes, which shows whether a change of this module changes files.

Files in ``refused/`` cannot be opened with their names; those in ``reported/`` can, and verify reports the error. They
are made from the golden files and from similar packed folders, the same bytes every time.
"""

from __future__ import annotations

import hashlib
import random
import stat
import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from builders import (
    DTYPES,
    FOOTER,
    MAGIC,
    NEW,
    ORDERED_DICT,
    PROTO,
    STOP,
    Pack,
    Trailer,
    dictionary,
    header,
    number,
    record_file,
    split_records,
    text,
    whole,
)
from golden_files import GOLDEN

from fuzz import packs

HASHES = Path(__file__).with_name("bad.sha256")

Files = Iterator[tuple[str, bytes]]

ONE = GOLDEN.bytes("one.ffr")
PART = GOLDEN.bytes("parts/PART_00001.ffr")
PICKLED = GOLDEN.bytes("pickled-50.ffr")
DEEP = GOLDEN.bytes("packed/deep.ffr")
BYTE_NAMES = GOLDEN.bytes("packed/byte-names.ffr")
SMALL = packs.pack(packs.small()).build()


def tables(data: bytes) -> tuple[int, list[int], list[int]]:
    """Return (n, checksums, offsets) of a good file."""
    (n,) = struct.unpack_from("<q", data, 4)
    return n, list(struct.unpack_from(f"<{n}I", data, 12)), list(struct.unpack_from(f"<{n}q", data, 12 + 4 * n))


def changed(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def flipped(data: bytes, at: int, bit: int = 0) -> bytes:
    return changed(data, at, bytes([data[at] ^ 1 << bit]))


# ---------------------------------------------------------------- headers


def headers_refused() -> Files:
    yield "header-of-0-bytes", b""
    for size in (1, 4, 8, 11):
        yield f"header-of-{size}-bytes", PART[:size]
    yield "header-all-zero-then-data", GOLDEN.bytes("unfinished.ffr")
    yield "header-all-zero-then-one-byte", bytes(13)
    yield "header-of-no-records-then-data", header([], []) + b"data"
    yield "header-of-no-records-wrong-checksum", flipped(header([], []), 0)
    n, sums, offsets = tables(PART)
    end = 12 + 12 * n
    counts = {
        "minus-1": -1,
        "minus-2-to-31": -(2**31),
        "least": -(2**63),
        "greatest": 2**63 - 1,
        "2-to-31": 2**31,
        "2-to-32": 2**32,
        "2-to-32-and-the-right-one": 2**32 + n,
        "2-to-40": 2**40,
        "2-to-60-times-12-wraps": 2**60,
        "2-to-61-times-12-wraps": 2**61,
        "2-to-62-times-12-wraps-to-0": 2**62,
        "a-third-of-2-to-62-times-12-wraps": 2**62 // 3 + 1,
        "one-more-than-fits": (len(PART) - 12) // 12 + 1,
    }
    for name, count in counts.items():
        yield f"header-count-{name}", header(sums, offsets, n=count) + PART[end:]
        yield f"header-count-{name}-no-checksum", header(sums, offsets, n=count, crc=0) + PART[end:]
    yield "header-count-big-endian", packs.with_checksums(PART[:4] + PART[4:12][::-1] + PART[12:])
    for size in (13, 12 + 2 * n, 12 + 4 * n, 12 + 4 * n + 3, 12 + 8 * n, end - 1):
        yield f"header-cut-at-{size}", PART[:size]
        yield f"header-cut-at-{size}-no-checksum", changed(PART[:size], 0, bytes(4))
    for bit in (0, 7, 15, 16, 24, 31):
        yield f"header-checksum-bit-{bit}", flipped(PART, bit // 8, bit % 8)
    for at in (4, 5, 11):
        yield f"header-count-byte-{at}-flipped", flipped(PART, at, 3)
    for at in (12, 12 + 2 * n, 12 + 4 * n - 1):
        yield f"header-checksums-byte-{at}-flipped", flipped(PART, at)
    for at in (12 + 4 * n, 12 + 8 * n, end - 8, end - 1):
        yield f"header-offsets-byte-{at}-flipped", flipped(PART, at, 5)


def offsets_refused() -> Files:
    _, sums, offsets = tables(PART)
    rest = PART[12 + 12 * len(offsets) :]
    last = len(offsets) - 1
    wrong = {
        "first-is-0": {0: 0},
        "first-is-12": {0: 12},
        "first-is-minus-1": {0: -1},
        "first-is-least": {0: -(2**63)},
        "first-is-one-byte-inside-the-header": {0: offsets[0] - 1},
        "first-is-after-the-second": {0: offsets[1] + 1},
        "first-is-greatest": {0: 2**63 - 1},
        "second-is-before-the-first": {1: offsets[0] - 1},
        "second-is-0": {1: 0},
        "second-is-minus-1": {1: -1},
        "second-is-greatest": {1: 2**63 - 1},
        "second-is-2-to-32-more": {1: offsets[1] + 2**32},
        "second-and-third-exchanged": {1: offsets[2], 2: offsets[1]},
        "last-is-0": {last: 0},
        "last-is-least": {last: -(2**63)},
        "last-is-minus-1": {last: -1},
        "last-is-one-before-the-one-before": {last: offsets[last - 1] - 1},
        "descend": dict(enumerate(reversed(offsets))),
        "all-0": dict.fromkeys(range(len(offsets)), 0),
        "all-minus-1": dict.fromkeys(range(len(offsets)), -1),
        "all-inside-the-header": dict.fromkeys(range(len(offsets)), 12),
    }
    for name, changes in wrong.items():
        lying = [changes.get(k, offset) for k, offset in enumerate(offsets)]
        yield f"offsets-{name}", header(sums, lying) + rest
        yield f"offsets-{name}-no-checksum", header(sums, lying, crc=0) + rest
    swapped = [struct.unpack(">q", struct.pack("<q", offset))[0] for offset in offsets]
    yield "offsets-big-endian", header(sums, swapped) + rest


def strangers_refused() -> Files:
    """Yield files of other kinds."""
    kinds = {
        "gzip": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03" + bytes(50),
        "html": b"<!DOCTYPE html><html><head><title>404 Not Found</title></head></html>\n",
        "json": b'{"error": "no such object", "status": 404}\n',
        "lfs-pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n",
        "newlines": b"\n" * 64,
        "ones": b"\xff" * 64,
        "pickle": b"\x80\x04\x95\x0a\x00\x00\x00\x00\x00\x00\x00}\x94\x8c\x01a\x94K\x01s.",
        "png": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(40),
        "script": b"#!/bin/sh\necho this is no record file\nexit 1\n",
        "sqlite": b"SQLite format 3\x00" + bytes(84),
        "tar": b"name".ljust(100, b"\0") + b"0000644\0" * 3 + bytes(400),
        "tfrecord": struct.pack("<QI", 5, 0x12345678) + b"hello" + bytes(4),
        "zeros": bytes(64),
        "zip": b"PK\x03\x04\x14\x00\x00\x00\x08\x00" + bytes(60),
    }
    for name, data in kinds.items():
        yield f"stranger-{name}", data


# ---------------------------------------------------------------- records


def records_reported() -> Files:
    for name, data in (("one", ONE), ("part", PART), ("pickled", PICKLED)):
        first = tables(data)[2][0]
        for place, at in (("first", first), ("middle", (first + len(data)) // 2), ("last", len(data) - 1)):
            for bit in (0, 7):
                yield f"data-{name}-bit-{bit}-of-{place}-byte", flipped(data, at, bit)
        yield f"data-{name}-all-zero", data[:first] + bytes(len(data) - first)
        yield f"data-{name}-backwards", data[:first] + data[first:][::-1]
        yield f"data-{name}-one-byte-missing", data[:first] + data[first + 1 :]
        yield f"data-{name}-one-byte-inserted", data[:first] + b"!" + data[first:]
        yield f"data-{name}-one-byte-appended", data + b"\0"
        yield f"data-{name}-itself-appended", data + data
        yield f"data-{name}-zeros-appended", data + bytes(512)
        yield f"data-{name}-last-byte-cut-off", data[:-1]
        yield f"data-{name}-cut-after-the-header", data[:first]
    n, sums, offsets = tables(PART)
    # With one record less, the tables end earlier, so other numbers are read.
    yield "header-count-one-less", packs.with_checksums(changed(PART, 4, struct.pack("<q", n - 1)))
    for k in range(n):
        yield f"data-part-cut-inside-record-{k}", PART[: offsets[k] + 1]
        yield (
            f"data-part-wrong-checksum-of-record-{k}",
            header([s ^ (j == k) for j, s in enumerate(sums)], offsets) + (PART[offsets[0] :]),
        )
    rest = PART[offsets[0] :]
    yield "data-part-checksums-rotated", header([*sums[1:], sums[0]], offsets) + rest
    yield "data-part-checksums-all-zero", header([0] * n, offsets) + rest
    for name, far in (("size-plus-1", len(PART) + 1), ("2-to-40", 2**40), ("greatest", 2**63 - 1)):
        yield f"data-part-last-offset-{name}", header(sums, [*offsets[:-1], far]) + rest
        yield f"data-part-last-two-offsets-{name}", header(sums, [*offsets[:-2], far, far]) + rest
        yield f"data-part-all-offsets-{name}", header(sums, [far] * n) + rest
        yield f"data-part-last-offset-{name}-no-checksum", header(sums, [*offsets[:-1], far], crc=0) + rest
    yield "data-part-last-offset-ends-the-file", header(sums, [*offsets[:-1], len(PART)]) + rest
    yield "data-part-boundary-moved-by-one", header(sums, [offsets[0], offsets[1] + 1, *offsets[2:]]) + rest
    records = split_records(PICKLED)
    yield (
        "data-pickled-two-records-exchanged",
        PICKLED[: 12 + 12 * len(records)] + b"".join([records[1], records[0], *records[2:]]),
    )
    empty = GOLDEN.bytes("all-zero-length.ffr")
    n, sums, offsets = tables(empty)
    for k in (0, 5, n - 1):
        yield f"data-empty-record-{k}-has-a-checksum", header([int(j == k) for j in range(n)], offsets)
    yield "data-empty-records-then-one-byte", empty + b"x"
    legacy = GOLDEN.bytes("legacy-zero-crc.ffr")
    yield "data-legacy-flipped", flipped(legacy, len(legacy) - 1)
    yield "data-legacy-cut", legacy[:-100]


# ---------------------------------------------------------------- flipped bits of packed folders


def flips(kind: str) -> Files:
    """Yield packed folders with single flipped bits, and unchanged checksums."""
    chance = random.Random(1)
    for name, data in (("deep", DEEP), ("byte-names", BYTE_NAMES), ("small", SMALL)):
        _, _, offsets = tables(data)
        pickle = offsets[-1] + len(MAGIC)
        body = len(data) - len(Trailer.parse(data).encode()) if name == "small" else len(data)
        # (part, from, to, result). Without its magic a pack is plain records; a pickle beside a trailer is not read.
        parts = (
            ("header", 0, offsets[0], "refused"),
            ("files", offsets[0], offsets[-1], "reported"),
            ("magic", offsets[-1], pickle, "reported"),
            ("pickle", pickle, body, "reported" if name == "small" else "refused"),
            ("trailer", body, len(data), "refused"),
        )
        for part, begin, end, expected in parts:
            bits = range(8 * begin, 8 * end) if expected == kind else range(0)
            for at, bit in (divmod(k, 8) for k in chance.sample(bits, min(8, len(bits)))):
                yield f"flip-{name}-{part}-byte-{at}-bit-{bit}", flipped(data, at, bit)


# ---------------------------------------------------------------- pickles


def with_pickle(pickle: bytes, records: int = 2) -> bytes:
    """Return a packed folder with that pickle, as ffrecord writes it."""
    return Pack([b"content %d" % k for k in range(records)], pickle).build()


def one(value: bytes) -> bytes:
    """Return a tree of one name with that value."""
    return whole(dictionary(text("a") + value))


def named(name: str | bytes) -> bytes:
    return whole(dictionary(text(name) + number(0)))


def hostile_values() -> Iterator[tuple[str, bytes]]:
    """Yield values that a pickle can hold instead of numbers and folders, pickled. Some would run code."""
    system = b"cposix\nsystem\n"
    command = b"X\x04\x00\x00\x00true"
    yield "global-os-system", system
    yield "global-builtins-eval", b"cbuiltins\neval\n"
    yield "global-ordereddict-of-another-module", b"ctyping\nOrderedDict\n"
    yield "global-collections-counter", b"ccollections\nCounter\n"
    yield "global-collections-dotted", b"ccollections\nOrderedDict.fromkeys\n"
    yield "global-constructor-itself", ORDERED_DICT
    yield "stack-global-os-system", b"\x8c\x05posix\x8c\x06system\x93"
    yield "stack-global-of-numbers", b"K\x01K\x02\x93"
    yield "reduce-os-system", system + b"(" + command + b"tR"
    yield "reduce-os-system-tuple1", system + command + b"\x85R"
    yield "reduce-dict-with-arguments", ORDERED_DICT + b"(" + command + b"tR"
    yield "inst-os-system", b"(" + command + b"iposix\nsystem\n"
    yield "obj-os-system", b"(" + system + command + b"o"
    yield "newobj", system + b")\x81"
    yield "newobj-ex", system + b")}\x92"
    yield "build", NEW + b"}b"
    yield "ext1", b"\x82\x01"
    yield "ext2", b"\x83\x01\x00"
    yield "ext4", b"\x84\x01\x00\x00\x00"
    yield "persid", b"Pid\n"
    yield "binpersid", b"K\x01Q"
    yield "none", b"N"
    yield "true", b"\x88"
    yield "false", b"\x89"
    yield "int-as-text", b"I1\n"
    yield "long-as-text", b"L1L\n"
    yield "long4", b"\x8b\x01\x00\x00\x00\x01"
    yield "long4-of-2-gib", b"\x8b\xff\xff\xff\x7f\x01"
    yield "long1-of-9-bytes", b"\x8a\x09" + bytes(8) + b"\x01"
    yield "long1-of-255-bytes", b"\x8a\xff" + b"\x7f" * 255
    yield "float-as-text", b"F1.5\n"
    yield "float", b"G" + struct.pack(">d", 1.0)
    yield "string-as-text", b"S'a'\n"
    yield "unicode-as-text", b"Va\n"
    yield "str", text("value")
    yield "bytes", b"C\x01a"
    yield "bytes-of-2-gib", b"B\xff\xff\xff\x7fa"
    yield "bytes8-of-2-to-63", b"\x8e" + struct.pack("<Q", 2**63)
    yield "bytearray8", b"\x96" + struct.pack("<Q", 1) + b"a"
    yield "next-buffer", b"\x97"
    yield "readonly-buffer", b"C\x01a\x98"
    yield "binstring", b"U\x01a"
    yield "binstring4", b"T\x01\x00\x00\x00a"
    yield "tuple", b")"
    yield "tuple1", b"K\x01\x85"
    yield "tuple3", b"K\x01K\x02K\x03\x87"
    yield "tuple-of-mark", b"(K\x01t"
    yield "list", b"]"
    yield "list-append", b"]K\x01a"
    yield "list-appends", b"](K\x01e"
    yield "list-of-mark", b"(K\x01l"
    yield "dict-plain", b"}"
    yield "dict-of-mark", b"(d"
    yield "set", b"\x8f"
    yield "set-additems", b"\x8f(K\x01\x90"
    yield "frozenset", b"(K\x01\x91"
    yield "dup", b"K\x012"
    yield "pop", b"K\x00K\x010"
    yield "pop-mark", b"K\x00(K\x011"
    yield "get-as-text", b"g0\n"
    yield "put-as-text", b"K\x00p0\n"
    yield "opcode-0", b"\x00"
    yield "opcode-255", b"\xff"
    yield "negative", b"J\xff\xff\xff\xff"
    yield "negative-long", b"\x8a\x01\xff"
    yield "record-2", number(2)  # the tree itself, which is not a file
    yield "record-3", number(3)  # after all records
    yield "record-255", number(255)
    yield "record-65535", b"M\xff\xff"
    yield "record-greatest-32-bits", b"J\xff\xff\xff\x7f"
    yield "record-2-to-32", b"\x8a\x05\x00\x00\x00\x00\x01"
    yield "record-greatest-64-bits", b"\x8a\x08" + b"\xff" * 7 + b"\x7f"


def hostile_names() -> Iterator[tuple[str, bytes]]:
    """Yield invalid file names, as UTF-8, valid or not."""
    yield "empty", b""
    yield "dot", b"."
    yield "dot-dot", b".."
    yield "slash", b"/"
    yield "absolute", b"/etc/passwd"
    yield "path", b"a/b"
    yield "climbing", b"../../etc/passwd"
    yield "ending-in-slash", b"a/"
    yield "nul", b"\0"
    yield "with-nul", b"a\0b"
    yield "of-256-bytes", b"n" * 256
    yield "of-255-characters-of-2-bytes", "é".encode() * 255
    yield "of-64-kib", b"n" * 65536
    yield "of-256-surrogate-bytes", b"\xed\xb2\x80" * 256
    yield "lone-continuation-byte", b"a\x80"
    yield "sequence-cut", b"a\xe2\x82"
    yield "overlong-slash", b"\xc0\xaf"
    yield "overlong-dot", b"\xc0\xae\xc0\xae"
    yield "overlong-nul", b"a\xc0\x80"
    yield "overlong-of-3-bytes", b"\xe0\x80\xaf"
    yield "overlong-of-4-bytes", b"\xf0\x80\x80\xaf"
    yield "above-unicode", b"\xf4\x90\x80\x80"
    yield "of-5-byte-sequence", b"\xf8\x88\x80\x80\x80"
    yield "byte-255", b"\xff"
    yield "surrogate-d800", b"\xed\xa0\x80"
    yield "surrogate-dbff", b"\xed\xaf\xbf"
    yield "surrogate-dc00", b"\xed\xb0\x80"
    yield "surrogate-for-ascii-dc41", b"\xed\xb1\x81"
    yield "surrogate-for-slash-dc2f", b"\xed\xb0\xaf"
    yield "surrogate-dd00", b"\xed\xb4\x80"
    yield "surrogate-pair", b"\xed\xa0\xbd\xed\xb8\x80"


def structures() -> Iterator[tuple[str, bytes]]:
    """Yield pickles that are not a tree, or not a pickle."""
    inner = dictionary(text("b") + number(1))
    memoised = b"q\x05"
    yield "empty", b""
    yield "only-stop", STOP
    yield "only-proto", PROTO
    yield "protocol-6", b"\x80\x06" + dictionary() + STOP
    yield "protocol-255", b"\x80\xff" + dictionary() + STOP
    yield "root-is-a-number", whole(number(0))
    yield "root-is-a-name", whole(text("a"))
    yield "root-is-the-constructor", whole(ORDERED_DICT)
    yield "root-is-a-tuple", whole(b")")
    yield "root-is-a-mark", whole(b"(")
    yield "two-roots", whole(dictionary() + dictionary())
    yield "root-below-a-number", whole(number(1) + dictionary())
    yield "no-stop", whole(dictionary())[:-1]
    yield "items-without-mark", whole(NEW + text("a") + number(0) + b"u")
    yield "items-without-folder", whole(b"(" + text("a") + number(0) + b"u")
    yield "items-odd", whole(NEW + b"(" + text("a") + b"u")
    yield "items-turned-round", whole(NEW + b"(" + number(0) + text("a") + b"u")
    yield "items-never-set", whole(NEW + b"(" + text("a") + number(0))
    yield "item-without-folder", whole(text("a") + number(0) + b"s")
    yield "item-of-a-number", whole(number(0) + text("a") + number(0) + b"s")
    yield "item-across-a-mark", whole(NEW + b"(" + text("a") + number(0) + b"s")
    yield "reduce-without-tuple", whole(ORDERED_DICT + b"R")
    yield "reduce-without-constructor", whole(b")R")
    yield "reduce-number", whole(number(1) + b")R")
    yield "key-is-a-number", whole(dictionary(number(1) + number(0)))
    yield "key-is-a-folder", whole(dictionary(inner + number(0)))
    yield "key-is-the-constructor", whole(dictionary(ORDERED_DICT + number(0)))
    yield "name-twice", whole(dictionary(text("a") + number(0), text("a") + number(1)))
    yield "name-twice-as-file-and-folder", whole(dictionary(text("a") + number(0), text("a") + dictionary()))
    both = (text("é") + number(0), text("\udcc3\udca9") + number(1))
    yield "name-twice-in-utf-8-and-as-bytes", whole(dictionary(*both))
    yield "name-twice-below", whole(dictionary(text("a") + dictionary(*both)))
    yield "folder-in-two-places", whole(dictionary(text("x") + NEW + b"q\x00", text("y") + b"h\x00"))
    yield "folder-in-itself", PROTO + NEW + b"q\x00(" + text("self") + b"h\x00u."
    yield "folder-in-a-circle", PROTO + NEW + b"q\x00(" + text("a") + dictionary(text("b") + b"h\x00") + b"u."
    yield "memo-never-set", whole(dictionary(b"h\x07" + number(0)))
    yield "memo-never-set-4-bytes", whole(dictionary(b"j\xff\xff\xff\xff" + number(0)))
    yield "memo-begins-with-5", whole(dictionary(text("a") + memoised + number(0)))
    yield "memo-begins-with-2-to-32", whole(dictionary(text("a") + b"r\xff\xff\xff\xff" + number(0)))
    yield "memo-number-twice", whole(dictionary(text("a") + b"q\x00q\x00" + number(0)))
    yield "memo-of-nothing", PROTO + b"\x94" + dictionary() + STOP
    yield "memo-gives-a-number", whole(dictionary(text("a") + number(0) + b"q\x00" + text("b") + b"h\x00"))
    yield "frame-longer-than-all", PROTO + b"\x95" + struct.pack("<Q", 1000) + dictionary() + STOP
    yield "frame-of-2-to-64", PROTO + b"\x95" + b"\xff" * 8 + dictionary() + STOP
    yield "frame-cut", PROTO + b"\x95\x00\x00"
    yield "str-longer-than-all", PROTO + NEW + b"(X\xff\xff\x00\x00a"
    yield "str-of-4-gib", PROTO + NEW + b"(X\xff\xff\xff\xffa"
    yield "str8-of-2-to-63", PROTO + NEW + b"(\x8d" + struct.pack("<Q", 2**63) + b"a"
    yield "str8-of-2-to-64", PROTO + NEW + b"(\x8d" + b"\xff" * 8 + b"a"
    yield "short-str-longer-than-all", PROTO + NEW + b"(\x8c\xffa"
    yield "global-cut", PROTO + b"ccollections\nOrder"
    yield "text-instead", b"this is no pickle"
    yield "zeros-instead", bytes(100)
    yield "json-instead", b'{"a": 0}'
    yield "path-of-4096-bytes", packs.pack(packs.long_path(4096)).pickle
    yield "path-of-4337-bytes", nested(17, b"n" * 240)
    yield "folders-2049-deep", nested(2049, b"d")
    yield "folders-5000-deep", nested(5000, b"d")


def nested(depth: int, name: bytes) -> bytes:
    """Return the pickle of a file in this many nested folders."""
    down = text(name) + b"h\x00)R("
    return PROTO + ORDERED_DICT + b"q\x00)R(" + down * depth + text(name) + number(0) + b"u" * (depth + 1) + STOP


def bombs() -> Iterator[tuple[str, bytes]]:
    """Yield small pickles that would need much memory when run."""
    yield "marks", PROTO + NEW + b"(" * 60_000 + STOP
    yield "tuples", PROTO + NEW + b")" * 60_000 + STOP
    yield "memo", PROTO + NEW + b"\x94" * 60_000
    yield "folders-without-place", PROTO + ORDERED_DICT + b"q\x00" + b"h\x00)R" * 10_000 + STOP
    yield "folders-as-items", PROTO + NEW + b"(" + (b"\x8c\x01a" + ORDERED_DICT + b")R") * 1000 + b"u" + STOP
    # One name of 255 bytes, repeated for seven bytes each.
    level = PROTO + ORDERED_DICT + b"q\x00)R(" + text("n" * 255) + b"q\x01K\x00"
    for k in range(6000):
        level += b"\x8c\x02" + bytes([97 + k % 26, 97 + k // 26 % 26]) + b"h\x00)R(h\x01K\x00u"
    yield "names-from-the-memo", level + b"u" + STOP
    doubling = PROTO + ORDERED_DICT + b"q\x00)Rq\x01("
    for k in range(2, 60):
        doubling += text("a") + b"h\x00)Rq" + bytes([k]) + b"(" + text("x") + b"h" + bytes([k - 1])
    yield "billion-laughs", doubling + b"u" * 60 + STOP
    yield "items-in-one-go", PROTO + NEW + b"(" + b"\x8c\x01aK\x00" * 10_000 + b"u" + STOP
    yield "same-name-one-by-one", PROTO + NEW + b"\x8c\x01aK\x00s" * 10_000 + STOP


def pickles_refused() -> Files:
    for name, value in hostile_values():
        yield f"pickle-value-{name}", with_pickle(one(value))
    for name, data in hostile_names():
        yield f"pickle-name-{name}", with_pickle(named(data))
    for name, data in hostile_names():
        if name in ("empty", "dot-dot", "path", "nul", "overlong-slash", "surrogate-d800"):
            yield f"pickle-folder-name-{name}", with_pickle(whole(dictionary(text(data) + dictionary())))
    for name, pickle in structures():
        yield f"pickle-{name}", with_pickle(pickle)
    for name, pickle in bombs():
        yield f"pickle-bomb-{name}", with_pickle(pickle)
    for name, data in (("deep", DEEP), ("byte-names", BYTE_NAMES)):
        whole_pack = Pack.parse(data)
        length = len(whole_pack.pickle)
        for size in sorted({length * k // 12 for k in range(1, 12)} | {length - 1}):
            yield f"pickle-{name}-cut-at-{size}", Pack(whole_pack.records, whole_pack.pickle[:size]).build()
    yield "pickle-only-magic", record_file([MAGIC])
    yield "pickle-deep-without-files", record_file([MAGIC + Pack.parse(DEEP).pickle])


# ---------------------------------------------------------------- trailers with right checksums

Change = Callable[[Trailer], None]


def put(name: str, at: int, value: int) -> Change:
    """Set an item of an array."""

    def change(trailer: Trailer) -> None:
        array = trailer.arrays[name]
        array[at] = np.array(value % 2 ** (8 * array.dtype.itemsize), f"u{array.dtype.itemsize}").view(array.dtype)

    return change


def insert(name: str, at: int, *values: int) -> Change:
    def change(trailer: Trailer) -> None:
        array = trailer.arrays[name]
        trailer.arrays[name] = np.insert(array, at % (len(array) + 1), np.array(values, array.dtype))

    return change


def remove(name: str, at: int) -> Change:
    def change(trailer: Trailer) -> None:
        trailer.arrays[name] = np.delete(trailer.arrays[name], at)

    return change


def exchange(name: str, a: int, b: int) -> Change:
    def change(trailer: Trailer) -> None:
        trailer.arrays[name][[a, b]] = trailer.arrays[name][[b, a]]

    return change


def later_names(by: int) -> Change:
    """Make the first name longer by this many bytes, so that all others begin later."""

    def change(trailer: Trailer) -> None:
        trailer.arrays["name_offsets"][1:] += np.uint32(by)

    return change


def claim(**lies: Any) -> Change:
    """Set fields of the footer to wrong values."""

    def change(trailer: Trailer) -> None:
        for name, value in lies.items():
            if name in ("size", "version", "flags", "body_crc"):
                setattr(trailer, name, value)
            else:
                trailer.counts[name] = value

    return change


def every(*changes: Change) -> Change:
    def change(trailer: Trailer) -> None:
        for one_change in changes:
            one_change(trailer)

    return change


def trailer_changes() -> Iterator[tuple[str, Change]]:
    """Yield changes to the trailer of ``packs.small()`` that make it invalid."""
    good = Trailer.parse(SMALL)
    arrays = good.arrays
    nodes, entries, names = len(arrays["mode"]), len(arrays["entry_nodes"]), len(arrays["names"])
    kinds = [stat.S_IFMT(int(mode)) for mode in arrays["mode"]]
    file, link = kinds.index(stat.S_IFREG), kinds.index(stat.S_IFLNK)
    folders = [k for k, kind in enumerate(kinds) if kind == stat.S_IFDIR]
    folder, inner = folders[1], folders[2]
    huge = {"2-to-31": 2**31, "2-to-32-less-1": 2**32 - 1}
    # The position of the root's entries, and of the name of the first.
    top = int(arrays["count"][0])
    offsets = arrays["name_offsets"].tolist()

    # The footer.
    for name, value in good.true_counts().items():
        for how, lie in {
            "0": 0,
            "one-more": value + 1,
            "one-less": value - 1,
            "2-to-32-more": value + 2**32,
            "2-to-61-more": value + 2**61,
            "2-to-63": 2**63,
            "greatest": 2**64 - 1,
        }.items():
            # One more byte of targets is one of the zeros after them.
            if 0 <= lie != value and (name, how) != ("targets", "one-more"):
                yield f"count-of-{name}-{how}", claim(**{name: lie})
    size = len(good.encode()) - FOOTER.size
    for how, lie in {
        "0": 0,
        "8-less": size - 8,
        "8-more": size + 8,
        "of-the-whole-file": len(SMALL),
        "2-to-40": 2**40,
        "2-to-63": 2**63,
        "greatest": 2**64 - 1,
    }.items():
        yield f"size-{how}", claim(size=lie)
    yield "checksum-of-the-body-wrong", claim(body_crc=1)
    yield "version-0", claim(version=0)
    yield "version-2", claim(version=2)
    yield "version-greatest", claim(version=2**32 - 1)
    yield "flags-1", claim(flags=1)
    yield "flags-greatest", claim(flags=2**32 - 1)
    node_columns = ("mtime", "nlink", "ref", "count", "parent", "mode")
    yield "a-node-too-many", every(*(insert(name, nodes, int(arrays[name][file])) for name in node_columns))
    yield "a-node-too-few", every(*(remove(name, nodes - 1) for name in node_columns))
    yield "no-nodes", lambda t: t.arrays.update({name: t.arrays[name][:0] for name in node_columns})
    yield (
        "no-entries",
        lambda t: t.arrays.update(
            entry_nodes=t.arrays["entry_nodes"][:0],
            name_offsets=t.arrays["name_offsets"][:1],
            names=t.arrays["names"][:0],
        ),
    )

    # Nodes.
    yield "root-is-a-file", put("mode", 0, stat.S_IFREG | 0o644)
    yield "root-is-a-link", put("mode", 0, stat.S_IFLNK | 0o777)
    yield "root-is-nothing", put("mode", 0, 0)
    yield "root-has-a-parent", put("parent", 0, folder)
    yield "root-has-a-name", put("entry_nodes", 0, 0)
    for name, mode in {
        "nothing": 0,
        "fifo": stat.S_IFIFO,
        "character-device": stat.S_IFCHR,
        "block-device": stat.S_IFBLK,
        "socket": stat.S_IFSOCK,
        "all-bits": 0o177777,
        "folder": stat.S_IFDIR | 0o755,
        "link": stat.S_IFLNK | 0o777,
    }.items():
        yield f"file-is-{name}", put("mode", file, mode)
    yield "folder-is-a-file", put("mode", folder, stat.S_IFREG | 0o644)
    yield "folder-is-a-link", put("mode", folder, stat.S_IFLNK | 0o777)
    yield "link-is-a-folder", put("mode", link, stat.S_IFDIR | 0o755)
    records = len(split_records(SMALL))
    yield "file-is-the-tree-itself", put("ref", file, records - 1)
    yield "file-beyond-the-records", put("ref", file, records)
    for name, value in huge.items():
        yield f"file-of-record-{name}", put("ref", file, value)
        yield f"folder-begins-at-{name}", put("ref", folder, value)
        yield f"folder-has-{name}-entries", put("count", folder, value)
        yield f"folder-above-is-{name}", put("parent", folder, value)
        yield f"link-begins-at-{name}", put("ref", link, value)
        yield f"link-of-{name}-bytes", put("count", link, value)
        yield f"entry-leads-to-{name}", put("entry_nodes", 1, value)
        yield f"name-begins-at-{name}", put("name_offsets", 1, value)
        yield f"last-name-ends-at-{name}", put("name_offsets", entries, value)
        yield f"link-count-of-file-{name}", put("nlink", file, value)
    for name, node in (("file", file), ("folder", folder), ("root", 0), ("link", link)):
        yield f"link-count-of-{name}-0", put("nlink", node, 0)
        yield f"link-count-of-{name}-one-more", put("nlink", node, int(arrays["nlink"][node]) + 1)
    yield "folder-begins-one-later", put("ref", folder, int(arrays["ref"][folder]) + 1)
    yield "folder-begins-one-earlier", put("ref", folder, int(arrays["ref"][folder]) - 1)
    yield "folder-begins-where-the-root-does", put("ref", folder, 0)
    yield "folder-has-an-entry-more", put("count", folder, int(arrays["count"][folder]) + 1)
    yield "folder-has-an-entry-less", put("count", folder, int(arrays["count"][folder]) - 1)
    yield "root-has-all-entries", put("count", 0, entries)
    yield "root-has-no-entries", put("count", 0, 0)
    yield "last-folder-reaches-past-the-entries", put("count", folders[-1], 1)
    yield (
        "folder-hangs-below-itself",
        every(put("entry_nodes", int(arrays["ref"][folder]), folder), put("parent", folder, folder)),
    )
    yield "folder-contains-the-root", put("entry_nodes", int(arrays["ref"][folder]), 0)
    yield "folder-contains-its-parent", put("entry_nodes", int(arrays["ref"][inner]), folder)
    yield "folder-has-two-names", put("entry_nodes", 0, folder)
    yield "folder-has-no-name", put("entry_nodes", arrays["entry_nodes"].tolist().index(inner), file)
    yield "folder-has-another-parent", put("parent", inner, 0)
    yield "folder-above-is-itself", put("parent", inner, inner)
    yield "folder-above-is-a-file", put("parent", inner, file)
    yield (
        "folders-exchanged",
        every(exchange("entry_nodes", *(arrays["entry_nodes"].tolist().index(node) for node in (folder, inner)))),
    )
    yield "nodes-exchanged", every(*(exchange(name, folder, file) for name in node_columns))
    yield "link-of-0-bytes", put("count", link, 0)
    yield "link-of-4096-bytes", every(insert("targets", 0, *[97] * 4096), put("ref", link, 0), put("count", link, 4096))
    yield "link-one-byte-past-the-end", put("count", link, len(arrays["targets"]) - int(arrays["ref"][link]) + 1)
    yield "link-begins-at-the-end", put("ref", link, len(arrays["targets"]))
    yield "link-with-nul", put("targets", int(arrays["ref"][link]), 0)
    yield "entry-leads-past-the-nodes", put("entry_nodes", 1, nodes)

    # Names.
    yield "names-begin-at-1", put("name_offsets", 0, 1)
    yield "names-end-one-early", put("name_offsets", entries, names - 1)
    yield "names-end-one-late", put("name_offsets", entries, names + 1)
    yield "a-byte-of-names-too-many", insert("names", names, 97)
    yield "a-byte-of-names-too-few", remove("names", names - 1)
    yield "name-is-empty", put("name_offsets", 2, offsets[1])
    yield "name-ends-before-it-begins", exchange("name_offsets", 2, 3)
    yield "names-offsets-descend", lambda t: t.arrays.update(name_offsets=t.arrays["name_offsets"][::-1].copy())
    yield "name-of-256-bytes", every(insert("names", 1, *[97] * 255), later_names(255))
    for name, byte in (("slash", 47), ("nul", 0), ("dot", 46)):
        yield f"name-is-{name}", put("names", 0, byte)  # the root's first name has one byte
        if byte != 46:
            yield f"name-with-{name}", put("names", offsets[1] + 1, byte)
            yield f"last-name-ends-in-{name}", put("names", names - 1, byte)
    yield "name-is-dot-dot", every(put("names", 0, 46), insert("names", 0, 46), later_names(1))
    first_below = int(arrays["ref"][folder])
    yield "name-twice-in-a-row", lambda t: repeat_name(t, first_below)
    yield "names-not-sorted", exchange("names", offsets[1], offsets[2])
    yield "names-above-not-sorted", put("names", 0, 255)
    yield "names-below-not-sorted", put("names", offsets[first_below], 255)
    yield "entries-of-two-folders-exchanged", exchange("entry_nodes", top, entries - 1)

    # Block checksums, although no record here is larger than a block.
    yield (
        "block-table-of-a-small-record",
        every(insert("big_records", 0, 0), insert("big_first_blocks", 1, 1), insert("block_checksums", 0, 1)),
    )
    yield "block-table-without-record", insert("block_checksums", 0, 1)
    yield (
        "block-table-of-a-record-beyond",
        every(insert("big_records", 0, 2**32 - 1), insert("big_first_blocks", 1, 1), insert("block_checksums", 0, 1)),
    )
    yield "block-table-begins-at-1", put("big_first_blocks", 0, 1)
    yield "block-table-begins-at-2-to-63", put("big_first_blocks", 0, 2**63)


def repeat_name(trailer: Trailer, entry: int) -> None:
    """Give the next entry the same name."""
    offsets, names = trailer.arrays["name_offsets"].tolist(), trailer.arrays["names"]
    begin, middle, end = offsets[entry : entry + 3]
    trailer.arrays["names"] = np.concatenate([names[:middle], names[begin:middle], names[end:]])
    moved = [offset + 2 * middle - begin - end for offset in offsets[entry + 2 :]]
    trailer.arrays["name_offsets"][entry + 2 :] = np.array(moved, np.uint32)


def circle(above: list[int]) -> Pack:
    """Return an empty folder, and folders that contain each other: above[k] is the parent of folder k + 1."""
    pack, count = packs.pack({}), len(above)
    assert pack.trailer is not None
    below = [above.index(k + 1) + 1 for k in range(count)]
    columns = {
        "mtime": [0] * (count + 1),
        "nlink": [2] + [3] * count,
        "ref": [0, *range(count)],
        "count": [0] + [1] * count,
        "parent": [0, *above],
        "mode": [stat.S_IFDIR | 0o755] * (count + 1),
        "name_offsets": list(range(count + 1)),
        "entry_nodes": below,
        "names": [97] * count,
    }
    pack.trailer.arrays |= {name: np.array(values, DTYPES[name]) for name, values in columns.items()}
    return pack


def trailers_refused() -> Files:
    for name, change in trailer_changes():
        pack = packs.pack(packs.small())
        assert pack.trailer is not None
        change(pack.trailer)
        yield f"trailer-{name}", pack.build()
    yield "trailer-path-of-4096-bytes", packs.pack(packs.long_path(4096)).build()
    yield "trailer-folders-2049-deep", packs.pack(packs.chain(2049)).build()
    for name, above in (("of-one", [1]), ("of-two", [2, 1]), ("of-three", [3, 1, 2])):
        yield f"trailer-folders-in-a-circle-{name}", circle(above).build()
    pack = packs.pack({})
    assert pack.trailer is not None
    pack.trailer.arrays["mode"] = np.array([stat.S_IFREG], "<u2")
    yield "trailer-of-nothing-root-is-a-file", pack.build()
    good = packs.pack(packs.small())
    assert good.trailer is not None
    # The size in the footer puts the beginning of the body before the last record, into the bytes of files.
    body = good.trailer.encode()
    footer = bytearray(body[-FOOTER.size :])
    struct.pack_into("<I", footer, FOOTER.size - 4, zlib.crc32(footer[:-4]))
    yield "trailer-body-in-the-files", record_file([*good.records, body[: -FOOTER.size], MAGIC + bytes(footer)])
    yield "trailer-without-body", record_file([*good.records, MAGIC + good.pickle + bytes(footer)])


def packed_refused() -> Files:
    """Yield packed folders that were extended or truncated, so that the checksum of the last record is wrong."""
    *_, last = tables(SMALL)[2]
    for size in (last + len(MAGIC), last + 30, len(SMALL) - FOOTER.size, len(SMALL) - 1):
        yield f"packed-cut-at-{size}", SMALL[:size]
    yield "packed-one-byte-appended", SMALL + b"\0"
    yield "packed-file-appended", SMALL + DEEP


def trees_reported() -> Files:
    """Yield packed folders in which ffrecord and fffs see different trees."""
    folder = packs.small()
    tree, records = packs.numbered(folder)

    def split(name: str, seen_by_ffrecord: packs.Folder) -> tuple[str, bytes]:
        pack = Pack(records, packs.pickled(seen_by_ffrecord), packs.trailer(tree, records))
        return f"trees-differ-{name}", pack.build()

    yield split("a-file-is-another", tree | {b"a": 1})
    yield split("two-files-exchanged", tree | {b"a": tree[b"b.txt"], b"b.txt": tree[b"a"]})
    yield split("a-file-is-missing", {name: value for name, value in tree.items() if name != b"b.txt"})
    yield split("a-file-is-too-many", tree | {b"extra": 0})
    yield split("a-folder-is-missing", {name: value for name, value in tree.items() if name != b"folder"})
    yield split("a-folder-is-a-file", tree | {b"folder": 0})
    yield split("a-file-is-a-folder", tree | {b"a": {}})
    yield split("a-folder-is-empty", tree | {b"folder": {}})
    yield split("a-name-is-another", {(b"A" if name == b"a" else name): value for name, value in tree.items()})
    yield split("nothing-in-it", {})
    yield split("a-link-leads-elsewhere", tree | {b"folder": tree[b"folder"] | {b"to-b": 0}})
    good = Pack(records, packs.pickled(tree), packs.trailer(tree, records))
    for name, pickle in (
        ("pickle-of-another-protocol", b"\x80\x04" + good.pickle[2:]),
        ("pickle-is-missing", b""),
        ("pickle-is-cut", good.pickle[:-1]),
        ("pickle-runs-code", b"cposix\nsystem\n(X\x04\x00\x00\x00truetR."),
        ("pickle-is-zeros", bytes(len(good.pickle))),
    ):
        yield f"trees-differ-{name}", Pack(records, pickle, good.trailer).build()
    for name, changes in (("files-exchanged", exchange("ref", 1, 2)), ("file-repeated", put("ref", 2, 0))):
        changed_trailer = packs.trailer(tree, records)
        changes(changed_trailer)
        yield f"trees-differ-trailer-{name}", Pack(records, good.pickle, changed_trailer).build()
    _, _, offsets = tables(SMALL)
    for size in (offsets[1], offsets[-1] - 1, offsets[-1], offsets[-1] + 5):  # plain records, because the magic is lost
        yield f"packed-cut-at-{size}", SMALL[:size]
    yield "packed-itself-appended", SMALL + SMALL  # ends with a valid trailer
    yield from storms()


def storms() -> Files:
    """Yield trees in which following links costs much more than their size suggests. ffrecord sees nothing of them."""
    detour = b"d/../" * 810
    folder: packs.Folder = {b"d": {}, b"end": b"x"}
    folder |= {b"link%d" % k: packs.Link(detour + b"link%d" % (k + 1)) for k in range(4)}
    folder |= {b"link4": packs.Link(detour + b"end")}
    for count in (300, 3000):
        many = folder | {b"many%04d" % k: packs.Link(b"link0") for k in range(count)}
        tree, records = packs.numbered(many)
        yield f"links-storm-of-{count}", Pack(records, packs.pickled({}), packs.trailer(tree, records)).build()
    circle = {b"l%02d" % k: packs.Link(b"l%02d" % ((k + 1) % 60)) for k in range(60)}
    tree, records = packs.numbered(circle)
    yield "links-in-a-circle", Pack(records, packs.pickled({b"x": {}}), packs.trailer(tree, records)).build()


# ---------------------------------------------------------------- all bad files


def refused() -> Files:
    yield from headers_refused()
    yield from offsets_refused()
    yield from strangers_refused()
    yield from flips("refused")
    yield from pickles_refused()
    yield from trailers_refused()
    yield from packed_refused()


def reported() -> Files:
    yield from records_reported()
    yield from flips("reported")
    yield from trees_reported()


def bad_files() -> dict[str, bytes]:
    """Return path below the folder -> content."""
    files: dict[str, bytes] = {}
    for kind, made in (("refused", refused()), ("reported", reported())):
        for name, data in made:
            path = f"{kind}/{name}.ffr"
            assert path not in files, f"{path} is made twice"
            files[path] = data
    return files


def hashes(files: dict[str, bytes]) -> str:
    """Return the list of files as sha256sum(1) prints it."""
    return "".join(f"{hashlib.sha256(data).hexdigest()}  {path}\n" for path, data in sorted(files.items()))


def write_files(folder: Path) -> None:
    """Write the bad files below a folder."""
    for path, data in bad_files().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write_files(Path(sys.argv[1]))
    else:
        HASHES.write_text(hashes(bad_files()))
