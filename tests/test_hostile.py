"""Crafted and damaged files: an error or the right bytes, quickly, and in memory proportional to the file.

Headers, every flipped bit, every truncation, and bombs. Invalid trees are in test_trailer.py and test_packed_pickle.py.
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import textwrap
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import (
    DTYPES,
    FOOTER,
    MAGIC,
    MIB,
    NEW,
    NODES,
    ORDERED_DICT,
    PROTO,
    STOP,
    Pack,
    dictionary,
    header,
    number,
    record_file,
    split_records,
    stretched,
    text,
    whole,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import load_records, load_source, verify

import fffs
from fffs.errors import ChecksumError, FffsError, FormatError, MetadataError, RecordError, TruncatedError

FAST = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

# ---------------------------------------------------------------- headers


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "victim.ffr"


def opens(path: Path, data: bytes) -> fffs.FileReader:
    path.write_bytes(data)
    return fffs.FileReader(path)


DATA = [b"zero", b"first", b"", b"third"]
CRCS = [zlib.crc32(data) for data in DATA]
BEGIN = 12 + 12 * 4
OFFSETS = [BEGIN, BEGIN + 4, BEGIN + 9, BEGIN + 9]
BODY = b"".join(DATA)


@pytest.mark.parametrize("n", [-1, -(2**62), -(2**63), 5, 6, 1000, 2**31, 2**32 + 4, 2**60, 2**61, 2**62, 2**63 - 1])
@pytest.mark.parametrize("check_data", [True, False])
def test_a_number_of_records_that_the_file_cannot_hold_is_refused(path: Path, n: int, check_data: bool) -> None:
    path.write_bytes(header(CRCS, OFFSETS, n) + BODY)
    with pytest.raises(MetadataError, match=r"victim\.ffr: ") as caught:
        fffs.FileReader(path, check_data=check_data)
    if n < 0 or n > 6:
        assert "victim.ffr: not a record file, or damaged: as an FFRecord file it would have more" in str(caught.value)


@pytest.mark.parametrize(
    "offsets",
    {
        "backwards": [BEGIN, BEGIN + 9, BEGIN + 4, BEGIN + 9],
        "the first behind the second": [BEGIN + 5, BEGIN + 4, BEGIN + 9, BEGIN + 9],
        "negative": [-1, BEGIN + 4, BEGIN + 9, BEGIN + 9],
        "very negative": [-(2**63), BEGIN + 4, BEGIN + 9, BEGIN + 9],
        "negative in the middle": [BEGIN, BEGIN + 4, -(2**63), BEGIN + 9],
        "the difference overflows": [BEGIN, 2**63 - 1, -(2**63), BEGIN + 9],
        "the last negative": [BEGIN, BEGIN + 4, BEGIN + 9, -5],
        "in the header": [12, BEGIN + 4, BEGIN + 9, BEGIN + 9],
        "at the beginning": [0, 0, 0, 0],
        "one byte in the header": [BEGIN - 1, BEGIN + 4, BEGIN + 9, BEGIN + 9],
    }.items(),
    ids=lambda item: item[0],
)
@pytest.mark.parametrize("crc", [None, 0], ids=["good-crc", "no-crc"])
@pytest.mark.filterwarnings("ignore::fffs.LegacyFileWarning")
def test_offsets_out_of_order_are_refused(path: Path, offsets: tuple[str, list[int]], crc: int | None) -> None:
    path.write_bytes(header(CRCS, offsets[1], crc=crc) + BODY)
    for check_data in (True, False):
        with pytest.raises(MetadataError, match=r"victim\.ffr: record \d"):
            fffs.FileReader(path, check_data=check_data)


@pytest.mark.parametrize("beyond", [1, 2**31, 2**40, 2**62, 2**63 - 1 - BEGIN - 14])
def test_offsets_past_the_end_fail_those_records_alone(path: Path, beyond: int) -> None:
    offsets = [*OFFSETS[:2], BEGIN + 9, BEGIN + 14 + beyond]
    with opens(path, header(CRCS, offsets) + BODY) as reader:
        assert reader.read_one(0).tobytes() == b"zero"
        assert [data.tobytes() for data in reader.read([1, 0])] == [b"first", b"zero"]
        for record in (2, 3):
            for read in (
                lambda i: reader.read_one(i),
                lambda i: reader.read([0, i]),
                lambda i: reader.read_range(i, 0, 10),
                lambda i: reader.store.read_range_into(i, 0, np.empty(10, np.uint8)),
            ):
                with pytest.raises(TruncatedError, match=f"record {record} reaches past the end"):
                    read(record)
    with load_source([path]) as source:
        assert [bad.number for bad in verify(source)] == [2, 3]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (gzip.compress(bytes(2000)), "a compressed file; fffs convert"),
        (b"PK\x03\x04" + b"\xff" * 600, "an archive; fffs convert"),
        (b"\xff" * 257 + b"ustar" + b"\xff" * 600, "an archive; fffs convert"),
        (b"\x28\xb5\x2f\xfd" + b"\xff" * 600, "decompress it first"),
        (b"PAR1" + b"\xff" * 600, "a table; fffs convert reads it"),
        (b"ARROW1\0\0" + b"\xff" * 600, "a table; fffs convert reads it"),
        (b"PARE" + b"\xff" * 600, "encrypted footer; decrypt it first"),
    ],
    ids=["gz", "zip", "tar", "zstd", "parquet", "arrow", "encrypted"],
)
def test_another_kind_of_file_is_refused_as_such(tmp_path: Path, data: bytes, what: str) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(MetadataError, match=f"x: not a record file, but .*{what}"):
        fffs.FileReader(tmp_path / "x")


def test_a_record_that_would_take_all_memory_is_refused_before_it_is_taken(path: Path) -> None:
    with opens(path, header(CRCS, [*OFFSETS[:3], 2**62]) + BODY) as reader:
        with pytest.raises(TruncatedError):
            reader.read([2] * 100)


def test_a_file_that_is_all_header_has_only_empty_records(path: Path) -> None:
    with opens(path, record_file([b""] * 1000)) as reader:
        assert [len(data) for data in reader.read(range(1000))] == [0] * 1000


# ---------------------------------------------------------------- every bit


def make_pack(size: int) -> bytes:
    """Return a packed folder with trailer, of exactly that many bytes."""
    with tempfile.TemporaryDirectory(dir=FAST) as room:
        folder = Path(room, "f")
        (folder / "sub").mkdir(parents=True)
        (folder / "a").write_bytes(stretched(100, 1))
        (folder / "sub" / "b").write_bytes(stretched(3000, 2))
        (folder / "sub" / "hard").hardlink_to(folder / "a")
        (folder / "link").symlink_to("sub/b")
        (folder / "z").touch()
        data = b""
        for _ in range(2):  # first to find out what is missing, then with it
            (folder / "rest").write_bytes(stretched(size - len(data) if data else 0, 3))
            for entry in [folder, *folder.rglob("*")]:
                os.utime(entry, ns=(10**18, 10**18), follow_symlinks=False)
            fffs.pack_folder(folder, f"{room}/pack.ffr")
            data = Path(room, "pack.ffr").read_bytes()
    assert len(data) == size
    return data


PACKED = make_pack(16384)
PLAIN = record_file([stretched(n, n) for n in (1, 0, 100, 5000, 7, 0, 4096)] + [stretched(16384 - 12 - 96 - 9204, 99)])


class Victim:
    """A file that is damaged in place and repaired."""

    def __init__(self, path: Path, data: bytes) -> None:
        self.path, self.data = path, data
        path.write_bytes(data)
        self.records = split_records(data)
        self.offsets = [*struct.unpack_from(f"<{len(self.records)}q", data, 12 + 4 * len(self.records)), len(data)]
        self.fd = os.open(path, os.O_RDWR)

    def flips(self, begin: int, end: int) -> Iterator[int]:
        """Flip each bit of a part in turn. Yields the position of the byte."""
        for position in range(begin, end):
            for bit in range(8):
                os.pwrite(self.fd, bytes([self.data[position] ^ 1 << bit]), position)
                yield position
            os.pwrite(self.fd, self.data[position : position + 1], position)


@pytest.fixture(params=["packed", "plain"])
def victim(request: pytest.FixtureRequest, path: Path) -> Iterator[Victim]:
    victim = Victim(path, PACKED if request.param == "packed" else PLAIN)
    assert len(victim.data) == 16384
    yield victim
    os.close(victim.fd)


def test_every_flipped_bit_of_the_header_is_refused_at_open(victim: Victim) -> None:
    for _ in victim.flips(0, victim.offsets[0]):
        with pytest.raises(FormatError, match=r"victim\.ffr: "):
            load_source([victim.path])
        with pytest.raises(FormatError):
            load_records([victim.path])


def test_every_flipped_bit_of_the_data_hits_its_record_alone(victim: Victim) -> None:
    count = len(victim.records) - victim.data.endswith(PACKED[-80:])
    found = 0
    with load_source([victim.path]) as source:
        everything = np.arange(source.store.n)
        for record, (begin, end) in enumerate(pairwise(victim.offsets[: count + 1])):
            others = [i for i in range(len(victim.records)) if i != record]
            for k, _ in enumerate(victim.flips(begin, end)):
                ((number, error),) = source.store.verify(everything)
                assert number == record
                assert isinstance(error, ChecksumError)
                found += 1
                if k % 101 == 0:
                    with pytest.raises(ChecksumError):
                        source.store.read_one(record)
                    assert [data.tobytes() for data in source.store.read(others)] == [victim.records[i] for i in others]
        assert source.store.verify(everything) == []
    assert found == 8 * (victim.offsets[count] - victim.offsets[0])


def test_ranges_give_out_no_byte_of_a_damaged_record(victim: Victim) -> None:
    buffer = np.empty(50, np.uint8)
    for k, position in enumerate(victim.flips(victim.offsets[0], victim.offsets[-2])):
        if k % 37:
            continue
        record = max(i for i, at in enumerate(victim.offsets[:-1]) if at <= position and victim.records[i])
        start = (position - victim.offsets[record]) // 2
        with load_records([victim.path]) as source:
            buffer.fill(0)
            with pytest.raises(ChecksumError):
                source.store.read_range_into(record, start, buffer)
            with pytest.raises(ChecksumError):
                source.store.read_range(record, start, start + 1)
            assert not source.store.verified(record)
            good = 0 if record else 2
            assert source.store.read_range(good, 0, 10**6).tobytes() == victim.records[good]


def test_every_flipped_bit_of_the_tree_is_found(path: Path) -> None:
    victim = Victim(path, PACKED)
    names = {b"a", b"link", b"rest", b"sub", b"sub/b", b"sub/hard", b"z"}
    refused = opened = 0
    for _ in victim.flips(victim.offsets[-2], victim.offsets[-1]):
        with load_records([path]) as source:
            assert [bad.number for bad in verify(source)] == [len(victim.records) - 1]
        try:
            source = load_source([path])
        except FormatError:
            refused += 1
            continue
        opened += 1
        with source:
            if source.layout == "plain":  # without the magic bytes it is not a packed folder
                continue
            assert {name for name, _ in source.tree.walk()} == names, (
                "only the pickle can be damaged and not be noticed"
            )
            assert [bad.number for bad in verify(source)] == [len(victim.records) - 1]
    os.close(victim.fd)
    assert opened == 8 * (9 + len(Pack.parse(PACKED).pickle))
    assert refused + opened == 8 * len(victim.records[-1])


# ---------------------------------------------------------------- every truncation


SMALL_PACK = Pack([b"zero", b"one"], whole(dictionary(text("a"), number(0), text("b"), number(1))))


def small_files() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(dir=FAST) as room:
        folder = Path(room, "f")
        folder.mkdir()
        (folder / "a").write_bytes(b"zero")
        (folder / "b").write_bytes(b"one")
        fffs.pack_folder(folder, f"{room}/pack.ffr")
        packed = Path(room, "pack.ffr").read_bytes()
    return {"plain": record_file(DATA), "packed": packed, "packed by ffrecord": SMALL_PACK.build()}


SMALL = small_files()


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("check_data", [True, False])
def test_a_file_cut_at_any_byte_gives_errors_and_right_bytes(path: Path, kind: str, check_data: bool) -> None:
    data, records = SMALL[kind], split_records(SMALL[kind])
    offsets = [*struct.unpack_from(f"<{len(records)}q", data, 12 + 4 * len(records)), len(data)]
    for size in range(len(data)):
        path.write_bytes(data[:size])
        try:
            with fffs.PackedFolder(path, check_data=check_data) as folder:
                assert not check_data, f"cut at {size}"
                assert folder.list() == ["a", "b"], "what the pickle says, which is before the cut"
        except (FormatError, RecordError):
            pass
        try:
            reader = fffs.FileReader(path, check_data=check_data)
        except FormatError:
            assert size < offsets[0]
            continue
        with reader:
            assert size >= offsets[0]
            for record in range(reader.n):
                if offsets[record + 1] <= size:
                    assert reader.read_one(record).tobytes() == records[record]
                elif check_data:
                    with pytest.raises(RecordError):
                        reader.read_one(record)
        with load_records([path]) as source:
            assert verify(source), f"cut at {size}"


@pytest.mark.parametrize("kind", [kind for kind in SMALL if "packed" in kind])
def test_a_cut_packed_folder_is_numbered_records_or_refused(path: Path, kind: str) -> None:
    data, records = SMALL[kind], split_records(SMALL[kind])
    begin, names = struct.unpack_from("<q", data, 12 + 4 * len(records))[0], len(data) - len(records[-1])
    for size in range(len(data)):
        path.write_bytes(data[:size])
        # The file's size alone gives the end of the last record. The rest of the names is damaged names, or, if it is
        # shorter than the magic bytes, a bad record.
        if size < begin or size >= names + len(MAGIC):
            with pytest.raises(FormatError):
                load_source([path])
            continue
        with load_source([path]) as source:
            assert [name for name, _ in source.tree.walk()] == [b"000000", b"000001", b"000002"]
            if size <= names:
                assert f"{path}: the file is truncated: " in source.warnings[0]
            else:
                assert [bad.number for bad in verify(source)] == [2]


@pytest.mark.parametrize("extra", [b"\0", b"x", bytes(4096), SMALL["packed"]])
@pytest.mark.parametrize("kind", SMALL)
def test_bytes_behind_a_file_are_found(path: Path, kind: str, extra: bytes) -> None:
    path.write_bytes(SMALL[kind] + extra)
    with load_records([path]) as source:
        assert [bad.number for bad in verify(source)] == [source.store.n - 1]
    if "packed" in kind and extra != SMALL["packed"]:  # that one ends in a valid tree
        with pytest.raises(FormatError):
            fffs.PackedFolder(path)


# ---------------------------------------------------------------- any bytes


@given(data=st.binary(max_size=400), start=st.sampled_from([b"", bytes(12), PLAIN[:108], PACKED[:100]]))
@settings(max_examples=200)
@pytest.mark.filterwarnings("ignore::fffs.LegacyFileWarning")
def test_any_bytes_are_refused_or_records(data: bytes, start: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".ffr", dir=FAST) as file:
        file.write(start + data)
        file.flush()
        for check_data in (True, False):
            try:
                with load_source([file.name], check_data=check_data) as source:
                    verify(source)
                    for record in range(source.store.n):
                        source.store.read_one(record)
            except FffsError:
                pass


# ---------------------------------------------------------------- bombs

# Each bomb is opened in a process whose memory is limited and whose processor time is measured.
JUDGE = """
    import json, resource, sys, time, warnings
    import fffs
    from fffs.packing.verify import verify
    warnings.simplefilter("ignore")
    names = sys.argv[2:]
    with fffs.load_source([sys.argv[1]]) as source:  # once before it counts: libraries are loaded, threads started
        verify(source)

    def opened(name):
        with fffs.load_source([name]) as source:
            return sum(1 for _ in source.tree.walk())

    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    limit = mapped + (256 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    results = []
    for name in names:
        for action in (opened, lambda name: fffs.PackedFolder(name).list(recursive=True) and None):
            begin = time.process_time()
            try:
                result = action(name)
            except Exception as error:
                result = f"{type(error).__name__}: {error}"
            results.append([result, time.process_time() - begin])
    print(json.dumps(results))
"""


def judge(good: Path, bomb: Path) -> list[str | int | None]:
    """Return the result of opening a file, after checking its time and memory."""
    command = [sys.executable, "-c", textwrap.dedent(JUDGE), str(good), str(bomb)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"MALLOC_ARENA_MAX": "2"}
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    for result, seconds in results:
        assert seconds < 2, result  # of processor time, which is longer on a busy machine
    return [result for result, _ in results]


def nested_pickle(depth: int) -> bytes:
    key = text("d")
    return PROTO + NEW + b"(" + (key + NEW + b"(") * depth + b"u" * (depth + 1) + STOP


def nested_with_memo(depth: int) -> bytes:
    head = PROTO + ORDERED_DICT + b"\x94)R(" + text("d") + b"\x94"
    return head + b"h\x00)R(h\x01" * (depth - 1) + b"h\x00)R" + b"u" * depth + STOP


def long_names_again() -> bytes:
    names = b"".join(text(f"{i:0255}") + b"\x94" + number(0) for i in range(250))
    again = b"".join(b"h" + bytes([i + 1]) + b"K\x00" for i in range(250))
    folders = b"".join(text(f"{i}") + b"h\x00)R(" + again + b"u" for i in range(1000))
    return PROTO + ORDERED_DICT + b"\x94)R(" + names + folders + b"u" + STOP


BOMBS: dict[str, tuple[Callable[[], bytes], str]] = {
    "10,000 folders in each other": (lambda: nested_pickle(10_000), "longer than 4095"),
    "1,000,000 folders in each other": (lambda: nested_with_memo(1_000_000), "longer than 4095|nested"),
    "a million marks": (lambda: PROTO + b"(" * 2_000_000, "ends too early|nested"),
    "a million empty tuples": (lambda: PROTO + b")" * 2_000_000, "ends too early"),
    "a million entries of the memo": (lambda: PROTO + NEW + b"\x94" * 2_000_000, "ends too early"),
    "a million folders that nobody holds": (lambda: PROTO + ORDERED_DICT + b"\x94" + b"h\x00)R" * 500_000, "too early"),
    "long names again and again": (long_names_again, "out of proportion"),
    "one name a million times": (
        lambda: PROTO + NEW + b"(" + text("x") + b"\x94" + b"K\x00" + b"h\x00K\x00" * 500_000 + b"u.",
        "duplicated",
    ),
    "a million names in order": (
        lambda: whole(NEW + b"(" + b"".join(text(f"{i}") + b"K\x01" for i in range(200_000)) + b"u"),
        "",
    ),
    "names in the worst order": (
        lambda: whole(NEW + b"(" + b"".join(text(f"{-i % 99991}") + b"K\x01" for i in range(99991)) + b"u"),
        "",
    ),
    "a huge index of the memo": (lambda: PROTO + NEW + b"r\xff\xff\xff\x7f.", "memo"),
    "a huge name": (lambda: PROTO + NEW + b"\x8d" + b"\xff" * 7 + b"\x7f.", "ends too early"),
    "a huge frame": (lambda: PROTO + b"\x95" + b"\xff" * 8 + NEW + STOP, "ends too early"),
    "a number of two million bytes": (
        lambda: whole(dictionary(text("a"), b"\x8b\x80\x84\x1e\x00" + bytes(2_000_000))),
        "no packed",
    ),
    "a name of two million bytes": (lambda: whole(dictionary(text("a" * 2_000_000), number(0))), "longer than 255"),
    "a tree of Python's own": (
        lambda: pickle.dumps(OrderedDict((f"{i}", OrderedDict(a=0, b=1)) for i in range(30_000)), 4),
        "",
    ),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / "good.ffr"
    path.write_bytes(PACKED)
    return path


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_pickle_that_is_a_bomb_costs_little(path: Path, good: Path, bomb: str) -> None:
    make, reason = BOMBS[bomb]
    path.write_bytes(Pack([b"zero", b"one"], make()).build())
    for result in judge(good, path):
        if reason:
            assert str(result).startswith("MetadataError: ")
            assert any(part in str(result) for part in reason.split("|"))
        else:
            assert not isinstance(result, str)


def trailer_of_folders(levels: int, entries: int) -> bytes:
    """Return a pack whose trailer has nested folders, and in the deepest of them many names of one file."""
    pack = Pack.parse(PACKED)
    trailer = pack.trailer
    assert trailer
    names = [b"d" * 255] * levels + [b"%07d" % i for i in range(entries)]
    nodes = levels + 2
    arrays: dict[str, Any] = {
        "mtime": np.zeros(nodes),
        "nlink": [3] * levels + [2, entries],
        "ref": [*range(levels + 1), len(pack.records) - 1],
        "count": [1] * levels + [entries, 0],
        "parent": [0, *range(levels), 0],
        "mode": [0o40755] * (levels + 1) + [0o100644],
        "name_offsets": np.cumsum([0, *map(len, names)]),
        "entry_nodes": [*range(1, levels + 1), *[levels + 1] * entries],
        "names": np.frombuffer(b"".join(names), np.uint8),
        "targets": [],
        "big_records": [],
        "big_first_blocks": [0],
        "block_checksums": [],
    }
    trailer.arrays = {name: np.asarray(array) for name, array in arrays.items()}
    return pack.build()


def trailer_of_links(count: int) -> bytes:
    """Return a pack of symbolic links with the same long and complicated target."""
    pack = Pack.parse(PACKED)
    trailer = pack.trailer
    assert trailer
    pack.records.clear()
    names = [b"%07d" % i for i in range(count)]
    target = b"x/" * 2047 + b"y"
    arrays: dict[str, Any] = {
        "mtime": np.zeros(count + 1),
        "nlink": [2] + [1] * count,
        "ref": [0] * (count + 1),
        "count": [count] + [len(target)] * count,
        "parent": [0] * (count + 1),
        "mode": [0o40755] + [0o120777] * count,
        "name_offsets": np.cumsum([0, *map(len, names)]),
        "entry_nodes": range(1, count + 1),
        "names": np.frombuffer(b"".join(names), np.uint8),
        "targets": np.frombuffer(target, np.uint8),
        "big_records": [],
        "big_first_blocks": [0],
        "block_checksums": [],
    }
    trailer.arrays = {name: np.asarray(array) for name, array in arrays.items()}
    return pack.build()


TRAILERS: dict[str, tuple[Callable[[], bytes], str]] = {
    "15 long folders in each other": (lambda: trailer_of_folders(15, 1000), ""),
    "16 long folders in each other": (lambda: trailer_of_folders(16, 100_000), "longer than 4095"),
    "2000 long folders in each other": (lambda: trailer_of_folders(2000, 100_000), "longer than 4095"),
    "a hundred thousand names of one file": (lambda: trailer_of_folders(0, 100_000), ""),
    "links with a long target in common": (lambda: trailer_of_links(2000), ""),
}


@pytest.mark.parametrize("bomb", TRAILERS)
def test_a_trailer_that_is_a_bomb_costs_little(path: Path, good: Path, bomb: str) -> None:
    make, reason = TRAILERS[bomb]
    path.write_bytes(make())
    for result in judge(good, path):
        if reason:
            assert str(result).startswith("MetadataError: ")
            assert reason in str(result)
        else:
            assert not isinstance(result, str)


HEADERS: dict[str, bytes] = {
    "as many records as fit into nothing": struct.pack("<Iq", 1, 2**62) + bytes(1000),
    "a hundred thousand records of one byte": record_file([b"x"] * 100_000),
    "one record that ends nowhere": header([0, 0], [36, 2**62]) + b"x" * 100,
    "a hundred thousand records at one place": header([0] * 100_000, [12 + 12 * 100_000] * 100_000),
}


@pytest.mark.parametrize("bomb", HEADERS)
def test_a_header_that_is_a_bomb_costs_little(path: Path, good: Path, bomb: str) -> None:
    path.write_bytes(HEADERS[bomb])
    opened, listed = judge(good, path)
    assert str(listed).startswith(("FormatError", "MetadataError"))
    if "nothing" in bomb:
        assert str(opened).startswith("MetadataError")
    else:
        assert opened == {"one record that ends nowhere": 2}.get(bomb, 100_000)


def test_a_large_file_full_of_holes_is_opened_without_reading_it(path: Path) -> None:
    """Sending a terabyte of holes costs nothing."""
    with path.open("wb") as file:
        file.write(header([0, 0], [36, 36]))
        try:
            file.truncate(1 << 40)
        except OSError:
            pytest.skip("no file of a terabyte can be made here")
    begin = time.process_time()
    with load_source([path]) as source:
        assert source.store.length(1) == (1 << 40) - 36
        assert source.store.read_range(1, 0, 0).tobytes() == b""
    assert time.process_time() - begin < 1


def footer_of_holes(nodes: int) -> bytes:
    """Return the footer of a tree with that many files and an empty name for each."""
    items = dict.fromkeys(NODES, nodes) | {"name_offsets": nodes, "entry_nodes": nodes - 1, "big_first_blocks": 1}
    size = sum((np.dtype(DTYPES[name]).itemsize * count + 7) // 8 * 8 for name, count in items.items())
    footer = FOOTER.pack(b"fffsTREE", 1, 0, size, nodes - 1, nodes, 0, 0, 0, 0, 0, 0)[:-4]
    return footer + struct.pack("<I", zlib.crc32(footer))


SPARSE: dict[str, tuple[bytes, str]] = {
    "records as many as fit": (struct.pack("<Iq", 1, (1 << 40) // 12 - 1), "do not ascend"),
    "records as many as fit, no checksum": (struct.pack("<Iq", 0, (1 << 40) // 12 - 1), "do not ascend"),
    "a tree of zeros": (header([0], [24]) + MAGIC, "does not begin like a pickle"),
    "a pickle of zeros": (header([0], [24]) + MAGIC + b"\x80\x02", "most of its tree .* was never written"),
    "a trailer of zeros": (header([0], [24]) + MAGIC + b"\x80\x02", "most of its tree .* was never written"),
}


@pytest.mark.parametrize("kind", SPARSE)
@pytest.mark.filterwarnings("ignore::fffs.LegacyFileWarning")
def test_what_a_file_of_holes_promises_is_refused_before_it_is_believed(path: Path, kind: str) -> None:
    with path.open("wb") as file:
        file.write(SPARSE[kind][0])
        try:
            file.truncate(1 << 40)
        except OSError:
            pytest.skip("no file of a terabyte can be made here")
        if "trailer" in kind:
            file.seek(0, os.SEEK_END)
            file.write(footer_of_holes(50_000_000))
    begin = time.process_time()
    with pytest.raises(MetadataError, match=SPARSE[kind][1]):
        load_source([path])
    assert time.process_time() - begin < 1


@pytest.mark.parametrize("wrong", [None, 0, 3_000_000, 5_999_999])
def test_the_tables_of_very_many_records_are_looked_through_and_read(path: Path, wrong: int | None) -> None:
    n = 6_000_000
    offsets = np.full(n, 12 + 12 * n, np.int64)
    if wrong is not None:
        offsets[wrong] = 0
    body = struct.pack("<q", n) + bytes(4 * n) + offsets.tobytes()
    path.write_bytes(struct.pack("<I", zlib.crc32(body)) + body)
    if wrong is None:
        with fffs.FileReader(path) as reader:
            assert reader.n == n
            assert len(reader.read([0, n - 1])) == 2
    else:
        with pytest.raises(MetadataError, match="offsets of its 6000000 records do not ascend"):
            fffs.FileReader(path)


def test_a_large_record_is_verified_and_unpacked_in_little_memory(path: Path) -> None:
    size = 200 * MIB
    with path.open("wb") as file:
        file.write(header([zlib.crc32(bytes(size))], [24]))
        file.truncate(24 + size)
    code = """
        import resource, sys
        import fffs
        from fffs.packing.verify import verify
        with fffs.load_source([sys.argv[1]]) as warm, fffs.load_source([sys.argv[2]]) as source:
            verify(warm)
            with open("/proc/self/status") as file:
                (data,) = [int(line.split()[1]) << 10 for line in file if line.startswith("VmData")]
            resource.setrlimit(resource.RLIMIT_DATA, (data + (100 << 20), data + (100 << 20)))
            assert verify(source) == []
            fffs.unpack(source, sys.argv[2] + ".out")
    """
    good = path.with_name("good.ffr")
    good.write_bytes(PACKED)
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(good), str(path)], check=True)
