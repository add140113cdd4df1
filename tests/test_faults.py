"""The native engine under injected faults: right bytes or a typed error; nothing is lost, held or in flight afterwards.

Of frequent operations, a sample is made to fail; with FFFS_TEST_EVERY_FAULT set, each one.
"""

from __future__ import annotations

import errno
import functools
import mmap
import os
import random
import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_model import (
    BACKENDS,
    COLD_TRIES,
    FOREVER,
    PATIENCE,
    Batch,
    Record,
    Source,
    buffers,
    fault,
    held,
    in_child,
    later,
    make_cold,
    many_records,
    nothing_cached,
    thread_limit,
    usage,
    wait_for,
    wait_until,
)
from inside import BLOCK, CHECK_NONE, REQUEST, LocalFile, RecordStore, engine, lib, load_source, make_native_store

import fffs
from fffs.errors import ChecksumError, ClosedError, ReadError, TruncatedError

pytest_plugins = ("engine_fixtures",)
pytestmark = pytest.mark.usefixtures("nothing_leaks")

EIO, EINTR, EAGAIN, ENOMEM = errno.EIO, errno.EINTR, errno.EAGAIN, errno.ENOMEM
EBUSY, EINVAL, EPERM, ENODATA, EBADMSG = errno.EBUSY, errno.EINVAL, errno.EPERM, errno.ENODATA, errno.EBADMSG

# The kind of an operation, its result, and the statuses that records may then have.
FAULTS: list[tuple[str, int, list[int]]] = [
    ("PREAD", -EIO, [-EIO]),
    ("PREAD", -EINTR, []),
    ("PREAD", -EAGAIN, []),
    ("PREAD", -ENOMEM, [-ENOMEM]),
    ("PREAD", -errno.EOPNOTSUPP, [-errno.EOPNOTSUPP]),
    ("PREAD", -EBADMSG, [-EIO]),  # not EBADMSG, which means that a checksum differs
    ("PREAD", -ENODATA, [-EIO]),  # and not ENODATA, which means that the file ended
    ("PREAD", 0, [-ENODATA]),
    ("PREAD", 1, []),
    ("PREAD", 4097, []),
    ("URING_SETUP", -EPERM, []),
    ("URING_SETUP", -ENOMEM, []),
    ("URING_SUBMIT", -EINTR, []),
    ("URING_SUBMIT", -EAGAIN, []),
    ("URING_SUBMIT", -EBUSY, []),
    ("URING_SUBMIT", -EIO, []),
    ("URING_COMPLETE", -EIO, [-EIO]),
    ("URING_COMPLETE", -EINTR, []),
    ("URING_COMPLETE", -EAGAIN, []),
    ("URING_COMPLETE", -ENOMEM, []),
    ("URING_COMPLETE", -errno.ECANCELED, []),
    ("URING_COMPLETE", -EINVAL, []),
    ("URING_COMPLETE", -ENODATA, [-EIO]),
    ("URING_COMPLETE", 0, [-ENODATA]),
    ("URING_COMPLETE", 1, []),
    ("URING_COMPLETE", 4097, []),
    ("URING_GET_SQE", 0, []),
    ("AIO_SETUP", -EAGAIN, []),
    ("AIO_SUBMIT", -EAGAIN, []),
    ("AIO_SUBMIT", -EIO, []),
    ("AIO_SUBMIT", 0, []),
    ("AIO_COMPLETE", -EIO, [-EIO]),
    ("AIO_COMPLETE", -EINTR, []),
    ("AIO_COMPLETE", -EAGAIN, []),
    ("AIO_COMPLETE", -EINVAL, []),
    ("AIO_COMPLETE", 0, [-ENODATA]),
    ("AIO_COMPLETE", 1, []),
    ("AIO_COMPLETE", 4097, []),
    ("AIO_WAIT", -EINTR, []),
    ("AIO_WAIT", -EIO, []),
    ("MEMORY", -ENOMEM, [-ENOMEM]),
]

# Faults that must not be permanent: the operation would be retried for ever, or reads would take very long.
ENDLESS = {("PREAD", -EINTR), ("PREAD", -EAGAIN), ("PREAD", 1), ("URING_COMPLETE", 1), ("AIO_COMPLETE", 1)}

