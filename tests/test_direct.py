"""Direct I/O: the same bytes and errors as through the page cache, from unaligned places."""

from __future__ import annotations

import errno
import os
import pickle
import random
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cached import Cached
from engine_model import Batch, Record, Source, in_child, make_cold, many_records, random_records, run_python, wait_for
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inside import BLOCK, CHECK_CRC32, engine, ffi, lib, local

from fffs import FileReader, FileWriter
from fffs.errors import ChecksumError, ClosedError, TruncatedError

pytest_plugins = ("engine_fixtures",)

SIZES = [1, 0, 511, 512, 513, 4095, 4096, 4097, 100_000, 262_144, 300_000, BLOCK, BLOCK + 1, 2 * BLOCK + 77_777, 3]
CONTENTS = [random.Random(k).randbytes(size) for k, size in enumerate(SIZES)]
asynchronous = pytest.mark.parametrize("backend", ["uring", "aio"], indirect=True)


@pytest.fixture
def records(folder: Path) -> Iterator[Path]:
    """Records whose places and lengths are close to all limits; the last one ends with the file."""
    target = folder / "records.ffr"
    with FileWriter(target, len(CONTENTS)) as writer:
        for content in CONTENTS:
            writer.write_one(content)
    yield target
    target.unlink()


@pytest.fixture
def path(records: Path) -> Path:
    """The same, on a file system with direct I/O."""
    with FileReader(records) as reader:
        if not reader.use_direct():
            pytest.skip("no reads past the page cache here")
    return records


# ---------------------------------------------------------------- the engine


@asynchronous
@pytest.mark.usefixtures("nothing_leaks", "backend")
def test_mixed_batches(direct: Source, source: Source) -> None:
    rng = random.Random(17)
    Batch(many_records(direct)).check()
    for count in (2, 3, 17, 300):
        Batch(random_records(rng, [direct, source], count, 600_000)).check()


