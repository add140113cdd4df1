"""Files that are not local: alone and beside local files in one store; they are read, verified, copied and shown."""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from inside import (
    CHECK_CRC32,
    CHECK_CRC32C,
    CHECK_NONE,
    LocalFile,
    NewFile,
    RecordStore,
    SourceFile,
    engine,
    find_format,
    load_file,
    packed,
)
from memory_file import MemoryFile

import fffs
from fffs.errors import ChecksumError, ClosedError, MetadataError, ReadError, TruncatedError

RECORDS = [bytes([k]) * (k * 37_000) for k in range(40)]  # some larger than a block

WRITERS = {
    "x.ffr": lambda path: fffs.FileWriter(path, len(RECORDS)),
    "x.tfrecord": fffs.tfrecord.TFRecordWriter,
    "part-0": lambda path: fffs.ofrecord.OFRecordWriter(path, allow_empty=True),
}


def written(path: Path) -> bytes:
    if path.suffix == ".bag":
        with fffs.granular.BagWriter(path) as bag:
            for record in RECORDS:
                bag.append(record)
    else:
        with WRITERS[path.name](path) as writer:
            for record in RECORDS:
                writer.write_one(record)
    return path.read_bytes()


@pytest.fixture(params=[*WRITERS, "x.bag"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / request.param
    written(path)
    return path


def in_memory(path: Path) -> SourceFile:
    return load_file(MemoryFile(f"memory/{path.name}", path.read_bytes()), find_format)


def check_all(store: RecordStore, records: list[bytes]) -> None:
    """Check that each way of reading returns the records."""
    n = len(records)
    assert store.n == n
    order = [*range(n - 1, -1, -1), 0, n // 2, n - 1]
    assert [array.tobytes() for array in store.read(order)] == [records[k] for k in order]
    data, offsets = store.read_joined(range(n))
    assert data.tobytes() == b"".join(records)
    out = np.zeros(sum(map(len, records)), np.uint8)
    assert store.read_into(range(n), out).tolist() == offsets.tolist()
    assert out.tobytes() == data.tobytes()
    store.prefetch(order)
    assert [store.read_one(k).tobytes() for k in order] == [records[k] for k in order]
    for k in order:
        assert store.read_range(k, 5, 70_000).tobytes() == records[k][5:70_000]
    assert store.verify(np.arange(n)) == []


def test_a_file_in_memory_is_read_as_a_local_one(path: Path) -> None:
    with_index = in_memory(path)
    store = RecordStore([with_index])
    check_all(store, RECORDS)
    assert not store.use_direct()
    store.close()
    assert isinstance(with_index.file, MemoryFile)
    assert with_index.file.closed
    with pytest.raises(ClosedError):
        store.read([0])


def test_files_of_both_kinds_are_one_store(path: Path) -> None:
    files = [in_memory(path), load_file(LocalFile.open(path), find_format), in_memory(path)]
    store = RecordStore(files)
    check_all(store, RECORDS * 3)
    assert [store.locate(k)[0].index.path for k in (0, 40, 80)] == [
        "memory/" + path.name,
        str(path),
        "memory/" + path.name,
    ]
    assert store.read([]) == []
    store.close()


@pytest.mark.parametrize("at", range(3))
def test_damage_is_found_in_whatever_kind_of_file_it_is(tmp_path: Path, at: int) -> None:
    path = tmp_path / "x.ffr"
    data = bytearray(written(path))
    index = fffs.FileReader(path).index()
    data[int(index.starts[30]) + 7] ^= 1
    bad = load_file(MemoryFile("memory/bad", bytes(data)), find_format)
    good = [in_memory(path), load_file(LocalFile.open(path), find_format)]
    store = RecordStore([*good[:at], bad, *good[at:]])
    number = 40 * at + 30
    others = [k for k in range(120) if k != number]
    assert [array.tobytes() for array in store.read(others)] == [RECORDS[k % 40] for k in others]
    for read in (
        lambda: store.read(range(120)),
        lambda: store.read_one(number),
        lambda: store.read_range(number, 0, 5),
    ):
        with pytest.raises(ChecksumError, match="memory/bad: record 30") as caught:
            read()
        assert (caught.value.number, caught.value.expected) == (number, zlib.crc32(RECORDS[30]))
    assert [number for number, _ in store.verify(np.arange(120))] == [number]
    unverified = RecordStore([replace(file, check=False) for file in store.files], closes_files=False)
    assert unverified.read_one(number).tobytes() != RECORDS[30]
    unverified.close()
    assert store.read_one(0).tobytes() == RECORDS[0], "what was borrowed stays open"
    store.close()


def test_what_cannot_be_read_is_an_error_for_its_records_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.ffr"
    written(path)
    source = in_memory(path)
    assert isinstance(source.file, MemoryFile)
    source.file.fails_at = int(source.index.starts[20])
    store = RecordStore([source])
    assert store.read_one(19).tobytes() == RECORDS[19]
    for read in (lambda: store.read(range(40)), lambda: store.read_one(20), lambda: store.read_range(20, 0, 1)):
        with pytest.raises(ReadError, match=r"memory/x\.ffr") as caught:
            read()
        assert caught.value.errno == errno.EIO
    assert [number for number, _ in store.verify(np.arange(40))] == list(range(20, 40))
    store.close()


def test_a_file_in_memory_that_is_cut_keeps_the_records_before(tmp_path: Path) -> None:
    path = tmp_path / "x.ffr"
    data = written(path)
    store = RecordStore([load_file(MemoryFile("memory/cut", data[: -len(RECORDS[39]) - 1]), find_format)])
    assert store.read_one(37).tobytes() == RECORDS[37]
    with pytest.raises(TruncatedError, match="memory/cut: record 38"):
        store.read([38])
    store.close()
    memory = MemoryFile("memory/x.ffr", data[:100])
    with pytest.raises(MetadataError, match=r"memory/x\.ffr"):
        load_file(memory, find_format)
    assert memory.closed


def test_records_are_copied_out_of_memory(tmp_path: Path, path: Path) -> None:
    store = RecordStore([in_memory(path), load_file(LocalFile.open(path), find_format)])
    for number in (39, 79):
        fd = os.open(tmp_path / "copy", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        counted: list[int] = []
        store.copy_to(number, NewFile(fd, "copy"), counted.append)
        assert (os.pread(fd, 1 << 22, 0), sum(counted)) == (RECORDS[39], len(RECORDS[39]))
        os.close(fd)
    store.close()


def test_a_packed_folder_in_memory_has_its_tree(tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "a").write_bytes(b"a" * 3_000_000)
    (tmp_path / "in" / "b").write_bytes(b"b")
    fffs.pack_folder(tmp_path / "in", tmp_path / "x.ffr")
    loaded = packed.load(in_memory(tmp_path / "x.ffr"))
    assert loaded.lossless
    node = loaded.tree.follow(b"deep/a")
    assert node is not None
    store = RecordStore([loaded.file])
    assert store.read_range(loaded.tree.record(node), 2_999_999, 9_999_999).tobytes() == b"a"
    store.close()


def requests_for(file: MemoryFile, checks: list[tuple[int, int, int, int]]) -> Iterator[tuple[int, int]]:
    """Return the status and the checksum of requests (offset, length, kind, expected) without destinations."""
    requests = np.zeros(len(checks), engine.REQUEST)
    for k, (offset, length, kind, expected) in enumerate(checks):
        requests[k]["offset"], requests[k]["length"] = offset, length
        requests[k]["check"], requests[k]["expected"] = kind, expected
    assert file.read_batch(requests) == (not requests["status"].any())
    yield from zip(requests["status"].tolist(), requests["actual"].tolist(), strict=True)


def test_requests_that_keep_nothing_are_answered_as_by_the_engine(tmp_path: Path) -> None:
    data = np.random.default_rng(1).bytes(5 * engine.BLOCK + 3)
    (tmp_path / "x").write_bytes(data)
    crc = zlib.crc32(data[7:-1])
    asked = [
        (7, len(data) - 8, CHECK_CRC32, crc),
        (7, len(data) - 8, CHECK_CRC32, crc ^ 1),
        (0, len(data) + 1, CHECK_NONE, 0),
        (0, 0, CHECK_CRC32, 0),
        (0, 100, CHECK_CRC32C, 5),
    ]
    with LocalFile.open(tmp_path / "x") as local:
        requests = np.zeros(len(asked), engine.REQUEST)
        for k, (offset, length, kind, expected) in enumerate(asked):
            requests[k]["offset"], requests[k]["length"], requests[k]["fd"] = offset, length, local.descriptor
            requests[k]["check"], requests[k]["expected"] = kind, expected
        local.read_batch(requests)
    ours = list(requests_for(MemoryFile("memory", data), asked))
    assert [status for status, _ in ours] == requests["status"].tolist()
    assert [ours[k][1] for k in (0, 1, 3, 4)] == [int(requests["actual"][k]) for k in (0, 1, 3, 4)]
