"""Bags of all layouts, and bagz: read exactly, written byte for byte; detectable damage is an error."""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
import pickle
import random
import struct
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import granular_golden as golden
import numpy as np
import pytest
from builders import MIB, small_disk
from crowd import find_problems
from fuzz import fuzz_bag
from fuzz.edits import random_edits
from golden_files import sha256
from inside import AppendedBag, TornTailWarning, bag

import fffs
from fffs.errors import (
    ClosedError,
    FffsError,
    FormatError,
    MetadataError,
    RecordError,
    RecordIndexError,
    SourceNotFoundError,
    TruncatedError,
    UnfinishedFileError,
    UsageError,
    WriteError,
    WriterError,
)
from fffs.granular import BagReader, BagWriter, DatasetWriter

# ---------------------------------------------------------------- golden files


@pytest.mark.parametrize("path", golden.BAGS)
def test_every_record_of_a_golden_bag_is_read(path: str) -> None:
    told = golden.FILES[path]
    with BagReader(golden.FOLDER / path) as reader:
        assert len(reader) == told["n"]
        assert reader.size == told["size_reported"]["reader"]
        assert reader.layout == {"starts": "v1", "ends": "v2", "sidecar": "v3"}[told["layout"]]
        data = reader[:]
        assert sha256(b"".join(data)) == told["concat_sha256"]
        assert sha256("\n".join(str(len(record)) for record in data).encode()) == told["lengths_sha256"]
        for record in told["records"]:
            assert len(data[record["index"]]) == record["len"]
            assert sha256(data[record["index"]]) == record["sha256"]
            assert reader.store.files[0].index.starts[record["index"]] == record["offset"]
        for clipped in told["ranges"]:
            for index in (slice(*clipped["range"]), range(*clipped["range"])):
                assert len(reader[index]) == clipped["count"]
                assert sha256(b"".join(reader[index])) == clipped["concat_sha256"]


@pytest.mark.parametrize("path", golden.BAGS)
def test_records_in_any_order_and_by_any_call_are_the_same(path: str) -> None:
    expected = golden.records(path)
    chance = random.Random(path)
    with BagReader(golden.FOLDER / path) as reader:
        order = [chance.randrange(-len(expected), len(expected)) for _ in range(200 if expected else 0)]
        wanted = [expected[k] for k in order]
        assert [record.tobytes() for record in reader.read(order)] == wanted
        assert [record.tobytes() for record in reader.read(k for k in order)] == wanted
        assert reader[order] == reader[np.array(order, np.int64)] == wanted
        assert [reader[k] for k in order[:20]] == wanted[:20]
        assert reader[::-3] == expected[::-3]
        assert list(reader) == expected


def test_a_number_without_a_record_is_an_index_error_and_iteration_ends() -> None:
    with BagReader(golden.FOLDER / "granular-0.6.0/bags/mixed.bag") as reader:
        for wrong in (64, -65, 2**63, 2**64):
            with pytest.raises(RecordIndexError):
                reader[wrong]
            with pytest.raises(IndexError):
                reader.read([0, wrong])
        assert sum(1 for _ in reader) == 64
        with pytest.raises(UsageError):
            reader["1"]  # type: ignore[call-overload]


def parts(path: Path) -> dict[str, bytes]:
    return {name.name: name.read_bytes() for name in path.parent.iterdir() if name.stem == path.stem}


@pytest.mark.parametrize("version", ["granular-0.6.0", "granular-0.24.2"])
@pytest.mark.parametrize("name", ["empty", "one", "mixed", "zeros", "tiny-2000", "lookalike"])
def test_a_written_bag_has_the_bytes_of_granulars(tmp_path: Path, version: str, name: str) -> None:
    path = f"{version}/bags/{name}.bag"
    records, told = golden.records(path), golden.FILES[path]
    if name not in ("zeros", "lookalike"):
        assert records[:3] == [golden.content(f"{name}.bag", k, len(data)) for k, data in enumerate(records[:3])]
    layout = {"starts": "v1", "sidecar": "v3"}[told["layout"]]
    with BagWriter(tmp_path / f"{name}.bag", layout) as writer:
        assert [writer.append(record) for record in records] == list(range(len(records)))
        assert (writer.size, len(writer)) == (told["size_reported"]["reader"], len(records))
    assert parts(tmp_path / f"{name}.bag") == parts(golden.FOLDER / path)