CASES = [
    pytest.param(backend, *case, way, id=f"{backend}-{case[0]}-{errno.errorcode.get(-case[1], case[1])}-{way}")
    for backend in BACKENDS
    for case in FAULTS
    for way in ("source", "direct")  # with the page cache, or, for cold ones, without it
    if case[0] in ("PREAD", "MEMORY") or case[0].startswith(backend.upper())
    if way == "source" or backend != "pread"
]


def kind_of(name: str) -> int:
    return int(getattr(lib, f"FFFS_FAULT_{name}"))


def which(seen: int, sample: int) -> list[int]:
    """Select operations that are to fail: the first and the last, and a sample with more of them at the beginning."""
    if os.environ.get("FFFS_TEST_EVERY_FAULT"):
        return list(range(1, seen + 1))
    spread = {1 + round((seen - 1) * (i / (sample - 1)) ** 1.5) for i in range(sample)}
    return sorted({nth for nth in (*range(1, 4), *spread) if nth <= seen})


def usually(attempt: Callable[[int, int], int]) -> int:
    """Return how many operations there are if none fails."""
    for _ in range(COLD_TRIES):  # sometimes the disk is as fast as the page cache, and the backend has no work
        if (seen := attempt(FOREVER, 1)) > 0:
            return seen
    pytest.fail("such an operation does not happen")


# ---------------------------------------------------------------- batches


@pytest.fixture(scope="module")
def hot(folder: Path) -> Iterator[Source]:
    """A file that stays in the page cache."""
    data = random.Random(4).randbytes(500_000)
    (folder / "hot").write_bytes(data)
    fd = os.open(folder / "hot", os.O_RDONLY)
    yield Source(fd, data)
    os.close(fd)


def mixed_records(cold: Source, hot: Source) -> list[Record]:
    """Return records in mixed order: cached or not, tiny to large, damaged, empty, beyond the end, and so on."""
    rng = random.Random(11)
    size = len(cold.data or b"")
    large = [Record(cold, 5, BLOCK + 1), Record(cold, BLOCK + 9, BLOCK + 4097, keep=False)]
    images = [Record(cold, 2 * BLOCK + 20_000 + n * 200_000, 112 << 10) for n in range(6)]
    images += [Record(hot, n * 150_000, 112 << 10, keep=n != 1) for n in range(3)]
    tiny = [Record(cold, 4 * BLOCK + n * 30_000, rng.randrange(1, 1024)) for n in range(20)]
    tiny += [Record(hot, rng.randrange(400_000), rng.randrange(1, 1024), keep=n != 3) for n in range(20)]
    odd = [
        Record(cold, 3 * BLOCK, 50_000, spoil=1),
        Record(hot, 50, 9_000, spoil=0x80000000, keep=False),
        Record(cold, size - 100, 5_000),
        Record(hot, 500_010, 10),
        Record(cold, 7, 0),
        Record(cold, 2 * BLOCK, 5_000, check=CHECK_NONE),
        Record(cold, 2 * BLOCK + 7_000, 5_000, check=CHECK_NONE, keep=False),
    ]
    records = [*large, *images, images[0], images[7], *tiny, tiny[0], tiny[0], *odd]
    rng.shuffle(records)
    return records


class Watch:
    """Values that must be the same after every batch: descriptors, pooled memory, contexts, threads."""

    def __init__(self) -> None:
        self.before = self.files()[0], buffers()[0]

    @staticmethod
    def files() -> tuple[int, int]:
        """Return the numbers of descriptors that are not rings, and of rings."""
        rings, others = 0, 0
        for name in os.listdir("/proc/self/fd"):
            try:
                rings += "io_uring" in os.readlink(f"/proc/self/fd/{name}")
            except FileNotFoundError:  # the descriptor of listdir
                continue
            others += 1
        return others - rings, rings

    def check(self) -> None:
        contexts, threads = usage()
        others, rings = self.files()
        assert (others, buffers()[0]) == self.before
        assert rings == (contexts if engine.name() == "uring" else 0)
        assert contexts <= lib.fffs_engine_threads() and threads <= 31 + lib.fffs_engine_threads() - 1

    @staticmethod
    def check_mappings() -> None:
        """An AIO context that was not destroyed would leave its pages."""
        with open("/proc/self/maps", encoding="utf-8") as maps:
            mapped = sum("[aio]" in line for line in maps)
        assert mapped == (usage()[0] if engine.name() == "aio" else 0)