@asynchronous
@pytest.mark.usefixtures("nothing_leaks", "backend")
@given(data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_places_near_to_limits(direct: Source, data: st.DataObject) -> None:
    size = len(direct.data or b"")
    edges = st.sampled_from([0, 512, 4096, 8192, 262_144, BLOCK, size - 4096, size - 512, size])
    near = st.builds(lambda edge, off: max(0, edge + off), edges, st.integers(-3, 3))
    lengths = st.one_of(st.integers(1, 20), st.sampled_from([508, 512, 4090, 4096, 258_048, 262_144, 270_000]))
    pairs = data.draw(st.lists(st.tuples(near, lengths), min_size=2, max_size=6))
    Batch(Record(direct, offset, length) for offset, length in pairs).check()


def test_without_memory_plain_reads_do_it(path: Path) -> None:
    """The test runs in a process of its own, whose buffer pool is empty."""
    code = """
        import os, fffs, numpy as np
        from fffs.native import lib
        with fffs.FileReader(os.environ["RECORDS"]) as reader:
            assert reader.use_direct()
            into = np.zeros(200_000, np.uint8)
            lib.fffs_fault_set(lib.FFFS_FAULT_MEMORY, 1, 1 << 40, -12)
            ends = reader.read_into([7, 8], into)
            assert lib.fffs_fault_seen(lib.FFFS_FAULT_MEMORY) > 0
            lib.fffs_fault_set(lib.FFFS_FAULT_NONE, 0, 0, 0)
            assert bytes(into[: ends[-1]]) == b"".join(map(bytes, reader.read([7, 8])))
    """
    run_python(textwrap.dedent(code), RECORDS=str(path))


@pytest.mark.usefixtures("nothing_leaks")
def test_alignments_that_cannot_be_are_refused(direct: Source) -> None:
    assert direct.direct is not None
    for align in (3, 4095, 8192, 2**31, 2**32 - 1):
        batch = Batch([Record(Source(direct.fd, direct.data, (direct.direct[0], align)), 5, 10)] * 3)
        assert not batch.run()
        assert batch.requests["status"].tolist() == [-errno.EINVAL] * 3


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    align = ffi.new("uint32_t *")
    assert lib.fffs_open_direct(-1, align) == -errno.EBADF
    ends = os.pipe()
    assert lib.fffs_open_direct(ends[0], align) in (-errno.EOPNOTSUPP, -errno.EINVAL)
    for end in ends:
        os.close(end)
    memory = os.memfd_create("a")
    assert lib.fffs_open_direct(memory, align) < 0 or align[0] > 0
    os.close(memory)


# ---------------------------------------------------------------- readers


@asynchronous
@pytest.mark.usefixtures("backend")
def test_a_reader_gives_the_same(path: Path) -> None:
    numbers = [*range(len(CONTENTS)), 8, 8, -1, 0]
    expected = [CONTENTS[k] for k in numbers]
    with FileReader(path) as reader:
        assert reader.use_direct()
        assert [array.tobytes() for array in reader.read(numbers)] == expected
        joined, offsets = reader.read_joined(numbers)
        assert joined.tobytes() == b"".join(expected)
        out = np.zeros(offsets[-1] + 10, np.uint8)
        reader.read_into(numbers, out)
        assert out.tobytes() == b"".join(expected) + bytes(10)
        assert reader.read_one(9).tobytes() == CONTENTS[9]
        assert reader.store.verify(np.arange(len(CONTENTS))) == []
        reader.prefetch(numbers)


@asynchronous
@pytest.mark.usefixtures("backend")
def test_the_page_cache_stays_as_it_is(folder: Path) -> None:
    path = folder / "equal.ffr"
    with closing(Cached(path, 60, 20_000)) as cached, FileReader(path) as reader:
        if not reader.use_direct():
            pytest.skip("no reads past the page cache here")
        reader.use_blocks(1 << 16)
        reader.prefetch(range(60))
        assert [array[0] for array in reader.read(range(60))] == list(range(60))
        assert not any(record in cached for record in range(2, 60))  # others share a block with the header
        assert not reader.use_direct(False)
        assert [array[0] for array in reader.read([50, 20])] == [50, 20]
        assert 50 in cached


@asynchronous
@pytest.mark.usefixtures("backend")
def test_damage_is_found(path: Path) -> None:
    with FileReader(path) as reader:
        assert reader.use_direct()
        start = int(reader.index().starts[8])
        with path.open("r+b") as file:
            file.seek(start + 50_000)
            file.write(bytes([CONTENTS[8][50_000] ^ 1]))
        with pytest.raises(ChecksumError, match="record 8"):
            reader.read([7, 8, 9])
        assert [array.tobytes() for array in reader.read([7, 9])] == [CONTENTS[7], CONTENTS[9]]
        os.truncate(path, start + 90_000)
        with pytest.raises(TruncatedError):
            reader.read([7, 9])
        assert [array.tobytes() for array in reader.read([6, 7])] == [CONTENTS[6], CONTENTS[7]]


def test_copies_and_children_read_so_too(path: Path) -> None:
    with FileReader(path) as reader:
        assert reader.use_direct()
        copy = pickle.loads(pickle.dumps(reader))
        assert copy.store.policy.direct
        copy.close()
        reader.use_blocks(1 << 16)
        copy = pickle.loads(pickle.dumps(reader))
        assert (copy.store.policy.direct, copy.store.policy.around) == (True, 1 << 16)
        child = os.fork()
        if child == 0:
            os._exit([array.tobytes() for array in reader.read(range(len(CONTENTS)))] != CONTENTS)
        assert os.waitpid(child, 0)[1] == 0
        copy.close()
    with pytest.raises(ClosedError):
        reader.use_direct()


@pytest.mark.parametrize("backend", ["pread"], indirect=True)
@pytest.mark.usefixtures("backend")
def test_plain_reads_are_not_past_the_page_cache(records: Path) -> None:
    with FileReader(records) as reader:
        assert not reader.use_direct()
        assert [array.tobytes() for array in reader.read([8, 9])] == [CONTENTS[8], CONTENTS[9]]


def test_a_child_that_is_forked_while_a_thread_opens_the_files(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opening, go_on = threading.Event(), threading.Event()

    class Slow:
        """The library, with a slow fffs_open_direct."""

        def __getattr__(self, name: str) -> Any:
            return getattr(lib, name)

        def fffs_open_direct(self, fd: int, align: Any) -> int:
            opening.set()
            go_on.wait(60)
            return int(lib.fffs_open_direct(fd, align))

    with FileReader(path) as reader, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(local, "lib", Slow())
        other = pool.submit(reader.store.use_direct)
        assert opening.wait(60)

        def work() -> None:
            assert not reader.use_direct(False)
            assert [array.tobytes() for array in reader.read([8, 9])] == [CONTENTS[8], CONTENTS[9]]

        child = in_child(work)
        go_on.set()
        assert other.result(60)
    wait_for(child)


def test_closing_closes_all(path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    reader = FileReader([path, path])
    assert reader.use_direct()
    assert reader.use_direct()
    assert len(os.listdir("/proc/self/fd")) == before + 4
    assert [array.tobytes() for array in reader.read([8, 8 + len(CONTENTS)])] == [CONTENTS[8]] * 2
    engine.select("pread")  # closes the rings
    engine.select()
    reader.close()
    assert len(os.listdir("/proc/self/fd")) <= before + 1


@asynchronous
@pytest.mark.usefixtures("nothing_leaks", "backend")
def test_a_source_that_grows_cold_again_and_again(direct: Source) -> None:
    for _ in range(5):
        make_cold(direct)
        Batch([Record(direct, 4096 * n + n, 4096, check=CHECK_CRC32, keep=n % 3 > 0) for n in range(200)]).check()