# ---------------------------------------------------------------- corruptions

# Corruptions that the format cannot reveal: the apparent number of records, and which of them differ from the original.
UNNOTICED = {
    "0.6.0/cut-entry": (63, []),  # the last record is empty, so the table is valid without its entry
    "0.6.0/tail-entry": (65, [64]),  # one more empty record
    "0.6.0/cut-0": (0, []),  # an empty Bag in layout v2
    "0.6.0/data-bit": (64, None),
    "0.21.2/cut-0": (0, []),
    "0.21.2/tail-entry": (65, [64]),  # bagz writes such records
    "0.21.2/data-bit": (64, None),
    "0.24.2/idx-torn": (63, []),
    "0.24.2/idx-short": (62, []),
    "0.24.2/idx-empty": (0, []),
    "0.24.2/bag-tail": (64, []),
    "0.24.2/data-bit": (64, None),
}
# The table seems to begin one entry later: a valid table of one record less.
SHIFTED: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "0.6.0/last-plus-8": lambda records: [*records[1:63], bytes(8)],
    "0.21.2/last-plus-8": lambda records: [
        records[0] + records[1],
        *records[2:63],
        records[63] + struct.pack("<Q", len(records[0])),
    ],
}
ONLY_SOME = {"0.24.2/bag-short": [62, 63], "0.24.2/bag-empty": range(1, 64)}


@pytest.mark.parametrize("identity", golden.CORRUPTIONS)
def test_every_corruption_is_found_unless_the_format_hides_it(tmp_path: Path, identity: str) -> None:
    original = golden.records(golden.CORRUPTIONS[identity]["base"])
    path = golden.damaged(identity, tmp_path)
    if identity in UNNOTICED:
        count, wrong = UNNOTICED[identity]
        with BagReader(path) as reader:
            assert len(reader) == count
            differ = [k for k, data in enumerate(reader) if k >= len(original) or data != original[k]]
        assert differ == wrong if wrong is not None else len(differ) == 1
        return
    if identity in SHIFTED:
        assert BagReader(path)[:] == SHIFTED[identity](original)
        return
    if identity in ONLY_SOME:
        with BagReader(path) as reader:
            for k, data in enumerate(original):
                if k in ONLY_SOME[identity] and data:
                    with pytest.raises(TruncatedError, match=rf"mixed\.bag: record {k} "):
                        reader[k]
                elif k not in ONLY_SOME[identity]:
                    assert reader[k] == data
        return
    with pytest.raises(MetadataError, match=r"mixed\.(bag|idx)") as caught:
        BagReader(path)
    assert "byte" in str(caught.value) or "mixed.idx" in str(caught.value)


def test_a_layout_that_is_asked_for_finds_more_damage(tmp_path: Path) -> None:
    with pytest.raises(UnfinishedFileError, match="its writer was stopped"):
        BagReader(golden.damaged("0.6.0/cut-0", tmp_path), layout="v1")
    (tmp_path / "x.bag").write_bytes(v1(b"hello", [1, 5]))
    assert BagReader(tmp_path / "x.bag")[:] == [b"h", b"ello"]
    with pytest.raises(MetadataError, match="record 0 does not begin at byte 0"):
        BagReader(tmp_path / "x.bag", layout="v1")
    with pytest.raises(MetadataError, match=r"table is missing; copy .*mixed\.idx"):
        BagReader(golden.damaged("0.24.2/idx-missing", tmp_path), layout="v3")
    with pytest.raises(UsageError, match="there is no layout 'v4'"):
        BagReader(golden.FOLDER / golden.BAGS[0], layout="v4")


def v1(data: bytes, table: list[int]) -> bytes:
    return data + struct.pack(f"<{len(table)}Q", *table)


def test_every_cut_of_a_bag_is_refused_or_leaves_whole_records(tmp_path: Path) -> None:
    records = [b"first", b"", b"second record", b"x" * 30, b"last"]
    path = tmp_path / "cut.bag"
    for layout in ("v1", "v3"):
        with BagWriter(path, layout) as writer:
            for record in records:
                writer.append(record)
        victim = path if layout == "v1" else path.with_suffix(".idx")
        whole = victim.read_bytes()
        for size in range(len(whole)):
            victim.write_bytes(whole[:size])
            with contextlib.suppress(FormatError), BagReader(path) as reader:
                assert list(reader) == records[: len(reader)], size
                assert layout == "v3" or len(reader) == 0
        path.unlink()


