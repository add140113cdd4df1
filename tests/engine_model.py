"""For the tests of the engine: the expected result of a batch; functions that trace, disturb and fork the engine."""

from __future__ import annotations

import ctypes
import errno
import mmap
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
from typing import Any

import numpy as np
import pytest
from inside import BLOCK, CHECK_CRC32, CHECK_CRC32C, CHECK_NONE, REQUEST, engine, ffi, lib

BACKENDS = ("uring", "aio", "pread")
FOREVER = 10**9

# Seconds after which a test is considered hung, even on a busy machine.
PATIENCE = 120

# Dropping a file from the page cache may fail while other programs read it.
COLD_TRIES = 20

_pointer, _size = ctypes.c_void_p, ctypes.c_size_t
_libc = ctypes.CDLL(None)
_libc.mmap.restype = _pointer

# ---------------------------------------------------------------- the model: the expected result of a batch


@dataclass
class Source:
    """An open file and its content; ``data`` is None if reading it must give -EBADF."""

    fd: int
    data: bytes | None = field(repr=False)
    direct: tuple[int, int] | None = None  # descriptor and alignment for direct I/O


@dataclass
class Record:
    """One request and its expected result."""

    source: Source
    offset: int
    length: int
    check: int = CHECK_CRC32
    keep: bool = True
    spoil: int = 0  # XORed into the expected checksum

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
        content = self.content
        if self.check == CHECK_CRC32C:
            return int(lib.fffs_crc32c_by_tables(0, content, len(content)))
        return zlib.crc32(content)


class Batch:
    """Records with their destinations, each between guard bytes that must not change."""

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
            if record.source.direct:
                request["direct_fd"], request["align"] = record.source.direct

    def run(self) -> bool:
        return engine.read_batch(self.requests)

    def verify(self, may_also_be: Iterable[int] = ()) -> int:
        """Compare each result with the model. Returns how many had a status in may_also_be instead."""
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
                assert int(request["actual"]) == (record.crc if record.check != CHECK_NONE else 0)
            else:
                assert int(request["actual"]) == 0
        return excused

    def check(self) -> None:
        """Run, and compare with the model."""
        good = self.run()
        self.verify()
        assert good == all(record.status == 0 for record in self.records)


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
                check=rng.choice([CHECK_CRC32, CHECK_CRC32, CHECK_CRC32C, CHECK_NONE]),
                keep=rng.random() < 0.8,
                spoil=rng.choice([0, 0, 0, 1, 0x80000000]),
            )
        )
    return records


def many_records(source: Source) -> list[Record]:
    """Return large and small records, with and without destinations, in all more than the depth of a ring."""
    rng = random.Random(11)
    records = [Record(source, 5, 2 * BLOCK + 1), Record(source, 9, 2 * BLOCK, keep=False)]
    records += [Record(source, rng.randrange(5 * BLOCK), rng.randrange(1, 9000)) for _ in range(140)]
    return records


# ---------------------------------------------------------------- files and memory


def tells_what_is_cached(folder: str) -> bool:
    """Whether this file system supports RWF_NOWAIT, without which the asynchronous backends are not used."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"x")
        file.flush()
        try:
            os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except OSError as error:
            return error.errno == errno.EAGAIN
        return True


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def usage() -> tuple[int, int]:
    """Return the numbers of idle contexts and helper threads."""
    numbers = ffi.new("int32_t[2]")
    lib.fffs_engine_usage(numbers, numbers + 1)
    return numbers[0], numbers[1]


def buffers() -> tuple[int, int]:
    """Return the bytes of buffers in use and idle."""
    numbers = ffi.new("uint64_t[2]")
    lib.fffs_buffer_usage(numbers, numbers + 1)
    return numbers[0], numbers[1]


def cached_pages(address: int, size: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Tell which pages of a mapped file, from a page-aligned address on, are in the page cache.

    Uses mincore, because a read with RWF_NOWAIT starts to load pages that are not cached.
    """
    pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
    assert _libc.mincore(_pointer(address), _size(size), _pointer(pages.ctypes.data)) == 0
    return (pages & 1).astype(bool)


def make_cold(*sources: Source) -> None:
    """Drop files from the page cache. Retries, because pages that are still being read ahead cannot be dropped."""
    for source in sources:
        size = len(source.data)
        # mmap.mmap duplicates the descriptor, and some tests have no descriptor left.
        address = _libc.mmap(None, _size(size), mmap.PROT_READ, mmap.MAP_SHARED, source.fd, _size(0))
        for _ in range(COLD_TRIES):
            os.posix_fadvise(source.fd, 0, 0, os.POSIX_FADV_DONTNEED)
            if not cached_pages(address, size).any():
                break
            time.sleep(0.005)
        assert _libc.munmap(_pointer(address), _size(size)) == 0


@contextmanager
def fault(kind: int, nth: int, count: int, result: int) -> Iterator[Callable[[], int]]:
    """Make operations nth to nth + count - 1 of a kind return result. Yields a function that counts the operations."""
    lib.fffs_fault_set(kind, nth, count, result)
    try:
        yield lambda: int(lib.fffs_fault_seen(kind))
    finally:
        lib.fffs_fault_set(lib.FFFS_FAULT_NONE, 0, 0, 0)


@contextmanager
def nothing_cached() -> Iterator[None]:
    """Treat batches as cold, whatever the page cache holds: with a fast disk it fills while the engine probes it."""
    with fault(lib.FFFS_FAULT_NOWAIT, 1, FOREVER, -errno.EAGAIN):
        yield


@contextmanager
def later() -> Iterator[None]:
    """Pretend that every file rests, so that verified records are remembered."""
    with fault(lib.FFFS_FAULT_CLOCK, 1, 1 << 40, 61):
        yield


# ---------------------------------------------------------------- threads and processes


def held() -> int:
    """Return how many operations an injected fault blocks."""
    return int(lib.fffs_fault_held())


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never happens"
        time.sleep(0.001)


@contextmanager
def thread_limit(threads: int) -> Iterator[None]:
    """Use this many threads for cached data, and this many rings for cold data."""
    before = lib.fffs_engine_threads()
    lib.fffs_engine_set_threads(threads)
    try:
        yield
    finally:
        lib.fffs_engine_set_threads(before)


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


def run_python(code: str, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def in_child(work: Callable[[], None]) -> int:
    """Fork a child that runs work and exits. Returns its process number."""
    with warnings.catch_warnings():
        # Python 3.12 warns of forks in processes with threads, which is what these tests are about.
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
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    pytest.fail("a forked child hangs")
