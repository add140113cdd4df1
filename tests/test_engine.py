"""The native engine: right bytes or a typed status, from any number of threads, with each backend."""

from __future__ import annotations

import ctypes
import errno
import gc
import logging
import os
import random
import tempfile
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
from engine_model import (
    BACKENDS,
    COLD_TRIES,
    FOREVER,
    Batch,
    Record,
    Source,
    buffers,
    fault,
    make_cold,
    many_records,
    random_records,
    run_python,
    run_threads,
    usage,
)
from hypothesis import given
from hypothesis import strategies as st
from inside import BLOCK, CHECK_CRC32, CHECK_CRC32C, REQUEST, crc32, crc32_combine, engine, ffi, lib

from fffs.errors import EngineError, UsageError

pytest_plugins = ("engine_fixtures",)
pytestmark = pytest.mark.usefixtures("nothing_leaks")

# ---------------------------------------------------------------- checksums


def test_self_test() -> None:
    assert lib.fffs_self_test() == 0


@given(st.binary(max_size=5000), st.integers(0, 2**32 - 1))
def test_crc32_is_zlibs(data: bytes, start: int) -> None:
    assert crc32(data, start) == zlib.crc32(data, start)
    assert crc32(memoryview(bytearray(data)), start) == zlib.crc32(data, start)


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_combine(a: bytes, b: bytes) -> None:
    assert crc32_combine(zlib.crc32(a), zlib.crc32(b), len(b)) == zlib.crc32(a + b)