# ---------------------------------------------------------------- hostile numbers

LENGTHS = [-1, -(2**62), 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


@pytest.mark.parametrize("number", LENGTHS)
@pytest.mark.parametrize("entry", [0, 1, 2, 3])
@pytest.mark.parametrize("layout", ["v1", "v2", "v3"])
def test_an_offset_that_cannot_be_is_refused_at_once(tmp_path: Path, number: int, entry: int, layout: str) -> None:
    table = [0, 4, 9, 9] if layout == "v1" else [4, 9, 9, 12]
    table[entry] = number % 2**64
    path, data = tmp_path / "hostile.bag", b"zerofirstend"[: 9 if layout == "v1" else 12]
    begin = time.process_time()
    if layout == "v3":
        path.write_bytes(data)
        path.with_suffix(".idx").write_bytes(v1(b"", table))
    else:
        path.write_bytes(v1(data, table))
    behind = layout == "v3" and entry == 3 and 0 <= number < 2**63
    if behind:
        with BagReader(path) as reader:
            assert reader[:3] == [b"zero", b"first", b""]
            for read in (lambda: reader[3], lambda: reader.read([0, 3]), lambda: reader[:]):
                with pytest.raises(TruncatedError, match=r"hostile\.bag: record 3 "):
                    read()
    else:
        for asked in (None, layout):
            with pytest.raises(MetadataError, match=r"hostile\.(bag|idx)"):
                BagReader(path, asked)
    assert time.process_time() - begin < 1


def test_a_sparse_file_that_claims_billions_of_records_claims_no_memory(tmp_path: Path) -> None:
    begin = time.process_time()
    for name, size, layout in (("zeros.bag", 1 << 40, "v1"), ("data.bag", 5, "v3")):
        path = tmp_path / name
        path.write_bytes(b"")
        os.truncate(path, size)
        if layout == "v3":
            path.with_suffix(".idx").touch()
            os.truncate(path.with_suffix(".idx"), 1 << 42)
        with pytest.raises(MetadataError, match="was never written"):
            BagReader(path)
    assert time.process_time() - begin < 1


def test_a_large_record_of_a_bag_that_was_cut_claims_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.bag"
    path.write_bytes(b"abc")
    path.with_suffix(".idx").write_bytes(struct.pack("<2Q", 3, 2**62))
    with BagReader(path) as reader:
        with pytest.raises(TruncatedError):
            reader.read([0, 1])
        assert reader[0] == b"abc"


@pytest.mark.parametrize("name", ["nothing.bag", "."])
def test_what_is_no_file_is_no_bag(tmp_path: Path, name: str) -> None:
    with pytest.raises((SourceNotFoundError, UsageError)):
        BagReader(tmp_path / name)
    os.mkfifo(tmp_path / "x.bag")
    with pytest.raises(UsageError, match="not a regular file"):
        BagReader(tmp_path / "x.bag")


def test_bags_are_recognised_by_their_names() -> None:
    assert bag.recognise(b"", 0, "/data/x.bag")
    assert bag.recognise(b"", 100, "x.bagz")
    assert not bag.recognise(b"", 0, "/data/limits.x.bag")
    assert not bag.recognise(b"", 0, "/data/x.ffr")


def test_random_edits_of_small_bags_pass_the_fuzz_target() -> None:
    for data in random_edits(fuzz_bag.seeds().values(), 20240701, 1500):
        fuzz_bag.one_input(data)


# ---------------------------------------------------------------- bagz

# Written by bagz 0.3.8: b"hello", b"", b"world" * 100, b"a".
FRAMES = bytes.fromhex("28b52ffd200529000068656c6c6f28b52ffd60f40065000028776f726c640100ec508b1628b52ffd200109000061")
LIMITS = bytes.fromhex("0e000000000000000e0000000000000024000000000000002e00000000000000")
BAGZ = [b"hello", b"", b"world" * 100, b"a"]


@pytest.mark.parametrize("separate", [False, True])
def test_bagz_files_are_decompressed(tmp_path: Path, separate: bool) -> None:
    path = tmp_path / "x.bagz"
    path.write_bytes(FRAMES if separate else FRAMES + LIMITS)
    if separate:
        (tmp_path / "limits.x.bagz").write_bytes(LIMITS)
    with BagReader(path) as reader:
        assert list(reader) == reader[:] == BAGZ
        assert [record.tobytes() for record in reader.read([3, -2, 0, 0, 1])] == [
            b"a",
            BAGZ[2],
            b"hello",
            b"hello",
            b"",
        ]
        assert reader.read(k for k in (2, 0))[1].tobytes() == b"hello"
        assert reader.size == len(FRAMES) + len(LIMITS)


def test_limits_in_a_file_of_their_own_are_found_without_compression(tmp_path: Path) -> None:
    (tmp_path / "s.bag").write_bytes(b"hello" + BAGZ[2] + b"a")
    (tmp_path / "limits.s.bag").write_bytes(struct.pack("<4Q", 5, 5, 505, 506))
    with BagReader(tmp_path / "s.bag") as reader:
        assert reader[:] == BAGZ


def test_a_bagz_file_that_begins_with_an_empty_record_needs_its_layout_named(tmp_path: Path) -> None:
    data = bytes.fromhex("616263000000000000000002000000000000000300000000000000")  # written by bagz: b"", b"ab", b"c"
    (tmp_path / "e.bag").write_bytes(data)
    assert BagReader(tmp_path / "e.bag")[:] == [b"ab", b"c"]
    assert BagReader(tmp_path / "e.bag", layout="v2")[:] == [b"", b"ab", b"c"]
    (tmp_path / "e.bagz").write_bytes(bytes(8))
    assert BagReader(tmp_path / "e.bagz")[:] == [b""]


def frames(tmp_path: Path, *stored: bytes) -> Path:
    path = tmp_path / "x.bagz"
    path.write_bytes(b"".join(stored) + struct.pack(f"<{len(stored)}Q", *itertools.accumulate(map(len, stored))))
    return path


@pytest.mark.parametrize(
    "frame",
    [
        FRAMES[:13],
        FRAMES[:14] + b"x",
        FRAMES[:14] * 2,
        b"no frame at all",
        b"\x28\xb5\x2f\xfd",
        FRAMES[:6] + b"\xff" + FRAMES[7:14],
        bytes.fromhex("28b52ffde0ffffffffffffff7f") + FRAMES[6:14],  # claims 2**63 - 1 bytes
        bytes.fromhex("28b52ffd00f0") + FRAMES[6:14],  # claims a window of 1 TiB
    ],
    ids=["cut", "byte behind", "two", "text", "magic", "damaged", "huge", "window"],
)
def test_a_damaged_frame_fails_its_record_alone(tmp_path: Path, frame: bytes) -> None:
    begin = time.process_time()
    with BagReader(frames(tmp_path, FRAMES[:14], frame, FRAMES[:14])) as reader:
        assert reader[0] == reader[2] == b"hello"
        for read in (lambda: reader[1], lambda: reader[:], lambda: reader.read([2, 1])):
            with pytest.raises(RecordError, match=r"x\.bagz: record 1 \(at byte 14\): ") as caught:
                read()
            assert caught.value.record == 1
    assert time.process_time() - begin < 1


def test_a_decompression_bomb_stops_at_the_limit(tmp_path: Path) -> None:
    # Frames of one RLE block each: 128 KiB of zeros in 4 bytes.
    block = (128 << 10) << 3 | 1 << 1
    bomb = b"\x28\xb5\x2f\xfd\x00\x38" + block.to_bytes(3, "little") + b"\0"
    bomb = bomb[:6] + (block.to_bytes(3, "little") + b"\0") * 4096 + ((1 << 3) | 3).to_bytes(3, "little") + b"\0"
    path = frames(tmp_path, bomb)
    begin = time.process_time()
    with BagReader(path, max_record=1 << 20) as reader, pytest.raises(RecordError, match="more than 1048576 bytes"):
        reader[0]
    assert time.process_time() - begin < 1
    with BagReader(frames(tmp_path, FRAMES[14:36]), max_record=500) as reader:
        assert len(reader[0]) == 500
    with BagReader(frames(tmp_path, FRAMES[14:36]), max_record=499) as reader, pytest.raises(RecordError):
        reader[0]


def test_without_its_library_a_bagz_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from inside import optional

    optional.library.cache_clear()
    monkeypatch.setitem(sys.modules, optional.ZSTD, None)
    with pytest.raises(UsageError, match=r"reading a \.bagz needs .*pip install 'fffs\[granular\]'"):
        BagReader(frames(tmp_path, FRAMES[:14]))
    optional.library.cache_clear()


# ---------------------------------------------------------------- readers


@pytest.fixture
def reader() -> BagReader:
    return BagReader(golden.FOLDER / "granular-0.21.2/bags/tiny-2000.bag")


EXPECTED = golden.records("granular-0.21.2/bags/tiny-2000.bag")


def test_threads_and_children_of_fork_read_the_right_records(reader: BagReader) -> None:
    def read_at_random(seed: int) -> list[object]:
        chance = random.Random(seed)
        orders = [[chance.randrange(2000) for _ in range(chance.randrange(1, 40))] for _ in range(150)]
        return [
            order
            for order in orders
            if reader[order] != [EXPECTED[k] for k in order] or reader[order[0]] != EXPECTED[order[0]]
        ]

    assert find_problems(read_at_random) == []


def test_copies_open_the_file_anew_and_a_closed_reader_says_so(reader: BagReader) -> None:
    for again in (pickle.loads(pickle.dumps(reader)), copy.copy(reader)):
        assert again.layout == "v2"
        again.close()
        again.close()
        with pytest.raises(ClosedError, match="has been closed"):
            again[0]
    assert reader[5] == EXPECTED[5]
    assert repr(reader).endswith("tiny-2000.bag': 2000 records>")


# ---------------------------------------------------------------- writing


def test_any_buffer_is_a_record(tmp_path: Path) -> None:
    values = [
        b"a",
        bytearray(b"bc"),
        memoryview(b"def"),
        np.arange(3, dtype=">i2"),
        b"",
        bytes(3 << 20),
        b"x" * 700_000,
    ]
    with BagWriter(tmp_path / "x.bag") as writer:
        for value in values * 2:
            writer.append(value)
        with pytest.raises(TypeError, match="a record must be bytes"):
            writer.append("text")
    assert BagReader(tmp_path / "x.bag")[:] == [bytes(memoryview(value)) for value in values * 2]


def test_a_bag_in_one_file_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x.bag"
    with pytest.raises(KeyError), BagWriter(path) as writer:
        writer.append(b"x" * 2_000_000)
        writer.flush()
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    with BagWriter(path) as writer:
        writer.append(b"old")
    with pytest.raises(KeyError), BagWriter(path) as writer:
        writer.append(b"new")
        raise KeyError
    writer = BagWriter(path)
    writer.append(b"newer")
    assert BagReader(path)[:] == [b"old"]
    writer.close()
    writer.close()
    assert BagReader(path)[:] == [b"newer"]
    assert os.stat(path).st_mode & 0o777 == 0o666 & ~_umask()
    for call in (lambda: writer.append(b""), writer.flush):
        with pytest.raises(WriterError, match="has been closed"):
            call()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_names_that_readers_would_misread_are_refused(tmp_path: Path) -> None:
    for layout in ("v1", "v3"):
        with pytest.raises(UsageError, match=r"must end in \.bag"):
            BagWriter(tmp_path / "x.dat", layout)
    with pytest.raises(UsageError, match="only v1 and v3"):
        BagWriter(tmp_path / "x.bag", "v2")
    (tmp_path / "x.idx").write_bytes(bytes(8))
    with pytest.raises(UsageError, match=r"remove .*x\.idx first"):
        BagWriter(tmp_path / "x.bag")
    with pytest.raises(MetadataError, match=r"but .*x\.bag with the records is missing"):
        BagWriter(tmp_path / "x.bag", "v3")


# ---------------------------------------------------------------- appending (v3)


def append(path: Path, *records: bytes) -> None:
    with BagWriter(path, "v3") as writer:
        for record in records:
            writer.append(record)


def test_a_bag_of_two_files_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "x.bag"
    append(path, b"one", b"")
    with BagWriter(path, "v3") as writer:
        assert writer.append(b"three", flush=True) == 2
        assert BagReader(path)[:] == [b"one", b"", b"three"]
        writer.append(b"four")
        assert len(BagReader(path)) == 3
    append(path)
    assert BagReader(path)[:] == [b"one", b"", b"three", b"four"]


@pytest.mark.parametrize("torn", range(1, 8))
def test_torn_tails_are_cut_off_before_more_is_appended(tmp_path: Path, torn: int) -> None:
    path, table = tmp_path / "x.bag", tmp_path / "x.idx"
    append(path, b"one", b"two")
    path.write_bytes(path.read_bytes() + b"thr")
    table.write_bytes(table.read_bytes() + struct.pack("<Q", 11)[:torn])
    assert BagReader(path)[:] == [b"one", b"two"]
    with pytest.warns(TornTailWarning, match=r"x\.bag: cut off what a stopped writer left after the first 2 records"):
        writer = BagWriter(path, "v3")
    writer.append(b"three")
    writer.close()
    assert BagReader(path)[:] == [b"one", b"two", b"three"]
    assert (path.read_bytes(), table.read_bytes()) == (b"onetwothree", struct.pack("<3Q", 3, 6, 11))


@pytest.mark.parametrize("left", [0, 83, 88, 7991])
@pytest.mark.parametrize(
    "one", [BagWriter, lambda path, layout: DatasetWriter(path.parent, {"x": "bytes"}, None, layout)]
)
def test_records_whose_entries_are_not_there_are_not_cut_off(tmp_path: Path, left: int, one: Any) -> None:
    path, table = tmp_path / "x.bag", tmp_path / "x.idx"
    append(path, *(b"record %03d" % k for k in range(1000)))
    os.truncate(table, left)
    path.write_bytes(path.read_bytes() + b"rec")
    before = path.read_bytes(), table.read_bytes()
    with pytest.raises(MetadataError, match="wait for a copy to finish"):
        one(path, "v3")
    assert before == (path.read_bytes(), table.read_bytes())


def test_a_torn_tail_is_not_cut_off_where_that_warning_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.bag"
    append(path, b"one", b"two")
    path.write_bytes(b"onetwothr")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TornTailWarning):
            BagWriter(path, "v3")
    assert path.read_bytes() == b"onetwothr"
    with pytest.warns(TornTailWarning):
        append(path)  # the lock has been released


