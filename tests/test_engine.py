"""The native engine: right bytes or a typed status, whatever fails, from any thread and after a fork."""

from __future__ import annotations

import ctypes
import errno
import functools
import gc
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fffs import engine
from fffs.engine import BLOCK, CHECK_CRC32, CHECK_NONE, REQUEST
from fffs.errors import EngineError, UsageError
from fffs.native import ffi, lib

BACKENDS = ("uring", "aio", "pread")
FOREVER = 10**9

# ---------------------------------------------------------------- the model: what a batch must give


@dataclass
class Source:
    """An open file and what is in it; ``data`` is None if reading it must give -EBADF."""

    fd: int
    data: bytes | None = field(repr=False)


@dataclass
class Record:
    """One request, and what must come out."""

    source: Source
    offset: int
    length: int
    check: int = CHECK_CRC32
    keep: bool = True
    spoil: int = 0  # exclusive-ored to the expected checksum

    @property
    def content(self) -> bytes:
        return (self.source.data or b"")[self.offset : self.offset + self.length]

    @property
    def status(self) -> int:
        if self.length == 0:
            return -errno.EBADMSG if self.spoil and self.check else 0
        if self.source.data is None:
            return -errno.EBADF
        if len(self.content) < self.length:
            return -errno.ENODATA
        return -errno.EBADMSG if self.spoil and self.check else 0

    @property
    def crc(self) -> int:
        return zlib.crc32(self.content)


class Batch:
    """Records with their destinations, each between guard bytes that nothing may touch."""

    GUARD = 64

    def __init__(self, records: Iterable[Record]) -> None:
        self.records = list(records)
        self.requests = np.zeros(len(self.records), REQUEST)
        self.buffers: list[np.ndarray] = []
        for request, record in zip(self.requests, self.records, strict=True):
            buffer = np.full((record.length if record.keep else 0) + 2 * self.GUARD, 0xA5, np.uint8)
            self.buffers.append(buffer)
            request["offset"], request["length"], request["fd"] = record.offset, record.length, record.source.fd
            request["dest"] = buffer.ctypes.data + self.GUARD if record.keep else 0
            request["check"], request["expected"] = record.check, record.crc ^ record.spoil
            request["actual"], request["status"] = 0xDEADBEEF, 77

    def run(self) -> bool:
        return engine.read_batch(self.requests)

    def verify(self, may_also_be: Iterable[int] = ()) -> int:
        """Check each result against the model; how many failed with a status of may_also_be instead."""
        excused, allowed = 0, set(may_also_be)
        for record, request, buffer in zip(self.records, self.requests, self.buffers, strict=True):
            status = int(request["status"])
            assert (buffer[: self.GUARD] == 0xA5).all() and (buffer[-self.GUARD :] == 0xA5).all()
            if status != record.status:
                assert status in allowed, (record, os.strerror(-status))
                excused += 1
                continue
            if status in (0, -errno.EBADMSG):
                if record.keep:
                    assert buffer[self.GUARD : -self.GUARD].tobytes() == record.content
                assert int(request["actual"]) == (record.crc if record.check == CHECK_CRC32 else 0)
            else:
                assert int(request["actual"]) == 0
        return excused

    def check(self) -> None:
        """Run, and compare with the model."""
        good = self.run()
        self.verify()
        assert good == all(record.status == 0 for record in self.records)


# ---------------------------------------------------------------- fixtures