def close_contexts(cold: Source) -> None:
    """Leave the backend without a context, as after a failure."""
    kind = {"uring": "URING_SUBMIT", "aio": "AIO_WAIT"}[engine.name()]
    for _ in range(100):
        if usage()[0] == 0:
            return
        with nothing_cached(), fault(kind_of(kind), 1, FOREVER, -EIO):
            Batch(Record(cold, n * 300_000, 1000) for n in range(15)).run()
    pytest.fail("a context is kept although it broke down")


@pytest.mark.parametrize(("backend", "kind", "result", "statuses", "way"), CASES, indirect=["backend"])
def test_every_operation_may_fail(
    backend: str,
    source: Source,
    direct: Source,
    hot: Source,
    kind: str,
    result: int,
    statuses: list[int],
    way: str,
) -> None:
    source = direct if way == "direct" else source
    records, number = mixed_records(source, hot), kind_of(kind)
    after = [Record(source, n * 400_000, 3000, keep=n != 2) for n in range(12)]
    watch = Watch()

    def attempt(nth: int, count: int) -> int:
        if kind.endswith("SETUP"):
            close_contexts(source)
        make_cold(source)
        batch, ran = Batch(records), True
        with fault(number, nth, count, result) as seen:
            try:
                batch.run()
            except MemoryError:
                assert kind == "MEMORY"
                ran = False
            operations = seen()
        if ran:
            failed = batch.verify(statuses)
            assert failed <= (0 if nth == FOREVER else count)
        for buffer in batch.buffers:
            buffer[:] = 0x5A
        Batch(after).check()
        assert all((buffer == 0x5A).all() for buffer in batch.buffers)
        watch.check()
        return operations

    usual = usually(attempt)
    for nth in which(usual, 7):
        attempt(nth, 1)
    for nth in which(usual, 2):
        attempt(nth, 3)
        if (kind, result) not in ENDLESS:
            attempt(nth, FOREVER)
    watch.check_mappings()


def test_no_threads(backend: str, source: Source) -> None:
    """All threads, or all but a few, cannot be started; the others do the work. In a child, which has none yet."""

    def child(nth: int) -> None:
        with fault(lib.FFFS_FAULT_THREAD, nth, FOREVER, -EAGAIN) as seen:
            for _ in range(2):
                make_cold(source)
                Batch(many_records(source)).check()
            assert seen() >= nth
        assert usage()[1] <= nth - 1
        Batch(many_records(source)).check()

    with thread_limit(8):
        for nth in (1, 2, 5):
            wait_for(in_child(functools.partial(child, nth)))


# ---------------------------------------------------------------- contexts


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("backend", ["uring", "aio"], indirect=True)
def test_a_context_that_cannot_be_opened_is_tried_for_again(backend: str, source: Source) -> None:
    records = [Record(source, n * 30_000, 40_000) for n in range(100)]
    close_contexts(source)
    with nothing_cached(), fault(kind_of(f"{backend.upper()}_SETUP"), 1, FOREVER, -errno.EMFILE) as seen:
        Batch(records).check()
        assert seen() == 1
    # The first allocation is for the batch, the second for the context.
    with nothing_cached(), fault(lib.FFFS_FAULT_MEMORY, 2, 1, -ENOMEM):
        Batch(records).check()
    assert usage()[0] == 0
    with nothing_cached():
        Batch(records).check()
    assert usage()[0] == 1


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("backend", ["uring"], indirect=True)
def test_a_full_ring_is_not_kept(backend: str, source: Source) -> None:
    with nothing_cached(), fault(lib.FFFS_FAULT_URING_GET_SQE, 1, FOREVER, 0) as seen:
        Batch(many_records(source)).check()
    assert seen() == 1 and usage()[0] == 0


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("backend", ["aio"], indirect=True)
def test_reads_that_are_refused_leave_their_slots_to_others(backend: str, source: Source) -> None:
    """There are more of them than slots in a context."""
    batch = Batch(Record(source, n * 26_000, 4096) for n in range(200))
    lib.fffs_fault_set(lib.FFFS_FAULT_AIO_SUBMIT, 1, 100, -EAGAIN)
    with nothing_cached(), fault(lib.FFFS_FAULT_AIO_COMPLETE, FOREVER, 1, 0) as seen:
        batch.check()
        assert seen() >= 50