def test_what_was_not_flushed_is_forgotten_when_the_block_fails(tmp_path: Path) -> None:
    path = tmp_path / "x.bag"
    with pytest.raises(KeyError), BagWriter(path, "v3") as writer:
        writer.append(b"kept")
        writer.flush()
        writer.append(b"x" * 3_000_000)
        raise KeyError
    assert BagReader(path)[:] == [b"kept"]
    assert path.read_bytes() == b"kept"


def test_a_killed_writer_leaves_what_it_had_flushed(tmp_path: Path) -> None:
    program = """
import os, sys
from fffs.granular import BagWriter
old, new = BagWriter(sys.argv[1], "v3"), BagWriter(sys.argv[2])
for writer in (old, new):
    writer.append(b"kept")
    writer.flush()
    writer.append(b"x" * 3_000_000)
os._exit(9)
"""
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "a.bag", tmp_path / "b.bag"], check=False)
    assert done.returncode == 9
    assert BagReader(tmp_path / "a.bag")[:] == [b"kept"]
    assert not (tmp_path / "b.bag").exists()
    with pytest.raises(MetadataError, match=r"a\.bag: 3000000 bytes follow the 1 records") as refused:
        append(tmp_path / "a.bag", b"more")
    subprocess.run(str(refused.value).split(": ")[-1], shell=True, check=True)  # the command in the message
    append(tmp_path / "a.bag", b"more")
    assert BagReader(tmp_path / "a.bag")[:] == [b"kept", b"more"]
    with BagWriter(tmp_path / "b.bag"):
        pass
    assert sorted(name.name for name in tmp_path.iterdir()) == ["a.bag", "a.idx", "b.bag"]


