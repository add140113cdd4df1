"""The forms of a batch: a list of arrays, one joined buffer, memory of the caller, an awaited list."""

from __future__ import annotations

import asyncio
import itertools
import mmap
import os
import pickle
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import trio
import trio.testing
from cached import Cached
from engine_model import nothing_cached, wait_until
from inside import asynchronous, engine

from fffs import FileReader, FileWriter
from fffs.errors import ChecksumError, ClosedError, RecordIndexError, TruncatedError, UsageError

CONTENTS = [bytes([i]) * size for i, size in enumerate([10, 0, 1, 5000, 64, 200_000, 3])]
BATCHES = [[], [0], [1], [1, 1], [3, 0, 3, -1], list(range(len(CONTENTS))), [6, 5, 4, 3, 2, 1, 0] * 20]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "records.ffr"
    with FileWriter(target, len(CONTENTS)) as writer:
        for content in CONTENTS:
            writer.write_one(content)
    return target


@pytest.fixture
def reader(path: Path) -> Iterator[FileReader]:
    with FileReader(path) as reader:
        yield reader


def expected(batch: list[int]) -> list[bytes]:
    return [CONTENTS[i] for i in batch]


def parts(data: np.ndarray, offsets: np.ndarray) -> list[bytes]:
    assert data.dtype == np.uint8 and data.ndim == 1
    assert offsets.dtype == np.int64 and offsets[0] == 0
    return [data[a:b].tobytes() for a, b in itertools.pairwise(offsets.tolist())]


@pytest.mark.parametrize("batch", BATCHES, ids=len)
def test_all_forms_have_the_same_bytes(reader: FileReader, batch: list[int]) -> None:
    wanted = expected(batch)
    assert [array.tobytes() for array in reader.read(batch)] == wanted
    data, offsets = reader.read_joined(batch)
    assert parts(data, offsets) == wanted and len(data) == offsets[-1]
    out = np.full(len(data) + 5, 0xEE, np.uint8)
    assert np.array_equal(reader.read_into(batch, out), offsets)
    assert parts(out, offsets) == wanted
    assert out[len(data) :].tobytes() == b"\xee" * 5, "touched what is behind the last record"
    assert reader.lengths(batch).tolist() == [len(content) for content in wanted]


def test_into_anything_that_is_writable_memory(reader: FileReader) -> None:
    wanted = b"".join(expected([3, 0]))
    with mmap.mmap(-1, 8192) as mapping:
        for out in (bytearray(5010), memoryview(bytearray(5010)), mapping, np.zeros((3, 1670), np.int8), np.zeros(700)):
            reader.read_into([3, 0], out)
            assert bytes(memoryview(out).cast("B"))[:5010] == wanted
            del out


class Shared:
    """Looks like a tensor to fffs."""

    def __init__(self) -> None:
        self.memory = np.zeros(100, np.uint8)

    def numpy(self) -> np.ndarray:
        return self.memory


def test_into_a_tensor(reader: FileReader) -> None:
    tensor = Shared()
    reader.read_into([0], tensor)
    assert tensor.memory.tobytes() == CONTENTS[0] + bytes(90)


READ_ONLY = np.zeros(100, np.uint8)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("out", "why"),
    [
        (b"x" * 100, "read-only"),
        (READ_ONLY, "read-only"),
        (np.zeros(200, np.uint8)[::2], "not contiguous"),
        ([0] * 100, "list"),
        (None, "NoneType"),
        (bytearray(9), "10 bytes in total"),
        (bytearray(), "10 bytes in total"),
    ],
)
def test_into_what_cannot_take_it(reader: FileReader, out: object, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        reader.read_into([0], out)


def test_bad_numbers_and_bad_records(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(CONTENTS[3]) + 77] ^= 1
    path.write_bytes(data)
    with FileReader(path) as reader:
        for read in (reader.read_joined, lambda batch: reader.read_into(batch, bytearray(10_000))):
            with pytest.raises(ChecksumError, match="record 3"):
                read([0, 3])
            with pytest.raises(RecordIndexError):
                read([0, len(CONTENTS)])
            with pytest.raises(UsageError):
                read([0.5])
        assert parts(*reader.read_joined([0, 2])) == expected([0, 2])
    with FileReader(path, check_data=False) as reader:
        assert parts(*reader.read_joined([3])) != expected([3])


def test_awaited_by_trio(reader: FileReader) -> None:
    async def main() -> None:
        assert parts(*await reader.read_joined_async([5, 0])) == expected([5, 0])
        async with trio.open_nursery() as nursery:
            for batch in BATCHES:
                nursery.start_soon(check, batch)

    async def check(batch: list[int]) -> None:
        assert [array.tobytes() for array in await reader.read_async(batch)] == expected(batch)

    trio.run(main)


def test_awaited_by_asyncio(reader: FileReader) -> None:
    async def main() -> None:
        results = await asyncio.gather(*(reader.read_async(batch) for batch in BATCHES))
        assert [[array.tobytes() for array in result] for result in results] == [expected(batch) for batch in BATCHES]
        with pytest.raises(RecordIndexError):
            await reader.read_joined_async([len(CONTENTS)])

    asyncio.run(main())


def test_awaiting_does_not_block_the_loop(reader: FileReader, monkeypatch: pytest.MonkeyPatch) -> None:
    other_ran = threading.Event()
    read = reader.read

    def slow(batch: list[int]) -> list[np.ndarray]:
        assert other_ran.wait(10), "the loop stood still during a read"
        return read(batch)

    monkeypatch.setattr(reader, "read", slow)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.read_async, [0])
            await trio.testing.wait_all_tasks_blocked()
            other_ran.set()

    trio.run(main)