def test_descriptors_run_out_in_a_batch(backend: str, source: Source) -> None:
    """No ring can be opened, and the batch is read nevertheless. In a child, which has a limit of its own."""
    records = [Record(source, n * 100_000, 100_000) for n in range(40)]

    def child() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (source.fd + 1, source.fd + 1))
        with suppress(OSError):
            while True:
                os.dup(source.fd)
        with thread_limit(1), nothing_cached():
            for _ in range(2):
                Batch(records).check()
        assert usage()[0] == (1 if backend == "aio" else 0)

    wait_for(in_child(child))


# ---------------------------------------------------------------- in flight


@contextmanager
def pipes(count: int, content: bytes) -> Iterator[tuple[list[Record], Callable[[], None]]]:
    """Records on pipes, which act as an arbitrarily slow disk: reads by a ring end when the function is called."""
    ends = [os.pipe() for _ in range(count)]

    def release() -> None:
        for _, writer in ends:
            os.write(writer, content)

    try:
        yield [Record(Source(reader, content), 0, len(content)) for reader, _ in ends], release
    finally:
        for reader, writer in ends:
            os.close(reader)
            os.close(writer)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("backend", ["uring"], indirect=True)
@pytest.mark.parametrize("call", [8, 3], ids=["all submitted", "some not yet submitted"])
def test_reads_of_a_broken_ring_are_waited_for(backend: str, source: Source, call: int) -> None:
    """The ring fails while reads are in flight: the batch ends after they have ended."""
    with ThreadPoolExecutor(1) as pool, pipes(8, b"late" * 500) as (slow, release):
        last = Source(os.dup(source.fd), source.data)  # files with the lowest descriptors are read first
        batch = Batch([*slow, *(Record(last, n * 50_000, 3_000) for n in range(20))])  # 28 reads, in groups of 4
        with nothing_cached(), fault(lib.FFFS_FAULT_URING_SUBMIT, call, FOREVER, -EIO) as seen:
            running = pool.submit(batch.run)
            wait_until(lambda: seen() >= call or running.done())
            assert not running.done()
            release()
            assert running.result(PATIENCE)
        batch.verify()
        assert usage()[0] == 0
        os.close(last.fd)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("backend", ["uring"], indirect=True)
def test_more_reads_in_flight_than_a_ring_holds(backend: str, source: Source) -> None:
    """The ring is full of reads that do not end: other reads wait, and none is lost."""
    with ThreadPoolExecutor(1) as pool, pipes(100, b"slow") as (slow, release):
        batch = Batch([*(Record(source, n * 50_000, 3_000) for n in range(30)), *slow])
        with nothing_cached():
            running = pool.submit(batch.run)
            wait_until(lambda: usage()[0] == 0)  # its context is in use
            release()
            assert running.result(PATIENCE)
        batch.verify()


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("backend", ["uring", "aio"], indirect=True)
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_nothing_is_in_flight_into_unbuffered_memory(backend: str, folder: Path, source: Source, nth: int) -> None:
    """With O_DIRECT the disk itself writes to memory, and Linux AIO is asynchronous. The caller may reuse the memory at
    once. On fast disks all reads have ended by then; only the pipes above are certainly slow.
    """
    try:
        fd = os.open(folder / "data", os.O_RDONLY | os.O_DIRECT)
    except OSError:
        pytest.skip("no O_DIRECT here")
    size, requests, memory = 65536, np.zeros(80, REQUEST), mmap.mmap(-1, 80 * 65536)
    array = np.frombuffer(memory, np.uint8)
    requests["offset"], requests["length"], requests["fd"] = np.arange(80) * size, size, fd
    requests["dest"] = array.ctypes.data + np.arange(80) * size
    kind = {"uring": "URING_SUBMIT", "aio": "AIO_WAIT"}[backend]
    with nothing_cached(), fault(kind_of(kind), nth, FOREVER, -EIO) as seen:
        assert engine.read_batch(requests)
    assert seen() >= nth
    assert memory[:] == (source.data or b"")[: 80 * size]
    array[:] = 0x5A
    for _ in range(20):
        time.sleep(0.001)
        assert (array == 0x5A).all()
    Watch.check_mappings()
    os.close(fd)