def test_only_one_writer_appends(tmp_path: Path) -> None:
    with BagWriter(tmp_path / "x.bag", "v3") as writer:
        writer.append(b"mine")
        with pytest.raises(WriterError, match="another writer"):
            BagWriter(tmp_path / "x.bag", "v3")
    assert BagReader(tmp_path / "x.bag")[:] == [b"mine"]


def test_a_bag_that_is_appended_to_is_not_replaced(tmp_path: Path) -> None:
    path, other = tmp_path / "x.bag", tmp_path / "other.bag"
    append(other, b"other")
    for layout in ("v1", "v3"):
        with BagWriter(path, "v3") as writer:
            writer.append(b"first", flush=True)
            for options in ({"layout": layout}, {"to": "tfrecord"}):
                with pytest.raises(WriterError, match=r"x\.bag: a writer is appending to it"):
                    fffs.convert(other, path, force=True, **options)
            writer.append(b"second")
        assert BagReader(path)[-2:] == [b"first", b"second"]
    fffs.convert(other, path, layout="v3", force=True)
    assert BagReader(path)[:] == [b"other"]


@pytest.mark.parametrize("name", ["x.bag", "x.idx"])
def test_a_writer_whose_bag_was_replaced_says_so_at_its_next_flush(tmp_path: Path, name: str) -> None:
    for how in ("replaced", "removed"):
        writer = BagWriter(tmp_path / "x.bag", "v3")
        writer.append(b"first", flush=True)
        (tmp_path / "new").write_bytes(b"")
        if how == "replaced":
            os.rename(tmp_path / "new", tmp_path / name)
        else:
            os.unlink(tmp_path / name)
        with pytest.raises(WriterError, match=rf"{name}: it was replaced or removed"):
            writer.append(b"second", flush=True)
        for file in tmp_path.iterdir():
            file.unlink()