def tells_what_is_cached(folder: str) -> bool:
    """Does this file system support RWF_NOWAIT, without which the asynchronous backends are not used?"""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"x")
        file.flush()
        try:
            os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except OSError as error:
            return error.errno == errno.EAGAIN
        return True


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on a file system where reads can be cold."""
    for candidate in (str(tmp_path_factory.getbasetemp()), "/var/tmp", os.getcwd()):
        if os.access(candidate, os.W_OK) and tells_what_is_cached(candidate):
            with tempfile.TemporaryDirectory(dir=candidate) as path:
                yield Path(path)
            return
    pytest.skip("no file system here supports RWF_NOWAIT")


@pytest.fixture(scope="module")
def source(folder: Path) -> Iterator[Source]:
    """A file of a bit more than five blocks, on the disk."""
    data = random.Random(1).randbytes(5 * BLOCK + 12345)
    path = folder / "data"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    yield Source(fd, data)
    os.close(fd)


@pytest.fixture
def second(folder: Path) -> Iterator[Source]:
    """Another, small file."""
    data = random.Random(2).randbytes(100_001)
    path = folder / "second"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    yield Source(fd, data)
    os.close(fd)


@pytest.fixture
def closed() -> Source:
    """A descriptor that nobody has open."""
    return Source(2**20 + 7, None)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    before = engine.name()
    if engine.select(request.param) != request.param:
        pytest.skip(f"this system refuses {request.param}")
    yield request.param
    engine.select(before)


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    """No test leaves a fault armed, a descriptor open (contexts have some) or a buffer taken."""
    chosen = engine.name()
    engine.select("pread")
    before = descriptors(), buffers()[0]
    engine.select(chosen)
    yield
    lib.fffs_fault_set(lib.FFFS_FAULT_NONE, 0, 0, 0)
    chosen = engine.name()
    engine.select("pread")
    assert usage()[0] == 0
    gc.collect()
    assert (descriptors(), buffers()[0]) == before
    engine.select(chosen)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def usage() -> tuple[int, int]:
    """Idle contexts, helper threads."""
    numbers = ffi.new("int32_t[2]")
    lib.fffs_engine_usage(numbers, numbers + 1)
    return numbers[0], numbers[1]


def buffers() -> tuple[int, int]:
    """Bytes taken, bytes idle."""
    numbers = ffi.new("uint64_t[2]")
    lib.fffs_buffer_usage(numbers, numbers + 1)
    return numbers[0], numbers[1]


def make_cold(*sources: Source) -> None:
    for source in sources:
        os.posix_fadvise(source.fd, 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def fault(kind: int, nth: int, count: int, result: int) -> Iterator[Callable[[], int]]:
    """Operations nth to nth + count - 1 of a kind give result; gives a function that counts those seen."""
    lib.fffs_fault_set(kind, nth, count, result)
    try:
        yield lambda: int(lib.fffs_fault_seen())
    finally:
        lib.fffs_fault_set(lib.FFFS_FAULT_NONE, 0, 0, 0)


def random_records(rng: random.Random, sources: list[Source], count: int, longest: int) -> list[Record]:
    records = []
    for _ in range(count):
        source = rng.choice(sources)
        size = 1 << 20 if source.data is None else len(source.data)
        length = rng.choice([0, 1, rng.randrange(100), rng.randrange(5000), rng.randrange(longest)])
        records.append(
            Record(
                source,
                rng.randrange(size + 10),
                length,
                check=rng.choice([CHECK_CRC32, CHECK_CRC32, CHECK_NONE]),
                keep=rng.random() < 0.8,
                spoil=rng.choice([0, 0, 0, 1, 0x80000000]),
            )
        )
    return records


# ---------------------------------------------------------------- checksums


def test_self_test() -> None:
    assert lib.fffs_self_test() == 0


@given(st.binary(max_size=5000), st.integers(0, 2**32 - 1))
def test_crc32_is_zlibs(data: bytes, start: int) -> None:
    assert engine.crc32(data, start) == zlib.crc32(data, start)
    assert engine.crc32(memoryview(bytearray(data)), start) == zlib.crc32(data, start)


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_combine(a: bytes, b: bytes) -> None:
    assert engine.crc32_combine(zlib.crc32(a), zlib.crc32(b), len(b)) == zlib.crc32(a + b)


@pytest.mark.parametrize("length", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_combine_long(length: int) -> None:
    b = random.Random(length).randbytes(length)
    assert engine.crc32_combine(0x12345678, zlib.crc32(b), length) == zlib.crc32(b, 0x12345678)


def test_combine_beyond_memory() -> None:
    """Lengths that use every bit of the exponent: (A, B) then C is A then (B, C)."""
    b, c = 2**63 + 12345, 2**62 + 2**40 + 1
    left = engine.crc32_combine(engine.crc32_combine(1, 2, b), 3, c)
    right = engine.crc32_combine(1, engine.crc32_combine(2, 3, c), b + c)
    assert left == right != 0


# ---------------------------------------------------------------- pooled memory


def test_buffers_are_reused() -> None:
    first = engine.take(1_000_000)
    address = first.ctypes.data
    assert address % 4096 == 0 and first.shape == (1_000_000,) and first.dtype == np.uint8 and first.flags.writeable
    other = engine.take(1_000_000)
    assert other.ctypes.data != address
    del first
    assert engine.take(1_000_000).ctypes.data == address
    assert engine.take(999_000).ctypes.data == address  # of the same size class


def test_buffer_lives_as_long_as_any_view() -> None:
    taken, _ = buffers()
    array = engine.take(200_000)
    array[:] = 7
    view = memoryview(array[1000:2000].view(np.uint16))
    del array
    gc.collect()
    assert buffers()[0] > taken
    other = engine.take(200_000)
    other[:] = 9
    assert bytes(view) == b"\x07" * 1000
    del other, view
    gc.collect()
    assert buffers()[0] == taken


@pytest.mark.parametrize("size", [1, 65536, 65537, 81920, 81921, 3 << 20, (2 << 20) + 1, (64 << 20) - 1])
def test_buffer_sizes(size: int) -> None:
    taken, _ = buffers()
    array = engine.take(size)
    array[0] = array[-1] = 1
    held = buffers()[0] - taken
    assert max(size, 65536) <= held <= max(size * 2, 3 << 15)
    assert array.nbytes == size


def test_idle_memory_is_bounded() -> None:
    arrays = [engine.take(100 << 20) for _ in range(5)]
    del arrays
    assert 200 << 20 <= buffers()[1] <= 256 << 20
    del_all = engine.take(300 << 20)  # larger than the pool: it goes back to the system
    del del_all
    assert buffers()[1] <= 256 << 20


def test_no_memory() -> None:
    assert engine.take(0).size == 0
    with pytest.raises(ValueError, match="negative"):
        engine.take(-1)
    with pytest.raises(MemoryError):
        engine.take(2**62)
    with fault(lib.FFFS_FAULT_MEMORY, 1, 1, -errno.ENOMEM), pytest.raises(MemoryError):
        engine.take(77 << 20)


def test_buffers_from_threads() -> None:
    failed: list[int] = []

    def work(number: int) -> None:
        rng = random.Random(number)
        for _ in range(200):
            arrays = [engine.take(rng.randrange(1, 1 << 20)) for _ in range(3)]
            for array in arrays:
                array[:16] = number
                array[-16:] = number
            if not all((array[:16] == number).all() and (array[-16:] == number).all() for array in arrays):
                failed.append(number)

    run_threads(work, 8)
    assert not failed


def run_threads(work: Callable[[int], None], count: int) -> None:
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


# ---------------------------------------------------------------- batches


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_random_batches(backend: str, source: Source, second: Source, closed: Source, seed: int, cold: bool) -> None:
    rng = random.Random(seed)
    sources = [source, source, source, second, closed]
    for count in (1, 2, 17, 150):
        records = random_records(rng, sources, count, 3 * BLOCK if count < 50 else 200_000)
        if cold:
            make_cold(source, second)
        Batch(records).check()


@pytest.mark.parametrize("cold", [False, True])
def test_lengths_around_blocks(backend: str, source: Source, cold: bool) -> None:
    lengths = [0, 1, *(n * BLOCK + d for n in (1, 2, 3, 5) for d in (-1, 0, 1))]
    for offset in (0, 1, 4095, 4096):
        if cold:
            make_cold(source)
        Batch(Record(source, offset, length) for length in lengths).check()


def test_dropped_bytes_are_checked(backend: str, source: Source) -> None:
    for cold in (False, True):
        if cold:
            make_cold(source)
        records = [Record(source, 3, 5 * BLOCK, keep=False), Record(source, 9, 4 * BLOCK + 1, keep=False, spoil=1)]
        Batch([*records, *(Record(source, n * 50_000, 60_000, keep=False) for n in range(80))]).check()


def test_dropping_needs_little_memory(backend: str, source: Source) -> None:
    """Whatever the number of records: at most 32 MiB in flight, and a scratch buffer for each of two threads."""
    code = f"""