# ---------------------------------------------------------------- prefetching


def test_what_was_announced_is_in_memory_soon(tmp_path: Path) -> None:
    path = tmp_path / "large.ffr"
    with closing(Cached(path, 40, 100_000)) as cached, FileReader(path) as reader:
        reader.prefetch([7, 30])
        wait_until(lambda: 7 in cached and 30 in cached)
        assert [array[0] for array in reader.read([30, 7])] == [30, 7]


@pytest.mark.parametrize("backend", engine.NAMES)
def test_neighbours_come_along_when_they_are_wanted(tmp_path: Path, backend: str) -> None:
    path = tmp_path / "small.ffr"
    engine.select(backend)
    with closing(Cached(path, 100, 10_000)) as cached, FileReader(path) as reader:
        assert [array[0] for array in reader.read([50, 3])] == [50, 3]
        assert 53 not in cached
        assert 47 not in cached
        cached.drop()
        reader.use_blocks(1 << 17)
        copy = pickle.loads(pickle.dumps(reader))
        for each in (reader, copy):
            with nothing_cached():
                assert [array[0] for array in each.read([50, 3])] == [50, 3]
            wait_until(lambda: all(record in cached for record in range(40, 52)))  # 393,216 to 524,288
            assert 60 not in cached
            assert 30 not in cached
            cached.drop()
        copy.close()
        assert [array[0] for array in reader.read(range(100))] == list(range(100))
    engine.select()


def test_what_is_announced_comes_with_its_neighbours(tmp_path: Path) -> None:
    path = tmp_path / "small.ffr"
    with closing(Cached(path, 100, 10_000)) as cached, FileReader(path) as reader:
        reader.use_blocks(1 << 17)
        reader.prefetch([50])
        wait_until(lambda: all(record in cached for record in range(40, 52)))  # 393,216 to 524,288
        assert 60 not in cached
        assert 30 not in cached


def test_blocks_to_read_around_records_have_a_size(reader: FileReader) -> None:
    for size in (-1, (1 << 30) + 1):
        with pytest.raises(UsageError, match="1073741824"):
            reader.use_blocks(size)
    for size in (1, 4097, 1 << 30, 0):
        reader.use_blocks(size)
        assert [array.tobytes() for array in reader.read(range(len(CONTENTS)))] == CONTENTS


def test_announcing_refuses_what_reading_refuses(path: Path, reader: FileReader) -> None:
    reader.prefetch([])
    reader.prefetch(range(len(CONTENTS)))
    reader.prefetch([-1, 1, 1])
    with pytest.raises(RecordIndexError):
        reader.prefetch([len(CONTENTS)])
    with pytest.raises(UsageError):
        reader.prefetch(["a"])  # type: ignore[list-item]
    os.truncate(path, path.stat().st_size - 1000)
    reader.prefetch(range(len(CONTENTS)))  # nothing is read yet
    with FileReader(path) as cut, pytest.raises(TruncatedError):
        cut.prefetch([6])
    reader.close()
    with pytest.raises(ClosedError):
        reader.prefetch([0])


@pytest.mark.parametrize(("version", "name"), [("0.22.2", "cancellable"), ("0.23.0", "abandon_on_cancel")])
def test_a_call_in_a_thread_is_abandoned_with_every_version_of_trio(
    version: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trio, "__version__", version)
    asynchronous._name_of_abandoning.cache_clear()
    try:
        assert asynchronous.abandoning(True) == {name: True}
    finally:
        asynchronous._name_of_abandoning.cache_clear()


def test_a_task_of_a_trio_without_in_trio_run_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(trio.lowlevel, "in_trio_run", raising=False)

    async def runs() -> bool:
        return asynchronous._runs(trio)

    assert trio.run(runs) and not asynchronous._runs(trio) and not asyncio.run(runs())
