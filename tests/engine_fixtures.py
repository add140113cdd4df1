"""Fixtures of the tests of the native engine: files that can be dropped from the page cache, backends, leak checks."""

from __future__ import annotations

import gc
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_model import BACKENDS, Source, buffers, descriptors, tells_what_is_cached, thread_limit, usage
from inside import BLOCK, engine, ffi, lib


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on a file system whose files can be dropped from the page cache."""
    for candidate in (str(tmp_path_factory.getbasetemp()), "/var/tmp", os.getcwd()):
        if os.access(candidate, os.W_OK) and tells_what_is_cached(candidate):
            with tempfile.TemporaryDirectory(dir=candidate) as path:
                yield Path(path)
            return
    pytest.skip("no file system here supports RWF_NOWAIT")


@pytest.fixture(scope="module")
def source(folder: Path) -> Iterator[Source]:
    """A file of slightly more than five blocks, on the disk."""
    data = random.Random(1).randbytes(5 * BLOCK + 12345)
    path = folder / "data"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    yield Source(fd, data)
    os.close(fd)


@pytest.fixture(scope="module")
def direct(source: Source) -> Iterator[Source]:
    """The same file, with a descriptor for direct I/O; if the system refuses direct I/O, an ordinary one instead."""
    align = ffi.new("uint32_t *", 512)
    fd = lib.fffs_open_direct(source.fd, align)
    if fd < 0:
        fd = os.dup(source.fd)
    yield Source(source.fd, source.data, (fd, align[0]))
    os.close(fd)


@pytest.fixture
def second(folder: Path) -> Iterator[Source]:
    """Another small file."""
    data = random.Random(2).randbytes(100_001)
    path = folder / "second"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    yield Source(fd, data)
    os.close(fd)


@pytest.fixture
def closed() -> Source:
    """A descriptor that is not open."""
    return Source(2**20 + 7, None)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    before = engine.name()
    if engine.select(request.param) != request.param:
        pytest.skip(f"this system refuses {request.param}")
    yield request.param
    engine.select(before)


@pytest.fixture
def nothing_leaks() -> Iterator[None]:
    """Fail if a test leaves a fault armed, a descriptor open (except those of contexts) or a buffer in use."""
    chosen = engine.name()
    engine.select("pread")
    gc.collect()  # free cycles of earlier tests
    before = descriptors(), buffers()[0]
    engine.select(chosen)
    yield
    lib.fffs_fault_set(lib.FFFS_FAULT_NONE, 0, 0, 0)
    chosen = engine.name()
    engine.select("pread")
    assert usage()[0] == 0
    gc.collect()
    now = descriptors(), buffers()[0]
    # Fewer are no leak: a thread that an earlier test of this process left may have closed a descriptor meanwhile.
    assert now[0] <= before[0] and now[1] <= before[1], f"{now} descriptors and bytes of buffers, {before} before"
    engine.select(chosen)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Use a single thread, so that a batch uses a single ring."""
    with thread_limit(1):
        yield