import os
import numpy as np
from fffs import engine
from fffs.native import ffi, lib
fd = os.open({os.readlink(f"/proc/self/fd/{source.fd}")!r}, os.O_RDONLY)
requests = np.zeros(150, engine.REQUEST)
requests["fd"], requests["length"], requests["offset"] = fd, engine.BLOCK, np.arange(150) * 20_000
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
assert engine.read_batch(requests)
numbers = ffi.new("uint64_t[2]")
lib.fffs_buffer_usage(numbers, numbers + 1)
print(numbers[0], numbers[1])
"""
    taken, idle = run_python(code, FFFS_ENGINE=backend, FFFS_THREADS="2").split()
    assert int(taken) == 0 and 1 << 20 <= int(idle) <= 34 << 20


@pytest.mark.parametrize("cold", [False, True])
def test_many_tiny_and_duplicates(backend: str, source: Source, cold: bool) -> None:
    if cold:
        make_cold(source)
    rng = random.Random(5)
    records = [Record(source, rng.randrange(5 * BLOCK), 1 + rng.randrange(1024)) for _ in range(3000)]
    Batch([*records, *records[:500]]).check()


def test_a_bad_checksum_is_one_records(backend: str, source: Source) -> None:
    for bad in (0, 37, 99):
        batch = Batch(Record(source, n * 40_000, 50_000, spoil=int(n == bad)) for n in range(100))
        batch.check()
        assert np.flatnonzero(batch.requests["status"]).tolist() == [bad]
        request = batch.requests[bad]
        assert request["status"] == -errno.EBADMSG and request["actual"] == request["expected"] ^ 1


def test_a_bad_block_of_a_large_record(backend: str, folder: Path, source: Source) -> None:
    assert source.data is not None
    data = bytearray(source.data)
    data[3 * BLOCK + 5] ^= 4
    path = folder / "bad"
    path.write_bytes(data)
    with open(path, "rb") as file:
        bad = Source(file.fileno(), bytes(data))
        expected = zlib.crc32(source.data)
        batch = Batch([Record(bad, 0, len(data), spoil=zlib.crc32(data) ^ expected)])
        batch.check()
        assert batch.requests["expected"][0] == expected and batch.requests["status"][0] == -errno.EBADMSG


def test_invalid_requests_are_refused_alone(source: Source) -> None:
    records = [Record(source, n, 100) for n in range(5)]
    for name, value in (("offset", -1), ("length", -1), ("length", 2**63 - 1), ("check", 2)):
        batch = Batch(records)
        batch.requests[name][2] = value
        if value == 2**63 - 1:
            batch.requests["offset"][2] = 1  # their sum is no offset any more
        assert not batch.run()
        assert batch.requests["status"].tolist() == [0, 0, -errno.EINVAL, 0, 0]


def test_a_length_beyond_reason_does_not_fit(source: Source) -> None:
    batch = Batch([Record(source, 0, 10)])
    batch.requests["length"] = 2**62
    with pytest.raises(MemoryError):
        batch.run()


def test_empty_batch_and_wrong_arrays() -> None:
    assert engine.read_batch(np.zeros(0, REQUEST))
    with pytest.raises(TypeError):
        engine.read_batch(np.zeros(3, np.int64))
    with pytest.raises((ValueError, BufferError)):
        engine.read_batch(np.zeros(6, REQUEST)[::2])


def test_folders_and_pipes_have_their_own_errors(backend: str, folder: Path) -> None:
    directory = os.open(folder, os.O_RDONLY)
    reader, writer = os.pipe()
    write_only = os.open(folder / "second", os.O_WRONLY | os.O_CREAT)
    try:
        batch = Batch([Record(Source(fd, None), 0, 10) for fd in (directory, reader, write_only)])
        assert not batch.run()
        assert batch.requests["status"].tolist() == [-errno.EISDIR, -errno.ESPIPE, -errno.EBADF]
    finally:
        for fd in (directory, reader, writer, write_only):
            os.close(fd)


def test_file_systems_that_do_not_tell_what_is_cached(backend: str) -> None:
    """In particular tmpfs, where nothing is ever cold."""
    shm = "/dev/shm"
    if not os.access(shm, os.W_OK):
        pytest.skip(f"there is no {shm}")
    data = random.Random(3).randbytes(3 * BLOCK)
    with tempfile.TemporaryFile(dir=shm) as file:
        file.write(data)
        file.flush()
        memory = Source(file.fileno(), data)
        for count in (1, 20, 300):
            Batch(random_records(random.Random(count), [memory], count, 100_000)).check()
        Batch([Record(memory, 1, 3 * BLOCK - 1)]).check()


def test_cold_batches_go_through_the_backend(backend: str, source: Source) -> None:
    """What the other tests of cold data take for granted."""
    kinds = {"uring": lib.FFFS_FAULT_URING_COMPLETE, "aio": lib.FFFS_FAULT_AIO_COMPLETE, "pread": lib.FFFS_FAULT_PREAD}
    make_cold(source)
    with fault(kinds[backend], FOREVER, 1, 0) as seen:
        Batch(Record(source, n * 100_000, 100_000) for n in range(50)).check()
    assert seen() >= 20


def test_direct_files(backend: str, folder: Path, source: Source) -> None:
    """O_DIRECT: aligned reads are right; unaligned ones give the file's own -EINVAL."""
    assert source.data is not None
    try:
        fd = os.open(folder / "data", os.O_RDONLY | os.O_DIRECT)
    except OSError:
        pytest.skip("no O_DIRECT here")
    try:
        buffer = engine.take(100 * 8192)
        requests = np.zeros(101, REQUEST)
        requests["offset"], requests["length"], requests["fd"] = np.arange(101) * 4096, 8192, fd
        requests["dest"] = buffer.ctypes.data + np.arange(101) * 8192
        requests["check"] = CHECK_CRC32
        requests["expected"] = [zlib.crc32(source.data[o : o + 8192]) for o in requests["offset"].tolist()]
        requests["offset"][100], requests["dest"][100] = 1, buffer.ctypes.data + 1
        requests["length"][100] = 100
        engine.read_batch(requests)
        assert not requests["status"][:100].any()
        assert requests["status"][100] in (-errno.EINVAL, -errno.EBADMSG)  # some file systems read it buffered
    finally:
        os.close(fd)