# ---------------------------------------------------------------- ranges


@dataclass
class Range:
    """A requested range of the record with this content."""

    content: bytes
    start: int
    length: int
    wait: bool = True

    def read(self, stores: list[RecordStore]) -> bytes | None:
        store = stores[self.content is PLAIN]
        record = next(i for i in range(store.n) if store.length(i) == len(self.content))
        dest = np.full(self.length, 0xA5, np.uint8)
        got = store.read_range_into(record, self.start, dest, wait=self.wait)
        return None if got is None else dest[:got].tobytes()

    @property
    def expected(self) -> bytes:
        return self.content[self.start : self.start + self.length]


BIG, IMAGE, TINY, PLAIN = (random.Random(n).randbytes(n) for n in (2 * BLOCK + 70_001, 112 << 10, 100, BLOCK + 300_000))

RANGES = [
    Range(BIG, 70_000, 10),
    Range(BIG, BLOCK - 5, BLOCK + 10),
    Range(BIG, 2 * BLOCK, BLOCK),
    Range(BIG, 70_000, 500, wait=False),
    Range(IMAGE, 5, 1000, wait=False),
    Range(IMAGE, 1000, 5000),
    Range(IMAGE, 0, 112 << 10),
    Range(TINY, 0, 100),
    Range(TINY, 90, 100, wait=False),
    Range(PLAIN, 0, 10, wait=False),
    Range(PLAIN, 12_345, 50_000),
    Range(PLAIN, 12_345, 50_000, wait=False),
]


@pytest.fixture(scope="module")
def ranges(folder: Path) -> list[Path]:
    """A packed folder, whose large record has block checksums, and a record file, whose large record has none. Both
    files rest, because every range of a file that was just written is read and verified anew.
    """
    (folder / "files").mkdir()
    for name, content in (("big", BIG), ("image", IMAGE), ("tiny", TINY)):
        (folder / "files" / name).write_bytes(content)
    fffs.pack_folder(folder / "files", folder / "packed.ffr")
    with fffs.FileWriter(folder / "plain.ffr", 1) as writer:
        writer.write_one(PLAIN)
    for path in (folder / "packed.ffr", folder / "plain.ffr"):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    wait_until(lambda: time.time() - (folder / "plain.ffr").stat().st_ctime > 4)
    return [folder / "packed.ffr", folder / "plain.ffr"]


