"""Common to TFRecord and OFRecord files: CRC-32C, the scan for frames, the writer, and hostile lengths."""

from __future__ import annotations

import errno
import gzip
import json
import os
import random
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import frame_files
import pytest
from builders import small_disk
from frame_files import of_frame, path_of, tf_frame, tf_head
from fuzz import frames, fuzz_ofrecord, fuzz_tfrecord, seeds_frames
from inside import CHECK_CRC32C, KINDS_OF_CHECKSUMS, OFRECORD, SUFFIX, TFRECORD, LocalFile, crc32c, ffi, lib, scan
from inside import mask_crc32c as mask
from inside import unmask_crc32c as unmask

from fffs import ofrecord, tfrecord
from fffs.errors import ReadError, SourceChangedError, WriteError, WriterError

TIB = 1 << 40

# ---------------------------------------------------------------- CRC-32C

DATA = random.Random(32).randbytes(64 << 10)


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
    ],
)
def test_crc32c_gives_the_published_answers(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc
    assert lib.fffs_crc32c_by_tables(0, data, len(data)) == crc


@pytest.mark.parametrize("align", [0, 1, 7, 8, 63])
def test_crc32c_is_right_for_every_length_with_and_without_the_instruction(align: int) -> None:
    running = 0xFFFFFFFF
    for length in range(2000):
        part = DATA[align : align + length]
        assert crc32c(part) == running ^ 0xFFFFFFFF, length
        assert lib.fffs_crc32c_by_tables(0, part, length) == running ^ 0xFFFFFFFF
        running = running >> 8 ^ frame_files.TABLE[(running ^ DATA[align + length]) & 255]


@pytest.mark.parametrize("length", [12_287, 12_288, 12_289, 13_055, 13_056, 25_000, 64 << 10])
def test_crc32c_of_long_pieces_joins_its_strides(length: int) -> None:
    assert crc32c(DATA[-length:]) == frame_files.crc32c(DATA[-length:])


def test_crc32c_continues_and_combines_at_any_place() -> None:
    chance = random.Random(1)
    for _ in range(200):
        a, b = sorted(chance.randrange(40_000) for _ in range(2))
        whole, head, tail = crc32c(DATA[:b]), crc32c(DATA[:a]), crc32c(DATA[a:b])
        assert crc32c(DATA[a:b], head) == whole
        assert KINDS_OF_CHECKSUMS[CHECK_CRC32C].combine(head, tail, b - a) == whole


def test_masking_is_undone() -> None:
    for crc in (0, 1, 0x8000, 0xFFFFFFFF, 0x12345678):
        assert mask(crc) == frame_files.masked(crc)
        assert unmask(mask(crc)) == crc


def test_crc32c_knows_whether_the_processor_helps() -> None:
    flags = Path("/proc/cpuinfo").read_text()
    helps = " sse4_2 " in flags or " crc32 " in flags
    assert ffi.string(lib.fffs_crc32c_name()) == (b"processor" if helps else b"tables")
    assert lib.fffs_crc32c_self_test() == 0
    assert CHECK_CRC32C == 2


# ---------------------------------------------------------------- the scan

LENGTHS = [0, 1, 4095, 4096, 4097, 65_536 - 16, 65_536, 70_000, 3, 3, 200_000, 0, 5]
"""Tests sizes around the limits at which the scan changes between large pieces and small reads."""


@pytest.mark.parametrize(
    ("form", "frame", "model"),
    [(TFRECORD, tf_frame, frames.tf_frames), (OFRECORD, of_frame, frames.of_frames)],
    ids=["tfrecord", "ofrecord"],
)
def test_frames_of_all_sizes_are_found(tmp_path: Path, form: Any, frame: Any, model: Any) -> None:
    chance = random.Random(3)
    cached = {length: frame(DATA[:length] if length <= len(DATA) else bytes(length)) for length in LENGTHS}
    data = b"".join(cached[chance.choice(LENGTHS)] for _ in range(400))
    path = path_of(tmp_path, "file", data)
    with LocalFile.open(path) as file:
        index, error = scan(file, form)
    assert error is None
    assert (frames.table(index), index.file_size) == (model(data)[0], len(data))


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_cut_anywhere_leaves_the_records_before_it(tmp_path: Path, cut: int) -> None:
    for form, frame, model in ((TFRECORD, tf_frame, frames.tf_frames), (OFRECORD, of_frame, frames.of_frames)):
        data = frame(b"one") + frame(b"") + frame(b"three")
        data = data[: max(len(data) - cut, 0)]
        rows, at = model(data)
        path = path_of(tmp_path, "file", data)
        with LocalFile.open(path) as file:
            index, error = scan(file, form)
        assert frames.table(index) == rows
        assert (error is None) == (at == len(data))
        if error is not None:
            assert (error.path, error.record, error.offset) == (str(path), len(rows), at)


@pytest.mark.parametrize("result", [-errno.EIO, 0])
@pytest.mark.parametrize("nth", [1, 2, 3, 7])
def test_a_failed_read_is_an_error_and_a_short_file_too(tmp_path: Path, nth: int, result: int) -> None:
    path = path_of(tmp_path, "file", tf_frame(bytes(70_000)) * 8)
    lib.fffs_fault_set(lib.FFFS_FAULT_PREAD, nth, 1, result)
    try:
        with LocalFile.open(path) as file, pytest.raises(ReadError if result else SourceChangedError, match="file"):
            scan(file, TFRECORD)
    finally:
        lib.fffs_fault_set(lib.FFFS_FAULT_NONE, 0, 0, 0)


def test_short_reads_are_continued(tmp_path: Path) -> None:
    path = path_of(tmp_path, "file", b"".join(tf_frame(bytes(k * 700)) for k in range(12)))
    lib.fffs_fault_set(lib.FFFS_FAULT_PREAD, 1, 1 << 40, 3)
    try:
        with LocalFile.open(path) as file:
            index, error = scan(file, TFRECORD)
        assert lib.fffs_fault_seen(lib.FFFS_FAULT_PREAD) > 24
    finally:
        lib.fffs_fault_set(lib.FFFS_FAULT_NONE, 0, 0, 0)
    assert error is None
    assert frames.table(index) == frames.tf_frames(path.read_bytes())[0]


def test_large_records_cost_one_small_read_each(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with tfrecord.TFRecordWriter(path) as writer:
        for _ in range(100):
            writer.write_one(bytes(100_000))
    lib.fffs_fault_set(lib.FFFS_FAULT_PREAD, 1 << 40, 1, 0)  # counts, and never fails
    try:
        with LocalFile.open(path) as file:
            index, _ = scan(file, TFRECORD)
        assert len(index) == 100
        assert lib.fffs_fault_seen(lib.FFFS_FAULT_PREAD) <= 102
    finally:
        lib.fffs_fault_set(lib.FFFS_FAULT_NONE, 0, 0, 0)


def test_many_empty_records_are_believed_but_not_a_hole(tmp_path: Path) -> None:
    limit = lib.FFFS_EMPTY_FRAMES
    for count, good in ((limit, True), (limit + 1, False)):
        path = path_of(tmp_path, "file", of_frame(b"x") + bytes(8 * count) + of_frame(b"y"))
        with LocalFile.open(path) as file:
            index, error = scan(file, OFRECORD)
        assert (error is None) == good
        assert len(index) == limit + 1 + good


# ---------------------------------------------------------------- writers

Writers = Callable[[Path], Any]


@pytest.fixture(params=[tfrecord.TFRecordWriter, ofrecord.OFRecordWriter], ids=["tfrecord", "ofrecord"])
def make(request: pytest.FixtureRequest) -> Writers:
    return request.param  # type: ignore[no-any-return]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_when_it_is_complete(tmp_path: Path, make: Writers) -> None:
    path = tmp_path / "file"
    with make(path) as writer:
        writer.write_one(b"data")
        assert not path.exists()
    assert names(tmp_path) == ["file"]
    writer.close()
    with pytest.raises(WriterError, match="closed"):
        writer.write_one(b"more")


def test_an_exception_leaves_the_old_file_and_nothing_else(tmp_path: Path, make: Writers) -> None:
    path = path_of(tmp_path, "file", b"old")
    with pytest.raises(ZeroDivisionError), make(path) as writer:
        writer.write_one(b"data")
        raise ZeroDivisionError
    del writer
    assert (names(tmp_path), path.read_bytes()) == (["file"], b"old")


def test_a_writer_that_is_dropped_leaves_nothing(tmp_path: Path, make: Writers) -> None:
    writer = make(tmp_path / "file")
    writer.write_one(b"data")
    del writer
    assert names(tmp_path) == []


def test_a_killed_writer_leaves_the_old_file_and_the_next_one_clears_up(tmp_path: Path, make: Writers) -> None:
    path = path_of(tmp_path, "file", b"old")
    code = (
        "import os, signal, sys; from fffs import ofrecord, tfrecord\n"
        f"w = {'tfrecord' if make is tfrecord.TFRecordWriter else 'ofrecord'}.{make.__name__}(sys.argv[1])\n"
        "for _ in range(100): w.write_one(bytes(100_000))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert path.read_bytes() == b"old"
    assert next(name for name in names(tmp_path) if name != "file").endswith(SUFFIX)
    with make(path) as writer:
        writer.write_one(b"new")
    assert names(tmp_path) == ["file"]


def test_a_full_disk_is_a_typed_error_and_leaves_nothing(tmp_path: Path, make: Writers) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        with pytest.raises(WriteError, match=os.strerror(errno.ENOSPC)), make(disk / "file") as writer:
            for _ in range(100):
                writer.write_one(bytes(100_000))
        assert names(disk) == []


def test_only_contiguous_buffers_are_records(tmp_path: Path, make: Writers) -> None:
    with make(tmp_path / "file") as writer:
        for bad in ("text", 5, None, memoryview(b"abcdef")[::2]):
            with pytest.raises(TypeError):
                writer.write_one(bad)
        writer.write_one(bytearray(b"good"))
    assert writer.count == 1


# ---------------------------------------------------------------- seeds of fuzzing


@pytest.mark.parametrize("target", ["tfrecord", "ofrecord"])
def test_seeds_pass_a_target(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFFS_CACHE", "off")
    one_input = {"tfrecord": fuzz_tfrecord, "ofrecord": fuzz_ofrecord}[target].one_input
    for name, data in getattr(seeds_frames, target)():
        try:
            one_input(data)
        except Exception as error:
            raise AssertionError(f"input {name} of the fuzz target {target}: {error!r}") from error


# ---------------------------------------------------------------- wrong lengths


def field(number: int, value: bytes) -> bytes:
    """Return a field of bytes."""
    size, out = len(value), bytearray()
    while size > 127:
        out.append(size & 127 | 128)
        size >>= 7
    return bytes([number << 3 | 2, *out, size]) + value


def nested(depth: int) -> bytes:
    """Return nested fields of a number that no message defines."""
    data = b""
    for _ in range(depth):
        data = field(7, data)
    return data


def claiming(claim: int) -> bytes:
    """Return an entry of a map with a wrong length."""
    out = bytearray(b"\n")
    while claim > 127:
        out.append(claim & 127 | 128)
        claim >>= 7
    return bytes([*out, claim]) + b"\n\x01a"


def messages(numbers: int, feature: Callable[[bytes], bytes]) -> dict[str, tuple[bytes, str]]:
    """Return maps, and how decoding them ends. numbers: the kind of int64 lists; feature: encodes an entry's value."""

    def one(content: bytes) -> bytes:
        return field(1, field(1, b"a") + feature(content))

    return {
        "deep": (nested(2000), "passed"),
        "deep-in-a-feature": (one(nested(2000)), "passed"),
        "claims-2-to-40": (claiming(1 << 40), "MessageError"),
        "claims-2-to-63": (claiming(1 << 63), "MessageError"),
        "claims-2-to-64-less-1": (claiming((1 << 64) - 1), "MessageError"),
        "eleven-byte-length": (b"\n" + b"\x80" * 10 + b"\x01", "MessageError"),
        "groups": (b"\x0b" * 100_000, "MessageError"),
        "end-of-group": (b"\x0c", "MessageError"),
        "field-0": (b"\x02\x00", "MessageError"),
        "one-name-200000-times": (b"\n\x00" * 200_000, "passed"),
        "100000-names": (b"".join(field(1, field(1, b"%d" % k)) for k in range(100_000)), "passed"),
        "a-name-of-a-mebibyte": (field(1, field(1, b"n" * (1 << 20))), "passed"),
        "a-name-that-is-not-utf-8": (field(1, field(1, b"\xed\xa0\x80")), "MessageError"),
        "500000-empty-items": (one(field(1, b"\n\x00" * 500_000)), "passed"),
        "a-million-numbers": (one(field(numbers, field(1, b"\x01" * 1_000_000))), "passed"),
        "500000-numbers-alone": (one(field(numbers, b"\x08\x01" * 500_000)), "passed"),
        "kinds-in-turn": (one(b"\n\x00\x12\x00" * 200_000), "passed"),
        "a-number-without-end": (one(field(numbers, field(1, b"\xff" * 100_000))), "MessageError"),
        "a-cut-float": (one(field(2, field(1, b"12345"))), "MessageError"),
    }


FRAMES: dict[str, tuple[bytes, int, str]] = {
    # name: (content, size to which a hole extends it or 0, outcome)
    **{
        f"claims-{claim}.{kind}": (tf_frame(b"good") + tf_head(claim) + bytes(100), 0, "FrameError")
        for claim in (1 << 31, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 16, (1 << 64) - 1)
        for kind in ("tfrecord", "stream", "unchecked")
    },
    **{
        f"claims-{claim}.ofrecord": (of_frame(b"good") + struct.pack("<Q", claim) + bytes(100), 0, "FrameError")
        for claim in (1 << 31, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
    },
    "length-0.ofrecord": (of_frame(b"good") + of_frame(b""), 0, "passed"),
    "length-0.tfrecord": (tf_frame(b"good") + tf_frame(b""), 0, "passed"),
    "hole.tfrecord": (b"", TIB, "FrameError"),
    "hole.unchecked": (b"", TIB, "FrameError"),
    "hole.ofrecord": (b"", TIB, "FrameError"),
    "hole.stream": (b"", TIB, "FrameError"),
    "frame-and-hole.ofrecord": (of_frame(b"good"), TIB, "FrameError"),
    "one-record-of-holes.tfrecord": (tf_head(TIB - 16), TIB, "passed"),
    "one-record-of-holes.stream": (tf_head(TIB - 16), TIB, "FrameError"),
    "one-record-of-holes.ofrecord": (struct.pack("<q", TIB - 8), TIB, "passed"),
    "a-gibibyte-of-zeros.stream": (gzip.compress(bytes(1 << 26), 9) * 16, 0, "FrameError"),
    "claims-a-gibibyte-gz.stream": (gzip.compress(tf_head(1 << 30) + bytes(1000)), 0, "FrameError"),
    "claims-a-gibibyte-zlib.stream": (zlib.compress(tf_head(1 << 30) + bytes(1000)), 0, "FrameError"),
    "40000-empty-members.stream": (gzip.compress(b"") * 40_000, 0, "passed"),
}

INDEXES = {
    "a-long-line": b"1" * 1_000_000,
    "zeros": bytes(1_000_000),
    "large-numbers": b"0 " + b"9" * 18 + b"\n" + b"9" * 18 + b" 16\n",
    "huge-numbers": b"0 " + b"9" * 400_000 + b"\n",
    "too-many-lines": b"0 20\n" * 200_000,
    "empty": b"",
}


def hostile_files(folder: Path) -> dict[str, str]:
    """Return path -> required outcome."""
    expected = {}
    for name, (content, size, outcome) in FRAMES.items():
        path = path_of(folder, name, content)
        if size:
            os.truncate(path, size)
        expected[str(path)] = outcome
    for name, (message, outcome) in messages(3, lambda content: field(2, content)).items():
        expected[str(path_of(folder, f"{name}.example", field(1, message)))] = outcome
    for name, (message, outcome) in messages(3, lambda content: field(2, field(1, content))).items():
        expected[str(path_of(folder, f"{name}.sequence", field(2, message)))] = outcome
    for name, (message, outcome) in messages(5, lambda content: field(2, content)).items():
        expected[str(path_of(folder, f"{name}.record", message))] = outcome
    for name, text in INDEXES.items():
        path_of(folder, name, tf_frame(b"good"))
        expected[str(path_of(folder, f"{name}.idx", text))] = "MetadataError"
    return expected


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """Return the required and the actual outcomes of the hostile files, all opened in one process."""
    expected = hostile_files(tmp_path_factory.mktemp("hostile"))
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent), "FFFS_CACHE": "off"}
    command = [sys.executable, "-m", "frame_replay", *expected]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (lines[-1:], done.stderr[-2000:])
    return expected, {line["ends"]: line for line in lines if "ends" in line}


def test_hostile_files_end_as_they_must(hostile: Any) -> None:
    expected, ended = hostile
    wrong = {
        os.path.basename(path): (ended[path]["kind"], ended[path]["why"])
        for path, outcome in expected.items()
        if ended[path]["kind"] != outcome
    }
    assert wrong == {}
    frame_errors = [line for line in ended.values() if line["kind"] == "FrameError"]
    assert all(line["ends"] in line["why"] and "offset" in line["why"] for line in frame_errors)


def test_hostile_files_take_less_than_a_second_and_256_mib(hostile: Any) -> None:
    _, ended = hostile
    assert {path: line["seconds"] for path, line in ended.items() if line["seconds"] >= 1} == {}
    assert {path: line["peak"] for path, line in ended.items() if line["peak"] >= 256 << 20} == {}