def test_threads_setting() -> None:
    before = lib.fffs_engine_threads()
    assert before >= 1
    try:
        assert lib.fffs_engine_set_threads(0) == -errno.EINVAL
        for threads in (1, 2, 7):
            assert lib.fffs_engine_set_threads(threads) == 0
            assert lib.fffs_engine_threads() == threads
    finally:
        lib.fffs_engine_set_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_same_results_with_any_number_of_threads(source: Source, threads: int) -> None:
    before = lib.fffs_engine_threads()
    lib.fffs_engine_set_threads(threads)
    try:
        for seed in range(5):
            Batch(random_records(random.Random(seed), [source], 200, 300_000)).check()
    finally:
        lib.fffs_engine_set_threads(before)


# ---------------------------------------------------------------- choosing a backend


def test_select(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    before = engine.name()
    try:
        monkeypatch.delenv("FFFS_ENGINE", raising=False)
        for name in BACKENDS:
            assert engine.select(name) == engine.name()
        with pytest.raises(UsageError, match=r"uring, aio, pread"):
            engine.select("magic")
        monkeypatch.setenv("FFFS_ENGINE", "pread")
        assert engine.select() == "pread" == engine.name()
        monkeypatch.setenv("FFFS_ENGINE", "nonsense")
        with pytest.raises(UsageError, match=r"FFFS_ENGINE.*nonsense"):
            engine.select()
        monkeypatch.delenv("FFFS_ENGINE")
        with caplog.at_level(logging.DEBUG, "fffs.engine"):
            with fault(lib.FFFS_FAULT_URING_SETUP, 1, 9, -errno.EPERM):
                engine.select("pread")
                assert engine.select("uring") == "pread"
                assert engine.select() in ("aio", "pread")
        assert "uring refused: Operation not permitted" in caplog.text
        assert lib.fffs_engine_select(b"") == -errno.EINVAL
    finally:
        engine.select(before)


def run_python(code: str, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_environment() -> None:
    code = "from fffs import engine; from fffs.native import lib; print(engine.name(), lib.fffs_engine_threads())"
    assert run_python(code, FFFS_ENGINE="pread", FFFS_THREADS="3") == "pread 3"
    for bad in ("0", "x", "-1", ""):
        check = f"""
try:
    {code.split(";")[0]}
except ValueError as error:
    print(error)
"""
        assert "FFFS_THREADS" in run_python(check, FFFS_THREADS=bad)


FORBIDDEN = """
import ctypes, os, sys, zlib
import numpy as np

class Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint)]

class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.POINTER(Instruction))]

IO_URING_SETUP = 425  # on every architecture
load, jump, give = 0x20, 0x15, 0x06
eperm, allow = 0x00050001, 0x7FFF0000
rules = (Instruction * 4)((load, 0, 0, 0), (jump, 0, 1, IO_URING_SETUP), (give, 0, 0, eperm), (give, 0, 0, allow))
libc = ctypes.CDLL(None, use_errno=True)
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 38, 22, 2
if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, FILTER, ctypes.byref(Program(4, rules))):
    print("no seccomp")
    sys.exit()

from fffs import engine
with open(sys.executable, "rb") as file:
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    data = file.read()
    requests = np.zeros(4, engine.REQUEST)
    requests["length"], requests["fd"], requests["check"] = len(data), file.fileno(), 1
    requests["expected"] = zlib.crc32(data)
    assert engine.read_batch(requests)
print(engine.name())
"""


def test_io_uring_forbidden_by_a_sandbox() -> None:
    """As Docker's default profile does it: io_uring_setup gives EPERM."""
    name = run_python(FORBIDDEN, FFFS_ENGINE="")
    if name == "no seccomp":
        pytest.skip(name)
    assert name in ("aio", "pread")
    assert run_python(FORBIDDEN, FFFS_ENGINE="uring") == "pread"


# ---------------------------------------------------------------- everything fails once

EIO, EINTR, EAGAIN, ENOMEM = errno.EIO, errno.EINTR, errno.EAGAIN, errno.ENOMEM

# Kind of operation; its result; the statuses that records may then have. None: no record may fail.
FAULTS = [
    ("PREAD", -EIO, [-EIO]),
    ("PREAD", -EINTR, []),
    ("PREAD", -EAGAIN, []),
    ("PREAD", -errno.EOPNOTSUPP, [-errno.EOPNOTSUPP]),
    ("PREAD", -errno.EBADMSG, [-EIO]),  # EBADMSG would say that a checksum differs
    ("PREAD", -errno.ENODATA, [-EIO]),
    ("PREAD", 0, [-errno.ENODATA]),
    ("PREAD", 1, []),
    ("PREAD", 4097, []),
    ("URING_SUBMIT", -EINTR, []),
    ("URING_SUBMIT", -EAGAIN, []),
    ("URING_SUBMIT", -errno.EBUSY, []),
    ("URING_SUBMIT", -EIO, []),
    ("URING_COMPLETE", -EIO, [-EIO]),
    ("URING_COMPLETE", -EINTR, []),
    ("URING_COMPLETE", -EAGAIN, []),
    ("URING_COMPLETE", -errno.ECANCELED, []),
    ("URING_COMPLETE", -errno.EINVAL, []),
    ("URING_COMPLETE", -errno.ENODATA, [-EIO]),
    ("URING_COMPLETE", 0, [-errno.ENODATA]),
    ("URING_COMPLETE", 1, []),
    ("URING_GET_SQE", 0, []),
    ("AIO_SUBMIT", -EAGAIN, []),
    ("AIO_SUBMIT", -EIO, []),
    ("AIO_SUBMIT", 0, []),
    ("AIO_COMPLETE", -EIO, [-EIO]),
    ("AIO_COMPLETE", -EINTR, []),
    ("AIO_COMPLETE", -errno.EINVAL, []),
    ("AIO_COMPLETE", 0, [-errno.ENODATA]),
    ("AIO_COMPLETE", 1, []),
    ("AIO_WAIT", -EINTR, []),
    ("AIO_WAIT", -EIO, []),
    ("MEMORY", -ENOMEM, [-ENOMEM]),
]

# Setting one of these up again and again does not end: at least one try has to succeed.
ENDLESS = {("PREAD", -EINTR), ("PREAD", -EAGAIN), ("PREAD", 1), ("URING_COMPLETE", 1), ("AIO_COMPLETE", 1)}


CASES = [
    pytest.param(backend, *case, id=f"{backend}-{case[0]}-{errno.errorcode.get(-case[1], case[1])}")
    for backend in BACKENDS
    for case in FAULTS
    if case[0] in ("PREAD", "MEMORY") or case[0].startswith(backend.upper())
]


def fault_records(source: Source) -> list[Record]:
    """Large and small records, kept and dropped ones, more than the depth of a ring in all."""
    rng = random.Random(11)
    records = [Record(source, 5, 2 * BLOCK + 1), Record(source, 9, 2 * BLOCK, keep=False)]
    records += [Record(source, rng.randrange(5 * BLOCK), rng.randrange(1, 9000)) for _ in range(140)]
    return records


@pytest.mark.parametrize(("backend", "kind", "result", "statuses"), CASES, indirect=["backend"])
def test_every_operation_fails(backend: str, source: Source, kind: str, result: int, statuses: list[int]) -> None:
    number = getattr(lib, f"FFFS_FAULT_{kind}")
    records = fault_records(source)

    def attempt(nth: int, count: int) -> None:
        make_cold(source)
        batch = Batch(records)
        with fault(number, nth, count, result):
            try:
                batch.run()
            except MemoryError:
                assert kind == "MEMORY"
                batch = Batch([])
        failed = batch.verify(statuses)
        if count == 1:
            assert failed <= 1
        Batch(records[:40]).check()

    for nth in [*range(1, 6), 12, 40, 100]:
        attempt(nth, 1)
    attempt(2, 5)
    if (kind, result) not in ENDLESS:
        attempt(1, FOREVER)
        attempt(4, FOREVER)


def test_no_threads(backend: str, source: Source) -> None:
    """Every thread, or one of them, cannot be started: the others do the work. In a child, which has none yet."""

    def child(nth: int) -> None:
        with fault(lib.FFFS_FAULT_THREAD, nth, FOREVER, -EAGAIN):
            for _ in range(2):
                make_cold(source)
                Batch(fault_records(source)).check()
        assert usage()[1] <= nth - 1
        Batch(fault_records(source)).check()

    for nth in (1, 2, 5):
        wait_for(in_child(functools.partial(child, nth)))


def test_faults_are_seen(backend: str, source: Source) -> None:
    """The test above would prove nothing if the operations it makes fail did not happen."""
    records = fault_records(source)
    kinds = {
        "uring": ["PREAD", "URING_SUBMIT", "URING_COMPLETE", "URING_GET_SQE", "MEMORY"],
        "aio": ["PREAD", "AIO_SUBMIT", "AIO_COMPLETE", "AIO_WAIT", "MEMORY"],
        "pread": ["PREAD", "MEMORY"],
    }
    for kind in kinds[backend]:
        make_cold(source)
        with fault(getattr(lib, f"FFFS_FAULT_{kind}"), FOREVER, 1, 0) as seen:
            Batch(records).check()
        assert seen() > 0, kind


@pytest.fixture
def one_thread() -> Iterator[None]:
    """A single thread, so that a batch has a single ring."""
    before = lib.fffs_engine_threads()
    lib.fffs_engine_set_threads(1)
    yield
    lib.fffs_engine_set_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_setup_fails_in_a_batch(source: Source) -> None:
    """A context that can no longer be opened when a batch wants it."""
    before = engine.name()
    for name, kind in (("uring", lib.FFFS_FAULT_URING_SETUP), ("aio", lib.FFFS_FAULT_AIO_SETUP)):
        if engine.select(name) != name:
            continue
        records = [Record(source, n * 30_000, 40_000) for n in range(100)]
        # A failed submission closes the context of a batch; the next batch finds none and cannot open one.
        submit = lib.FFFS_FAULT_URING_SUBMIT if name == "uring" else lib.FFFS_FAULT_AIO_WAIT
        make_cold(source)
        with fault(submit, 1, 1, -EIO):
            Batch(records).check()
        assert usage()[0] == 0
        make_cold(source)
        with fault(kind, 1, FOREVER, -errno.EMFILE) as seen:
            Batch(records).check()
            assert seen() == 1
        make_cold(source)
        with fault(lib.FFFS_FAULT_MEMORY, 2, 1, -ENOMEM):  # the first is the batch itself, this the context
            Batch(records).check()
        assert usage()[0] == 0
        make_cold(source)
        Batch(records).check()
        assert usage()[0] == 1
    engine.select(before)


@pytest.mark.usefixtures("one_thread")
def test_a_full_ring_is_not_kept(source: Source) -> None:
    before = engine.name()
    if engine.select("uring") != "uring":
        pytest.skip("this system refuses uring")
    make_cold(source)
    with fault(lib.FFFS_FAULT_URING_GET_SQE, 1, FOREVER, 0) as seen:
        Batch(fault_records(source)).check()
    assert seen() == 1 and usage()[0] == 0
    engine.select(before)


@pytest.mark.parametrize("nth", [2, 3, 5, 8])
def test_nothing_is_in_flight_afterwards(backend: str, source: Source, nth: int) -> None:
    """The caller may use the memory for something else at once, also when the backend broke down in the middle."""
    kind = {"uring": "URING_SUBMIT", "aio": "AIO_WAIT", "pread": "PREAD"}[backend]
    records = [Record(source, n * 50_000, 50_000) for n in range(100)]
    make_cold(source)
    batch = Batch(records)
    with fault(getattr(lib, f"FFFS_FAULT_{kind}"), nth, FOREVER, -EIO):
        batch.run()
    for buffer in batch.buffers:
        buffer[:] = 0x5A
    for _ in range(20):
        time.sleep(0.001)
        assert all((buffer == 0x5A).all() for buffer in batch.buffers)


def test_descriptors_run_out_in_a_batch(source: Source) -> None:
    """For real: no ring can be opened, and the batch is read all the same."""
    code = f"""
import os, resource, sys
import numpy as np
from fffs import engine
from fffs.native import lib
fd = os.open({os.readlink(f"/proc/self/fd/{source.fd}")!r}, os.O_RDONLY)
requests = np.zeros(40, engine.REQUEST)
requests["fd"], requests["length"], requests["offset"] = fd, 100_000, np.arange(40) * 100_000
lib.fffs_fault_set(lib.FFFS_FAULT_URING_SUBMIT, 1, 1, -5)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
assert engine.read_batch(requests)
resource.setrlimit(resource.RLIMIT_NOFILE, (fd + 1, fd + 1))
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
assert engine.read_batch(requests)
"""
    run_python(code)


# ---------------------------------------------------------------- threads


def test_threads_share_the_engine(backend: str, source: Source, second: Source) -> None:
    def work(number: int) -> None:
        rng = random.Random(number)
        for turn in range(6):
            if turn % 2:
                make_cold(source, second)
            Batch(random_records(rng, [source, second], rng.choice([3, 40, 120]), 80_000)).check()

    run_threads(work, 16)
    contexts, threads = usage()
    assert contexts <= 16
    assert threads <= 31 + lib.fffs_engine_threads()


def test_backend_changes_while_batches_run(source: Source) -> None:
    before = engine.name()
    stop = threading.Event()

    def switch(number: int) -> None:
        if number == 0:
            while not stop.is_set():
                for name in BACKENDS:
                    engine.select(name)
            return
        try:
            for seed in range(10):
                make_cold(source)
                Batch(random_records(random.Random(seed), [source], 60, 50_000)).check()
        finally:
            stop.set()

    run_threads(switch, 4)
    engine.select(before)


# ---------------------------------------------------------------- forks


def in_child(work: Callable[[], None]) -> int:
    """Fork; the child runs work and exits. Gives its process number."""
    with warnings.catch_warnings():
        # Python 3.12 warns of forks with threads about. That this works is what is tested.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def wait_for(pid: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    pytest.fail("a forked child hangs")


def test_fork_after_use(backend: str, source: Source) -> None:
    records = fault_records(source)
    make_cold(source)
    Batch(records).check()
    mine = engine.take(3 << 20)
    mine[:] = 1

    def child() -> None:
        assert usage() == (0, 0)
        mine[:] = 2
        for _ in range(3):
            make_cold(source)
            Batch(records).check()
        wait_for(in_child(lambda: Batch(records).check()))

    pid = in_child(child)
    for _ in range(3):
        make_cold(source)
        Batch(records).check()
    wait_for(pid)
    assert (mine == 1).all()


def test_child_closes_its_copies(backend: str, source: Source) -> None:
    """A ring must go when the parent closes it, not live on in a child that cannot use it."""
    make_cold(source)
    Batch(fault_records(source)).check()

    def child() -> None:
        links = [
            os.readlink(f"/proc/self/fd/{fd}")
            for fd in os.listdir("/proc/self/fd")
            if os.path.lexists(f"/proc/self/fd/{fd}")
        ]
        assert not any("io_uring" in link for link in links)

    wait_for(in_child(child))


def test_fork_in_the_middle_of_batches(backend: str, source: Source, second: Source) -> None:
    stop = threading.Event()
    failures: list[BaseException] = []

    def read(number: int) -> None:
        rng = random.Random(number)
        try:
            while not stop.is_set():
                if number % 2:
                    make_cold(source)
                Batch(random_records(rng, [source, second], 60, 100_000)).check()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    records = fault_records(source)

    def child() -> None:
        for _ in range(2):
            make_cold(source)
            Batch(records).check()

    try:
        for _ in range(10):
            wait_for(in_child(child))
            Batch(records).check()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures


def test_fork_while_work_is_on_offer(source: Source) -> None:
    """The child neither works at what the parent's threads offer nor counts the helpers promised to them."""
    threads = lib.fffs_engine_threads()
    records = [Record(source, n * 50_000, 60_000) for n in range(100)]

    def grandchild() -> None:
        lib.fffs_fault_set(lib.FFFS_FAULT_NONE, 0, 0, 0)
        for _ in range(3):
            Batch(records).check()
        assert usage()[1] == 7

    def child() -> None:
        lib.fffs_engine_set_threads(8)
        stop = threading.Event()

        def offer() -> None:
            while not stop.is_set():
                Batch(records).run()

        # Nobody ever takes up what these offer.
        with fault(lib.FFFS_FAULT_THREAD, 1, FOREVER, -EAGAIN):
            offering = [threading.Thread(target=offer) for _ in range(3)]
            for thread in offering:
                thread.start()
            for _ in range(10):
                wait_for(in_child(grandchild))
            stop.set()
            for thread in offering:
                thread.join()

    wait_for(in_child(child))
    assert lib.fffs_engine_threads() == threads


def test_errors_of_the_engine_are_exceptions(monkeypatch: pytest.MonkeyPatch, source: Source) -> None:
    batch = Batch([Record(source, 0, 10)])
    monkeypatch.setattr(engine, "_read_batch", lambda *_: -errno.ENOSYS)
    with pytest.raises(EngineError, match="not implemented"):
        batch.run()
    batch = Batch(fault_records(source))
    monkeypatch.undo()
    with fault(lib.FFFS_FAULT_MEMORY, 1, 1, -ENOMEM), pytest.raises(MemoryError):
        batch.run()


def test_request_is_what_c_says() -> None:
    for name in REQUEST.names or ():
        assert REQUEST.fields is not None
        assert REQUEST.fields[name][1] == ffi.offsetof("fffs_request", name)
    assert ctypes.sizeof(ctypes.c_void_p) == 8