@contextmanager
def opened(paths: list[Path]) -> Iterator[list[RecordStore]]:
    """New stores, which have verified nothing, over files that are not cached."""
    with load_source([paths[0]]) as packed, load_source([paths[1]]) as plain:
        stores = [packed.store, plain.store]
        for store in stores:
            os.posix_fadvise(store.files[0].file.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        yield stores


# The expected errors of a failed read of a range.
RANGE_ERRORS: dict[str, Callable[[Exception], bool]] = {
    "EIO": lambda error: isinstance(error, ReadError) and error.errno == EIO,
    "EAGAIN": lambda error: isinstance(error, ReadError) and error.errno == EAGAIN,
    "EOPNOTSUPP": lambda error: isinstance(error, ReadError) and error.errno == errno.EOPNOTSUPP,
    "end": lambda error: isinstance(error, TruncatedError),
    "memory": lambda error: isinstance(error, MemoryError),
}

RANGE_FAULTS: list[tuple[str, int, str]] = [
    ("PREAD", -EIO, "EIO"),
    ("PREAD", -EINTR, ""),
    ("PREAD", -EAGAIN, "EAGAIN"),
    ("PREAD", -ENOMEM, "memory"),
    ("PREAD", -errno.EOPNOTSUPP, "EOPNOTSUPP"),
    ("PREAD", -EBADMSG, "EIO"),
    ("PREAD", -ENODATA, "EIO"),
    ("PREAD", 0, "end"),
    ("PREAD", 1, ""),
    ("PREAD", 4097, ""),
    ("MEMORY", -ENOMEM, "memory"),
    ("URING_COMPLETE", -EIO, "EIO"),
    ("URING_COMPLETE", 0, "end"),
    ("AIO_COMPLETE", -EIO, "EIO"),
    ("AIO_COMPLETE", 0, "end"),
]


@pytest.mark.parametrize(
    ("backend", "kind", "result", "says"),
    [
        pytest.param(backend, *case, id=f"{backend}-{case[0]}-{errno.errorcode.get(-case[1], case[1])}")
        for case in RANGE_FAULTS
        for backend in BACKENDS
        if (backend == "pread" if case[0] in ("PREAD", "MEMORY") else case[0].startswith(backend.upper()))
    ],
    indirect=["backend"],
)
def test_every_operation_may_fail_in_reads_of_ranges(
    backend: str, ranges: list[Path], kind: str, result: int, says: str
) -> None:
    watch = Watch()

    def attempt(nth: int, count: int) -> int:
        failed = 0
        with opened(ranges) as stores:
            with fault(kind_of(kind), nth, count, result) as seen:
                for asked in RANGES:
                    try:
                        got = asked.read(stores)
                    except Exception as error:
                        assert says and RANGE_ERRORS[says](error), (asked.start, repr(error))
                        failed += 1
                    else:
                        assert got == asked.expected or (got is None and not asked.wait)
                operations = seen()
            assert failed <= (0 if nth == FOREVER else count)
            for asked in RANGES:
                got = asked.read(stores)
                assert got == asked.expected or (got is None and not asked.wait)
        del stores  # their trees are in pooled memory
        watch.check()
        return operations

    usual = usually(attempt)
    for nth in which(usual, 12):
        attempt(nth, 1)
    if (kind, result) not in ENDLESS:
        attempt(1, FOREVER)
        attempt(3, FOREVER)


@pytest.mark.parametrize(
    "asked",
    # The first range is far from everything that was read when the file was opened.
    [Range(BIG, BLOCK + 300_000, 500, wait=False), Range(PLAIN, 12_345, 50_000, wait=False)],
    ids=["not cached", "not verified"],
)
def test_who_must_not_wait_gets_only_what_is_cached_and_verified(ranges: list[Path], asked: Range) -> None:
    """The test above depends on this: None is a possible result, but not the only one."""
    with opened(ranges) as stores:
        assert asked.read(stores) is None
        with later():
            Range(asked.content, asked.start, asked.length).read(stores)
        assert asked.read(stores) == asked.expected


def test_a_store_over_a_bad_descriptor_names_its_file(ranges: list[Path]) -> None:
    with opened(ranges) as (packed, plain):
        closed = LocalFile.open(ranges[1])
        closed.close()
        with pytest.raises(ReadError) as caught:
            files = [packed.files[0], replace(plain.files[0], file=closed), packed.files[0]]
            make_native_store(files)
        assert (caught.value.errno, caught.value.filename) == (errno.EBADF, str(ranges[1]))


@pytest.mark.parametrize("nth", range(1, 9))
def test_a_store_without_memory_says_so(ranges: list[Path], nth: int) -> None:
    with opened(ranges) as (packed, plain):
        with fault(lib.FFFS_FAULT_MEMORY, nth, 1, -ENOMEM), pytest.raises(MemoryError):
            make_native_store([packed.files[0], plain.files[0]])


# ---------------------------------------------------------------- a stalled disk


STALLS = [
    ("uring", "PREAD"),
    ("uring", "URING_SUBMIT"),
    ("uring", "URING_COMPLETE"),
    ("aio", "PREAD"),
    ("aio", "AIO_SUBMIT"),
    ("aio", "AIO_WAIT"),
    ("aio", "AIO_COMPLETE"),
    ("pread", "PREAD"),
]


@contextmanager
def stalled(kind: int, work: Callable[[], Any], count: int = 1) -> Iterator[Callable[[], Any]]:
    """Start work in a thread; one operation stalls. Yields a function that continues it and gives the result."""
    with ThreadPoolExecutor(1) as pool:
        lib.fffs_fault_set(kind, 1, count, lib.FFFS_FAULT_HOLD)
        try:
            future = pool.submit(work)
            wait_until(lambda: held() > 0 or future.done())

            def release() -> Any:
                lib.fffs_fault_set(lib.FFFS_FAULT_NONE, 0, 0, 0)
                return future.result(PATIENCE)

            assert not future.done()
            yield release
        finally:
            lib.fffs_fault_set(lib.FFFS_FAULT_NONE, 0, 0, 0)


@pytest.mark.parametrize(("backend", "kind"), STALLS, indirect=["backend"])
def test_a_stalled_batch_keeps_no_other_waiting(backend: str, source: Source, hot: Source, kind: str) -> None:
    late = Batch(many_records(source))
    with nothing_cached(), stalled(kind_of(kind), late.run) as release:
        lib.fffs_fault_set(lib.FFFS_FAULT_NOWAIT, FOREVER, 1, 0)
        for _ in range(5):
            Batch(mixed_records(source, hot)).check()
            make_cold(source)
        with ThreadPoolExecutor(8) as pool:
            for done in [pool.submit(Batch(mixed_records(source, hot)).check) for _ in range(24)]:
                done.result(PATIENCE)
        assert held() == 1
        assert release()
    late.verify()


@pytest.mark.usefixtures("one_thread")
def test_many_stalled_batches_keep_no_other_waiting(backend: str, source: Source, hot: Source) -> None:
    batches = [Batch(Record(source, n * 70_000, 9000) for n in range(40)) for _ in range(40)]
    with ThreadPoolExecutor(40) as pool, fault(lib.FFFS_FAULT_PREAD, 1, FOREVER, lib.FFFS_FAULT_HOLD):
        futures = [pool.submit(batch.run) for batch in batches]
        wait_until(lambda: held() == 40)
        # From here on no further operation stalls; stalled ones stay.
        lib.fffs_fault_set(lib.FFFS_FAULT_PREAD, FOREVER, 1, 0)
        for _ in range(5):
            make_cold(source)
            Batch(mixed_records(source, hot)).check()
        assert held() == 40 and not any(future.done() for future in futures)
        lib.fffs_fault_set(lib.FFFS_FAULT_NONE, 0, 0, 0)
        assert all(future.result(PATIENCE) for future in futures)
    for batch in batches:
        batch.verify()


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("backend", ["pread"], indirect=True)
def test_a_batch_that_stalls_all_helpers_keeps_no_other_waiting(backend: str, source: Source, hot: Source) -> None:
    late = Batch(Record(source, n * 70_000, 9000) for n in range(70))
    pool = ThreadPoolExecutor(1)
    # After eight reads it is certain that the batch is cold.
    with pool, nothing_cached(), fault(lib.FFFS_FAULT_PREAD, 9, FOREVER, lib.FFFS_FAULT_HOLD):
        future = pool.submit(late.run)
        wait_until(lambda: held() == 32)
        lib.fffs_fault_set(lib.FFFS_FAULT_NOWAIT, FOREVER, 1, 0)
        lib.fffs_fault_set(lib.FFFS_FAULT_PREAD, FOREVER, 1, 0)
        for _ in range(5):
            make_cold(source)
            Batch(mixed_records(source, hot)).check()
        assert held() == 32 and not future.done()
        lib.fffs_fault_set(lib.FFFS_FAULT_NONE, 0, 0, 0)
        assert future.result(PATIENCE)
    late.verify()


@pytest.mark.parametrize("asked", RANGES[5:11:5], ids=["small record", "large record"])
def test_a_stalled_range_keeps_only_its_record_waiting(backend: str, ranges: list[Path], asked: Range) -> None:
    with opened(ranges) as stores:
        with stalled(lib.FFFS_FAULT_PREAD, functools.partial(asked.read, stores)) as release:
            for other in RANGES:
                if other.content is not asked.content:
                    assert other.read(stores) == other.expected or not other.wait
            # Without wait, the answer comes at once, also for the record itself.
            assert Range(asked.content, 0, 10, wait=False).read(stores) in (None, asked.content[:10])
            assert held() == 1
            assert release() == asked.expected


def test_who_waits_for_a_large_record_gets_it(ranges: list[Path]) -> None:
    """It is checked once for all readers, which wait for each other and not for the disk."""
    asked = RANGES[10]
    with opened(ranges) as stores, ThreadPoolExecutor(8) as pool:
        with stalled(lib.FFFS_FAULT_PREAD, functools.partial(asked.read, stores)) as release:
            waiting = [pool.submit(asked.read, stores) for _ in range(8)]
            assert release() == asked.expected
        assert [future.result(PATIENCE) for future in waiting] == [asked.expected] * 8


def test_closing_does_not_wait_for_a_stalled_read(backend: str, ranges: list[Path]) -> None:
    files = len(os.listdir("/proc/self/fd"))
    reader = fffs.FileReader(str(ranges[1]))
    opened_files = len(os.listdir("/proc/self/fd"))
    with stalled(lib.FFFS_FAULT_PREAD, functools.partial(reader.read, [0])) as release:
        reader.close()
        with pytest.raises(ClosedError):
            reader.read([0])
        assert len(os.listdir("/proc/self/fd")) == opened_files, "closed under a read"
        assert release()[0].tobytes() == PLAIN
    if backend == "pread":  # rings have descriptors, too
        assert len(os.listdir("/proc/self/fd")) == files


def test_a_child_forked_while_a_read_is_stalled_reads(backend: str, source: Source, ranges: list[Path]) -> None:
    """The record may be the one that a thread of the parent is checking while others wait for the result."""
    asked, records = RANGES[10], many_records(source)

    def child(stores: list[RecordStore]) -> None:
        lib.fffs_fault_set(lib.FFFS_FAULT_NONE, 0, 0, 0)
        assert asked.read(stores) == asked.expected
        Batch(records).check()

    with opened(ranges) as stores:
        with stalled(lib.FFFS_FAULT_PREAD, functools.partial(asked.read, stores)) as release:
            wait_for(in_child(functools.partial(child, stores)))
            assert release() == asked.expected


# ---------------------------------------------------------------- damage, and files that change


def damaged(paths: list[Path], folder: Path, content: bytes, at: int) -> list[Path]:
    """Copy the files, with one bit of that content flipped."""
    copies = [folder / path.name for path in paths]
    for path, made in zip(paths, copies, strict=True):
        data = bytearray(path.read_bytes())
        if (place := data.find(content)) >= 0:
            data[place + at] ^= 1
        made.write_bytes(data)
    return copies


@pytest.mark.parametrize("bad", range(3))
def test_only_blocks_that_were_checked_count_as_verified(ranges: list[Path], tmp_path: Path, bad: int) -> None:
    blocks = [Range(BIG, n * BLOCK, 1000) for n in range(3)]
    with opened(damaged(ranges, tmp_path, BIG, bad * BLOCK + 5000)) as stores:
        for _ in range(2):
            for number, asked in enumerate(blocks):
                if number != bad:
                    assert asked.read(stores) == asked.expected
            for asked in (blocks[bad], Range(BIG, 0, len(BIG))):
                with pytest.raises(ChecksumError):
                    asked.read(stores)


@pytest.mark.parametrize("content", [TINY, IMAGE, PLAIN], ids=["tiny", "small", "large"])
def test_a_damaged_record_never_counts_as_verified(ranges: list[Path], tmp_path: Path, content: bytes) -> None:
    with opened(damaged(ranges, tmp_path, content, len(content) - 1)) as stores:
        for _ in range(3):
            with pytest.raises(ChecksumError):
                Range(content, 0, 10).read(stores)
        assert Range(BIG, 5, 10).read(stores) == BIG[5:15]


@pytest.mark.parametrize("content", [IMAGE, BIG, PLAIN], ids=["small record", "block", "large record"])
def test_a_file_that_changes_after_its_bytes_were_verified(ranges: list[Path], tmp_path: Path, content: bytes) -> None:
    """It changes between the decision that no check is needed and the read."""
    asked, paths = Range(content, 100, 1000), damaged(ranges, tmp_path, b"no such content", 0)
    with opened(paths) as stores:
        assert asked.read(stores) == asked.expected
        with stalled(lib.FFFS_FAULT_PREAD, functools.partial(asked.read, stores)) as release:
            for path in paths:
                place = path.read_bytes().find(content)
                if place >= 0:
                    with open(path, "r+b") as file:
                        file.seek(place + 200)
                        file.write(b"changed")
            with pytest.raises(ChecksumError):
                release()
        with pytest.raises(ChecksumError):
            asked.read(stores)