@pytest.mark.parametrize("length", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_combine_long(length: int) -> None:
    b = random.Random(length).randbytes(length)
    assert crc32_combine(0x12345678, zlib.crc32(b), length) == zlib.crc32(b, 0x12345678)


def test_combine_beyond_memory() -> None:
    """Lengths that use every bit of the exponent: combining (A, B) with C equals combining A with (B, C)."""
    b, c = 2**63 + 12345, 2**62 + 2**40 + 1
    left = crc32_combine(crc32_combine(1, 2, b), 3, c)
    right = crc32_combine(1, crc32_combine(2, 3, c), b + c)
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
    del_all = engine.take(300 << 20)  # larger than the pool, so it is returned to the system
    del del_all
    assert buffers()[1] <= 256 << 20


def test_memory_that_nobody_has_wanted_for_long_goes_back() -> None:
    arrays = [engine.take(3 << 20) for _ in range(8)]
    del arrays
    assert buffers()[1] >= 8 * (3 << 20)
    with fault(lib.FFFS_FAULT_CLOCK, 1, FOREVER, 11):
        for _ in range(100):  # each takes the place of another one in the pool
            engine.take(1 << 20)
        assert buffers()[1] <= 2 << 20, "only what is in use"


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
    """For any number of records: at most 32 MiB in flight, and a scratch buffer for each of two threads."""
    code = f"""
import os
import numpy as np
from fffs.native import engine
from fffs.native import engine, ffi, lib
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


@pytest.mark.parametrize("length", [1, 255, 4096, BLOCK, BLOCK + 1, 5 * BLOCK - 3])
def test_either_checksum_is_compared_over_all_blocks(backend: str, source: Source, length: int) -> None:
    for check in (CHECK_CRC32, CHECK_CRC32C):
        Batch([Record(source, 7, length, check), Record(source, 7, length, check, spoil=1 << 31)]).check()


def test_invalid_requests_are_refused_alone(source: Source) -> None:
    records = [Record(source, n, 100) for n in range(5)]
    for name, value in (("offset", -1), ("length", -1), ("length", 2**63 - 1), ("check", 3)):
        batch = Batch(records)
        batch.requests[name][2] = value
        if value == 2**63 - 1:
            batch.requests["offset"][2] = 1  # the sum of offset and length is not a valid offset
        assert not batch.run()
        assert batch.requests["status"].tolist() == [0, 0, -errno.EINVAL, 0, 0]


@pytest.mark.parametrize("around", [1, 4097, 1 << 16, 2**32 - 1])
def test_blocks_around_records_end_with_the_file_and_with_the_numbers(
    backend: str, source: Source, around: int
) -> None:
    assert source.data is not None
    size = len(source.data)
    batch = Batch([Record(source, 0, 10), Record(source, 0, size), *[Record(source, size - 9, 9) for _ in range(70)]])
    batch.requests["around"] = around
    batch.check()
    batch.requests["offset"][2] = 2**63 - 10  # the end of its block is not a valid offset
    assert not batch.run()
    assert batch.requests["status"].tolist() == [0, 0, -errno.ENODATA, *[0] * 69]


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
    """An example is tmpfs, where nothing is ever cold."""
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
    """The other tests of cold data depend on this."""
    kinds = {"uring": lib.FFFS_FAULT_URING_COMPLETE, "aio": lib.FFFS_FAULT_AIO_COMPLETE, "pread": lib.FFFS_FAULT_PREAD}

    def reads() -> int:
        make_cold(source)
        # Probing for cached pages is a PREAD, too.
        with fault(lib.FFFS_FAULT_NOWAIT, FOREVER, 1, 0) as asked, fault(kinds[backend], FOREVER, 1, 0) as seen:
            Batch(Record(source, n * 100_000, 100_000) for n in range(50)).check()
            return seen() - (asked() if backend == "pread" else 0)

    assert any(reads() >= 20 for _ in range(COLD_TRIES))


def test_direct_files(backend: str, folder: Path, source: Source) -> None:
    """O_DIRECT: aligned reads succeed; unaligned ones give -EINVAL from the file system."""
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
        assert requests["status"][100] in (-errno.EINVAL, -errno.EBADMSG)  # the second: buffered by the system
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


def test_environment() -> None:
    code = "from fffs.native import engine, lib; print(engine.name(), lib.fffs_engine_threads())"
    assert run_python(code, FFFS_ENGINE="pread", FFFS_THREADS="3") == "pread 3"


FIRST_USES = {
    "name": "engine.name()",
    "batch": "engine.read_batch(engine.np.zeros(1, engine.REQUEST))",
    "record": "store.read_one(0)",
    "range": "store.read_range(0, 1, 2)",
}


@pytest.mark.parametrize("use", FIRST_USES)
def test_the_first_use_chooses(use: str, folder: Path) -> None:
    """Nothing is chosen before: importing needs no ring, and does not fail because of the environment."""
    (folder / "ten").write_bytes(b"0123456789")
    code = f"""
from fffs.native import engine, ffi, lib
from fffs.native.checksums import CHECK_NONE
from fffs.files.local import LocalFile
from fffs.records.index import RecordIndex
from fffs.records.source_file import SourceFile
from fffs.records.store import RecordStore
import numpy as np, os
path = {os.fspath(folder / "ten")!r}
index = RecordIndex(path, np.array([0]), np.array([10]), None, CHECK_NONE, 10)
store = RecordStore([SourceFile(LocalFile.open(path), index)])
counts = ffi.new("int32_t[2]")
lib.fffs_engine_usage(counts, counts + 1)
print(counts[0], ffi.string(lib.fffs_engine_name()).decode())
for _ in range(2):
    try:
        {FIRST_USES[use]}
    except ValueError as error:
        print(error)
print(ffi.string(lib.fffs_engine_name()).decode(), lib.fffs_engine_threads())
"""
    best = run_python("from fffs.native import engine; print(engine.name())", FFFS_ENGINE="")
    assert run_python(code, FFFS_THREADS="3", FFFS_ENGINE="").splitlines() == ["0 pread", f"{best} 3"]
    for name, bad in [("FFFS_THREADS", bad) for bad in ("0", "x", "-1", "")] + [("FFFS_ENGINE", "bogus")]:
        lines = run_python(code, **{name: bad}).splitlines()
        assert lines[0] == "0 pread" and lines[1] == lines[2] and lines[1].startswith(name), lines


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

from fffs.native import engine
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
    """Docker's default profile does this: io_uring_setup gives EPERM."""
    name = run_python(FORBIDDEN, FFFS_ENGINE="")
    if name == "no seccomp":
        pytest.skip(name)
    assert name in ("aio", "pread")
    assert run_python(FORBIDDEN, FFFS_ENGINE="uring") == "pread"


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


def test_errors_of_the_engine_are_exceptions(monkeypatch: pytest.MonkeyPatch, source: Source) -> None:
    batch = Batch([Record(source, 0, 10)])
    monkeypatch.setattr(engine, "_read_batch", lambda *_: -errno.ENOSYS)
    with pytest.raises(EngineError, match="not implemented"):
        batch.run()
    batch = Batch(many_records(source))
    monkeypatch.undo()
    with fault(lib.FFFS_FAULT_MEMORY, 1, 1, -errno.ENOMEM), pytest.raises(MemoryError):
        batch.run()


def test_request_is_what_c_says() -> None:
    for name in REQUEST.names or ():
        assert REQUEST.fields is not None
        assert REQUEST.fields[name][1] == ffi.offsetof("fffs_request", name)
    assert ctypes.sizeof(ctypes.c_void_p) == 8