def test_a_bag_that_was_replaced_before_its_writer_had_the_lock_is_not_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, new = tmp_path / "x.bag", tmp_path / "new.bag"
    append(path, b"first")
    append(new, b"one", b"two")
    original = AppendedBag._lock

    def late(bag: AppendedBag) -> None:
        for end in (".bag", ".idx"):
            os.rename(new.with_suffix(end), path.with_suffix(end))
        original(bag)

    monkeypatch.setattr(AppendedBag, "_lock", late)
    with pytest.raises(WriterError, match="it was replaced or removed"):
        BagWriter(path, "v3")
    assert BagReader(path)[:] == [b"one", b"two"]


def break_by_link(path: Path) -> None:
    os.rename(path, path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda path: path.with_suffix(".idx").unlink(), UsageError),
        (lambda path: os.truncate(path, 5), MetadataError),
        (lambda path: path.with_suffix(".idx").write_bytes(struct.pack("<2Q", 6, 3)), MetadataError),
        (break_by_link, WriteError),
        (lambda path: break_by_link(path.with_suffix(".idx")), WriteError),
        (lambda path: (path.unlink(), os.mkfifo(path)), FffsError),
    ],
    ids=["no table", "cut", "damaged", "link", "link of the table", "fifo"],
)
def test_nothing_is_appended_to_what_is_damaged(
    tmp_path: Path, spoil: Callable[[Path], object], error: type[FffsError]
) -> None:
    path = tmp_path / "x.bag"
    append(path, b"one", b"two")
    spoil(path)
    before = {name.name: name.read_bytes() for name in tmp_path.iterdir() if name.is_file()}
    with pytest.raises(error, match=r"x\.(bag|idx)"):
        BagWriter(path, "v3")
    assert {name.name: name.read_bytes() for name in tmp_path.iterdir() if name.is_file()} == before


def test_a_child_of_fork_neither_finishes_nor_spoils_its_parents_bag(tmp_path: Path) -> None:
    for layout in ("v1", "v3"):
        path = tmp_path / layout / "x.bag"
        path.parent.mkdir()
        writer = BagWriter(path, layout)
        writer.append(b"parent's")
        child = os.fork()
        if child == 0:
            writer.__del__()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        writer.close()
        assert BagReader(path)[:] == [b"parent's"]


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", MIB) as disk:
        append(disk / "x.bag", b"one")
        with BagWriter(disk / "y.bag") as old:
            old.append(b"old")
        for name, layout in (("x.bag", "v3"), ("y.bag", "v1")):
            writer = BagWriter(disk / name, layout)
            with pytest.raises(WriteError, match="No space left"):
                for _ in range(24):
                    writer.append(bytes(100_000))
                writer.flush()
            with pytest.raises(WriterError):
                writer.append(b"again")
        assert BagReader(disk / "x.bag")[:] == [b"one"]
        assert BagReader(disk / "y.bag")[:] == [b"old"]
