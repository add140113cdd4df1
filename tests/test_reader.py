"""FileReader and FileWriter: the behaviour on which code for ffrecord depends, and the extensions."""

from __future__ import annotations

import array
import copy
import gc
import mmap
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_files import GOLDEN, RawRecordFile

import fffs
from fffs.errors import (
    ChecksumError,
    FffsError,
    FormatError,
    RecordIndexError,
    SourceNotFoundError,
    UsageError,
    WriteError,
    WriterError,
)

MIXED = GOLDEN.path("mixed-100.ffr")
TINY = GOLDEN.path("tiny-5000.ffr")
MIXED_RECORDS = GOLDEN.raw("mixed-100.ffr").records
TINY_RECORDS = GOLDEN.raw("tiny-5000.ffr").records


@pytest.fixture
def reader() -> Iterator[fffs.FileReader]:
    """A reader of 100 records of 0 to 65536 bytes."""
    with fffs.FileReader(MIXED) as opened:
        yield opened


def as_bytes(records: Iterable[Any]) -> list[bytes]:
    return [record.tobytes() for record in records]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def run_python(code: str, *arguments: str | os.PathLike[str], stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(os.fspath, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)


# ---------------------------------------------------------------- arguments

ASKED = [7, 3, 50, 7, 0, 99]
CONTAINERS: dict[str, Callable[[], Any]] = {
    "list": lambda: list(ASKED),
    "tuple": lambda: tuple(ASKED),
    "int64 array": lambda: np.array(ASKED),
    "uint8 array": lambda: np.array(ASKED, np.uint8),
    "int32 array": lambda: np.array(ASKED, np.int32),
    "uint64 array": lambda: np.array(ASKED, np.uint64),
    "strided array": lambda: np.repeat(np.array(ASKED), 3)[::3],
    "list of numpy integers": lambda: list(np.array(ASKED, np.int16)),
    "generator": lambda: (i for i in ASKED),
    "map": lambda: map(int, ASKED),
    "array.array": lambda: array.array("q", ASKED),
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_indices_come_in_any_container(reader: fffs.FileReader, container: str) -> None:
    assert as_bytes(reader.read(CONTAINERS[container]())) == [MIXED_RECORDS[i] for i in ASKED]


@pytest.mark.parametrize("indices", [range(10), range(90, 10, -7), range(0)])
def test_a_range_is_a_container(reader: fffs.FileReader, indices: range) -> None:
    assert as_bytes(reader.read(indices)) == [MIXED_RECORDS[i] for i in indices]


def test_a_set_is_a_container(reader: fffs.FileReader) -> None:
    assert sorted(as_bytes(reader.read({5, 6, 7}))) == sorted(MIXED_RECORDS[5:8])


@pytest.mark.parametrize("nothing", [[], (), set(), range(0), np.array([], np.int64), np.array([]), iter(())])
def test_nothing_asked_is_nothing_given(reader: fffs.FileReader, nothing: Any) -> None:
    assert reader.read(nothing) == []


@pytest.mark.parametrize("wrong", [["1"], [1.5], [None], "12", [b"1"], 7.0, None, np.array([0.5]), [[1, 2]]])
def test_what_is_no_index_is_refused(reader: fffs.FileReader, wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        reader.read(wrong)


@pytest.mark.parametrize("wrong", ["1", 1.5, None, b"1", [1]])
def test_what_is_no_number_is_refused_by_read_one(reader: fffs.FileReader, wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        reader.read_one(wrong)


@pytest.mark.parametrize("index", [3, np.int64(3), np.uint8(3), -97, np.int32(-97)])
def test_read_one_takes_any_integer(reader: fffs.FileReader, index: Any) -> None:
    assert reader.read_one(index).tobytes() == MIXED_RECORDS[3]


def test_negative_indices_count_from_the_end(reader: fffs.FileReader) -> None:
    assert as_bytes(reader.read([-1, -100, -2])) == [MIXED_RECORDS[99], MIXED_RECORDS[0], MIXED_RECORDS[98]]


@pytest.mark.parametrize("index", [100, -101, 2**31, 2**32 + 3, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**200])
def test_an_index_out_of_range_is_an_index_error(reader: fffs.FileReader, index: int) -> None:
    for ask in (lambda: reader.read([0, index]), lambda: reader.read_one(index)):
        with pytest.raises(RecordIndexError) as caught:
            ask()
        assert isinstance(caught.value, IndexError)
    assert reader.read_one(1).tobytes() == MIXED_RECORDS[1]


def test_a_uint64_index_does_not_wrap_around(reader: fffs.FileReader) -> None:
    with pytest.raises(RecordIndexError):
        reader.read(np.array([2**64 - 1], np.uint64))


def test_an_empty_file_has_no_records() -> None:
    with fffs.FileReader(GOLDEN.path("empty.ffr")) as empty:
        assert (empty.n, empty.read([])) == (0, [])
        for index in (0, -1):
            with pytest.raises(RecordIndexError):
                empty.read_one(index)


@pytest.mark.parametrize("count", [4096, 4097, 20_000])
def test_more_records_than_ffrecord_could_read_at_once(count: int) -> None:
    indices = np.random.default_rng(count).integers(0, len(TINY_RECORDS), count)
    with fffs.FileReader(TINY) as tiny:
        assert as_bytes(tiny.read(indices)) == [TINY_RECORDS[i] for i in indices]


# ---------------------------------------------------------------- results


def test_records_are_writable_one_dimensional_bytes(reader: fffs.FileReader) -> None:
    for record in (*reader.read(range(100)), reader.read_one(7)):
        assert (record.dtype, record.ndim) == (np.uint8, 1)
        assert record.flags.writeable
        assert record.flags.c_contiguous


def test_duplicates_are_separate_copies(reader: fffs.FileReader) -> None:
    first, second, third = reader.read([7, 7, -93])
    first[:] = 0
    second[:] = 1
    assert third.tobytes() == MIXED_RECORDS[7]


def test_writing_to_one_record_leaves_its_neighbours_alone(reader: fffs.FileReader) -> None:
    batch = reader.read(range(100))
    for record in batch[::2]:
        record[:] = 0xA5
    assert as_bytes(batch[1::2]) == MIXED_RECORDS[1::2]


def test_records_outlive_the_reader() -> None:
    reader = fffs.FileReader(MIXED)
    batch, one = reader.read(range(100)), reader.read_one(7)
    reader.close()
    del reader
    gc.collect()
    with fffs.FileReader(TINY) as other:
        for _ in range(20):
            other.read(range(5000))
    assert as_bytes(batch) == MIXED_RECORDS
    assert one.tobytes() == MIXED_RECORDS[7]


def test_a_kept_record_survives_later_batches(reader: fffs.FileReader) -> None:
    kept = []
    for i in range(100):
        kept.append(reader.read(range(100))[i])
        gc.collect(0)
    assert as_bytes(kept) == MIXED_RECORDS


def test_a_slice_of_a_record_keeps_its_bytes(reader: fffs.FileReader) -> None:
    middle = reader.read([49])[0][100:200]
    for _ in range(20):
        reader.read(range(100))
    assert middle.tobytes() == MIXED_RECORDS[49][100:200]


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("kind", [str, Path, os.fsencode], ids=["str", "Path", "bytes"])
def test_a_path_comes_in_any_type(kind: Callable[[str], Any]) -> None:
    with fffs.FileReader(kind(str(MIXED))) as reader:
        assert reader.read_one(7).tobytes() == MIXED_RECORDS[7]
        assert reader.fnames == [str(MIXED)]


def test_a_list_of_files_is_numbered_through() -> None:
    with fffs.FileReader([str(TINY), MIXED, os.fsencode(TINY)]) as reader:
        assert reader.n == 5000 + 100 + 5000
        assert reader.fnames == [str(TINY), str(MIXED), str(TINY)]
        assert as_bytes(reader.read(range(reader.n))) == TINY_RECORDS + MIXED_RECORDS + TINY_RECORDS
        assert reader.get_offsets(1).tolist() == GOLDEN.raw("mixed-100.ffr").offsets


def test_files_without_records_in_a_list_take_no_numbers() -> None:
    empty = GOLDEN.path("empty.ffr")
    with fffs.FileReader([empty, MIXED, empty, empty, MIXED, empty]) as reader:
        assert as_bytes(reader.read([0, 99, 100, 199, -1])) == [MIXED_RECORDS[i] for i in (0, 99, 0, 99, 99)]


def test_a_folder_is_its_ffr_files_sorted_and_no_deeper(tmp_path: Path) -> None:
    for name in ("b.ffr", "a.ffr", "c.bin", ".hidden"):
        (tmp_path / name).write_bytes(GOLDEN.bytes("one.ffr"))
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "d.ffr").write_bytes(GOLDEN.bytes("one.ffr"))
    with fffs.FileReader(tmp_path) as reader:
        assert [os.path.basename(name) for name in reader.fnames] == ["a.ffr", "b.ffr"]
        assert reader.n == 2


def test_a_name_that_is_not_utf8_can_be_opened(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff\xfe.ffr"
    with open(path, "wb") as file:
        file.write(GOLDEN.bytes("one.ffr"))
    with fffs.FileReader(path) as reader:
        assert reader.n == 1
        assert reader.fnames == [os.fsdecode(path)]


def test_what_is_not_there_is_a_file_not_found_error(tmp_path: Path) -> None:
    for source in (tmp_path / "nothing.ffr", [MIXED, tmp_path / "nothing.ffr"]):
        with pytest.raises(SourceNotFoundError, match=r"nothing\.ffr"):
            fffs.FileReader(source)


def test_a_folder_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises((SourceNotFoundError, FormatError, UsageError), match=tmp_path.name):
        fffs.FileReader(tmp_path)


@pytest.mark.parametrize("source", [[], (), "", None, 7, [7], [[MIXED]]])
def test_what_is_no_source_is_refused(source: Any) -> None:
    with pytest.raises((TypeError, ValueError, FileNotFoundError)):
        fffs.FileReader(source)


def test_a_name_with_a_nul_is_refused() -> None:
    with pytest.raises((ValueError, FileNotFoundError)):
        fffs.FileReader("a\0b.ffr")


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink(path, path)], ids=["FIFO", "link to itself"])
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "odd.ffr")
    with pytest.raises(FffsError, match="odd"):
        fffs.FileReader(tmp_path / "odd.ffr")


# ---------------------------------------------------------------- open and closed


def test_the_attributes_are_ffrecords(reader: fffs.FileReader) -> None:
    assert (reader.n, reader.fnames, reader.check_data) == (100, [str(MIXED)], True)
    with fffs.FileReader(MIXED, check_data=False) as unchecked:
        assert unchecked.check_data is False
    with fffs.FileReader(MIXED, False) as unchecked:
        assert unchecked.check_data is False


@pytest.mark.parametrize("file_index", [1, 2**40, -2])
def test_there_are_no_tables_of_a_file_that_is_not_there(reader: fffs.FileReader, file_index: int) -> None:
    for table in (reader.get_offsets, reader.get_checksums):
        with pytest.raises(FffsError):
            table(file_index)


def test_the_tables_are_not_the_readers_own(reader: fffs.FileReader) -> None:
    for table in (reader.get_offsets(0), reader.get_checksums(0)):
        if table.flags.writeable:
            table[:] = 0
    assert as_bytes(reader.read(range(100))) == MIXED_RECORDS


def test_reading_after_close_says_so() -> None:
    reader = fffs.FileReader(MIXED)
    reader.close()
    for ask in (lambda: reader.read([0]), lambda: reader.read_one(0), lambda: reader.validate()):
        with pytest.raises(RuntimeError, match=r"FileReader has been closed\."):
            ask()


def test_a_second_close_closes_no_other_file() -> None:
    """The numbers of its descriptors may belong to other files by then."""
    reader = fffs.FileReader(MIXED)
    numbers = [source.file.descriptor for source in reader.store.files]
    reader.close()
    null = os.open(os.devnull, os.O_RDONLY)
    for number in numbers:
        os.dup2(null, number)
    reader.close()
    for fd in {null, *numbers}:
        os.close(fd)  # fails if it is not open


def test_the_end_of_a_reader_closes_its_files_although_a_use_was_never_uncounted() -> None:
    """An interrupt may arrive right after a use was counted."""
    for is_closed in (True, False):
        reader = fffs.FileReader(MIXED)
        files = [source.file for source in reader.store.files]
        reader.store.begin_use()
        if is_closed:
            reader.close()
        assert all(file.descriptor >= 0 for file in files)
        del reader
        gc.collect()
        assert all(file.descriptor < 0 for file in files)


def test_a_with_block_closes_also_on_an_exception() -> None:
    with pytest.raises(KeyError):
        with fffs.FileReader(MIXED) as reader:
            raise KeyError
    with pytest.raises(RuntimeError, match="has been closed"):
        reader.read_one(0)


def test_three_hundred_readers_live_at_once() -> None:
    readers = [fffs.FileReader(MIXED) for _ in range(300)]
    try:
        for i, one in enumerate(readers):
            assert as_bytes(one.read([i % 100, 7])) == [MIXED_RECORDS[i % 100], MIXED_RECORDS[7]]
    finally:
        for one in readers:
            one.close()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy], ids=["copy", "deepcopy"])
def test_a_copy_is_a_reader_of_its_own(reader: fffs.FileReader, copied: Callable[[Any], Any]) -> None:
    with copied(reader) as other:
        assert as_bytes(other.read([7])) == [MIXED_RECORDS[7]]
    assert as_bytes(reader.read([7])) == [MIXED_RECORDS[7]]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_reader_opens_again(protocol: int) -> None:
    with fffs.FileReader([MIXED, TINY], check_data=False) as reader:
        pickled = pickle.dumps(reader, protocol)
    assert len(pickled) < 1000
    with pickle.loads(pickled) as other:
        assert (other.n, other.check_data, other.fnames) == (5100, False, [str(MIXED), str(TINY)])
        assert as_bytes(other.read([7, 101])) == [MIXED_RECORDS[7], TINY_RECORDS[1]]


def test_a_pickled_reader_opens_in_another_process(reader: fffs.FileReader) -> None:
    code = """
        import pickle, sys
        with pickle.load(sys.stdin.buffer) as reader:
            sys.stdout.buffer.write(b"".join(reader.read(range(100))))
    """
    result = run_python(code, stdin=pickle.dumps(reader))
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout == b"".join(MIXED_RECORDS)


# ---------------------------------------------------------------- file descriptors


def test_closing_gives_the_file_descriptors_back() -> None:
    fffs.FileReader(MIXED).close()  # opens everything that the engine opens once per process
    before = open_files()
    for _ in range(10):
        with fffs.FileReader([MIXED, TINY, MIXED]) as reader:
            reader.read([0, 100, 5100])
    assert open_files() == before


def test_a_forgotten_reader_gives_its_file_descriptors_back() -> None:
    with fffs.FileReader(MIXED) as reader:
        reader.read(range(100))
    before = open_files()
    for _ in range(10):
        fffs.FileReader([MIXED, TINY]).read([7])
    gc.collect()
    assert open_files() == before


@pytest.mark.parametrize("bad", ["unfinished.ffr", "README.md", "manifest.json", "nothing.ffr"])
def test_a_failed_open_leaves_no_file_descriptor(bad: str) -> None:
    with fffs.FileReader(MIXED) as reader:
        reader.read([0])
    before = open_files()
    for source in (GOLDEN.path(bad), [MIXED, TINY, GOLDEN.path(bad)]):
        for _ in range(5):
            with pytest.raises((FormatError, FileNotFoundError)):
                fffs.FileReader(source)
    gc.collect()
    assert open_files() == before


def test_no_file_descriptor_is_inherited_by_programs() -> None:
    with fffs.FileReader([MIXED, TINY]) as reader:
        reader.read(range(100))
        for name in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink(f"/proc/self/fd/{name}")
            except FileNotFoundError:  # the descriptor of listdir
                continue
            if target.endswith(".ffr") or "io_uring" in target or "[aio]" in target:
                assert not os.get_inheritable(int(name)), target


# ---------------------------------------------------------------- threads and processes


def test_sixteen_threads_read_from_one_reader() -> None:
    failures: list[BaseException | str] = []
    start = threading.Barrier(16)

    def work(seed: int, reader: fffs.FileReader) -> None:
        try:
            random = np.random.default_rng(seed)
            start.wait()
            for _ in range(50):
                indices = random.integers(-100, 100, 64)
                if as_bytes(reader.read(indices)) != [MIXED_RECORDS[i] for i in indices]:
                    failures.append(f"thread {seed} got wrong bytes")
                if reader.read_one(seed).tobytes() != MIXED_RECORDS[seed]:
                    failures.append(f"thread {seed} got a wrong record")
        except BaseException as error:
            failures.append(error)

    with fffs.FileReader(MIXED) as reader:
        threads = [threading.Thread(target=work, args=(seed, reader)) for seed in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_a_bad_record_in_one_thread_does_not_disturb_another(corrupted: Callable[[str], Path]) -> None:
    good = [i for i in range(100) if i != 49]
    failures: list[BaseException | str] = []

    def work(seed: int, reader: fffs.FileReader) -> None:
        try:
            for _ in range(50):
                if seed % 2:
                    with pytest.raises(ChecksumError):
                        reader.read([48, 49, 50])
                elif as_bytes(reader.read(good)) != [MIXED_RECORDS[i] for i in good]:
                    failures.append(f"thread {seed} got wrong bytes")
        except BaseException as error:
            failures.append(error)

    with fffs.FileReader(corrupted("data-first-byte")) as reader:
        threads = [threading.Thread(target=work, args=(seed, reader)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_closing_while_others_read_gives_bytes_or_the_closed_error() -> None:
    failures: list[BaseException | str] = []
    reading = threading.Semaphore(0)

    def work(reader: fffs.FileReader) -> None:
        try:
            for i in range(10_000):
                if as_bytes(reader.read(range(100))) != MIXED_RECORDS:
                    failures.append("wrong bytes")
                if i == 2:
                    reading.release()
            failures.append("never closed")
        except RuntimeError as error:
            if "has been closed" not in str(error):
                failures.append(error)
        except BaseException as error:
            failures.append(error)

    reader = fffs.FileReader(MIXED)
    threads = [threading.Thread(target=work, args=(reader,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert reading.acquire(timeout=60)
    reader.close()
    # Threads that still read must not read from a descriptor number that was reused.
    others = [os.open(__file__, os.O_RDONLY) for _ in range(8)]
    for thread in threads:
        thread.join()
    for other in others:
        os.close(other)
    assert not failures


FORK = """
    import os, sys, warnings
    import fffs

    warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons dislike fork in a process with threads
    path = sys.argv[1]
    reader = fffs.FileReader(path)
    expected = [record.tobytes() for record in reader.read(range(100))]
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            good = all([r.tobytes() for r in reader.read(range(100))] == expected for _ in range(20))
            with fffs.FileReader(path) as own:
                good = good and [r.tobytes() for r in own.read(range(100))] == expected
            os._exit(0 if good else 1)
        children.append(child)
    for _ in range(20):
        assert [record.tobytes() for record in reader.read(range(100))] == expected
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4
    assert [record.tobytes() for record in reader.read(range(100))] == expected
"""


def test_parent_and_children_read_after_a_fork() -> None:
    result = run_python(FORK, MIXED)
    assert (result.returncode, result.stderr) == (0, b"")


def test_a_fork_while_other_threads_read_leaves_a_child_that_reads() -> None:
    code = """
        import os, sys, threading, warnings
        import fffs

        warnings.simplefilter("ignore", DeprecationWarning)
        reader = fffs.FileReader(sys.argv[1])
        expected = [record.tobytes() for record in reader.read(range(100))]
        stop = threading.Event()

        def work():
            while not stop.is_set():
                assert [record.tobytes() for record in reader.read(range(100))] == expected

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            child = os.fork()
            if child == 0:
                os._exit(0 if [record.tobytes() for record in reader.read(range(100))] == expected else 1)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        for thread in threads:
            thread.join()
    """
    result = run_python(code, MIXED)
    assert (result.returncode, result.stderr) == (0, b"")


def test_reads_import_nothing(tmp_path: Path) -> None:
    """A child that is forked while another thread imports a module would wait for that import for ever."""
    paths = [tmp_path / f"part-{k}" for k in range(3)]  # their batches look for changes
    for path in paths:
        with fffs.ofrecord.OFRecordWriter(path) as writer:
            for record in MIXED_RECORDS:
                writer.write_one(record or b"x")
    code = """
        import sys
        import fffs

        reader = fffs.open(sys.argv[1:])
        before = set(sys.modules)
        reader.read([0, 150, 299, 3])
        reader.read_joined([1, 120, 250])
        reader.prefetch([7, 107, 207])
        reader.read_one(160)
        reader.read_range(160, 0, 1)
        print(sorted(set(sys.modules) - before))
    """
    result = run_python(code, *paths)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"[]\n", b"")


def test_a_reader_never_closed_lets_the_interpreter_end_in_silence() -> None:
    code = "import sys, fffs; reader = fffs.FileReader(sys.argv[1]); kept = reader.read(range(100))"
    result = run_python(code, MIXED)
    assert (result.returncode, result.stderr) == (0, b"")


def test_a_file_cut_under_an_open_reader_is_an_error_and_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "cut.ffr"
    path.write_bytes(GOLDEN.bytes("mixed-100.ffr"))
    with fffs.FileReader(path) as reader:
        os.truncate(path, GOLDEN.raw("mixed-100.ffr").offsets[50] - 1)
        with pytest.raises(RuntimeError):
            reader.read_one(49)
        assert reader.read_one(48).tobytes() == MIXED_RECORDS[48]


# ---------------------------------------------------------------- FileWriter


def written(path: Path) -> list[bytes]:
    """Return the records of a finished file, parsed without fffs."""
    return RawRecordFile(path.read_bytes()).records


def test_a_writer_counts_what_it_writes(tmp_path: Path) -> None:
    with fffs.FileWriter(tmp_path / "a.ffr", 2) as writer:
        assert (writer.n, writer.count) == (2, 0)
        writer.write_one(b"first")
        assert (writer.n, writer.count) == (2, 1)
        writer.write_one(b"second")
        assert (writer.n, writer.count) == (2, 2)
    assert written(tmp_path / "a.ffr") == [b"first", b"second"]


@pytest.mark.parametrize("kind", [str, Path, os.fsencode], ids=["str", "Path", "bytes"])
def test_a_writers_path_comes_in_any_type(tmp_path: Path, kind: Callable[[str], Any]) -> None:
    with fffs.FileWriter(kind(str(tmp_path / "a.ffr")), 1) as writer:
        writer.write_one(b"x")
    assert written(tmp_path / "a.ffr") == [b"x"]


@pytest.mark.parametrize("name", ["a", "a.ffrx", "a.ffr.tmp", "a.FFR", "affr"])
def test_a_wrong_suffix_is_refused_and_nothing_made(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"\.ffr"):
        fffs.FileWriter(tmp_path / name, 1)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("n", [-1, -(2**63), 2**63, 1.5, "1"])
def test_a_number_of_records_that_cannot_be_is_refused(tmp_path: Path, n: Any) -> None:
    with pytest.raises((UsageError, TypeError)):
        fffs.FileWriter(tmp_path / "a.ffr", n)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        fffs.FileWriter(tmp_path / "nowhere" / "a.ffr", 1)


def test_a_target_that_is_a_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.ffr").mkdir()
    with pytest.raises(OSError, match=r"a\.ffr"):
        with fffs.FileWriter(tmp_path / "a.ffr", 1) as writer:
            writer.write_one(b"x")
    assert os.listdir(tmp_path) == ["a.ffr"]
    assert os.listdir(tmp_path / "a.ffr") == []


def test_too_many_records_are_refused(tmp_path: Path) -> None:
    with fffs.FileWriter(tmp_path / "a.ffr", 1) as writer:
        writer.write_one(b"x")
        with pytest.raises(WriterError) as caught:
            writer.write_one(b"y")
        assert isinstance(caught.value, RuntimeError)
    assert written(tmp_path / "a.ffr") == [b"x"]


def test_after_too_few_records_the_rest_can_be_written(tmp_path: Path) -> None:
    writer = fffs.FileWriter(tmp_path / "a.ffr", 2)
    writer.write_one(b"x")
    with pytest.raises(WriterError):
        writer.close()
    assert not (tmp_path / "a.ffr").exists()
    writer.write_one(b"y")
    writer.close()
    assert written(tmp_path / "a.ffr") == [b"x", b"y"]
    assert os.listdir(tmp_path) == ["a.ffr"]


def test_a_with_block_with_too_few_records_fails_and_writes_no_target(tmp_path: Path) -> None:
    with pytest.raises(WriterError):
        with fffs.FileWriter(tmp_path / "a.ffr", 2) as writer:
            writer.write_one(b"x")
    assert not (tmp_path / "a.ffr").exists()


def test_closing_a_writer_twice_is_nothing(tmp_path: Path) -> None:
    writer = fffs.FileWriter(tmp_path / "a.ffr", 0)
    writer.close()
    before = (tmp_path / "a.ffr").stat()
    writer.close()
    assert (tmp_path / "a.ffr").stat() == before


def test_writing_after_close_is_refused(tmp_path: Path) -> None:
    writer = fffs.FileWriter(tmp_path / "a.ffr", 0)
    writer.close()
    with pytest.raises(RuntimeError):
        writer.write_one(b"x")


def test_the_target_is_absent_until_close(tmp_path: Path) -> None:
    writer = fffs.FileWriter(tmp_path / "a.ffr", 1)
    writer.write_one(b"x" * 10_000_000)
    assert not (tmp_path / "a.ffr").exists()
    writer.close()
    assert written(tmp_path / "a.ffr") == [b"x" * 10_000_000]


def test_the_old_target_is_intact_until_close(tmp_path: Path) -> None:
    path = tmp_path / "a.ffr"
    path.write_bytes(b"old")
    writer = fffs.FileWriter(path, 1)
    writer.write_one(b"x")
    assert path.read_bytes() == b"old"
    writer.close()
    assert written(path) == [b"x"]


def test_an_exception_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        with fffs.FileWriter(tmp_path / "a.ffr", 1) as writer:
            writer.write_one(b"x")
            raise KeyError
    assert os.listdir(tmp_path) == []


def test_an_exception_leaves_the_old_target_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.ffr"
    path.write_bytes(b"old")
    with pytest.raises(KeyError):
        with fffs.FileWriter(path, 1) as writer:
            writer.write_one(b"x")
            raise KeyError
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.ffr"]


def test_a_writer_that_is_killed_leaves_the_old_target_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.ffr"
    path.write_bytes(b"old")
    code = """
        import os, signal, sys
        import fffs
        writer = fffs.FileWriter(sys.argv[1], 2)
        writer.write_one(bytes(5_000_000))
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert run_python(code, path).returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"


def test_a_forgotten_writer_lets_the_interpreter_end(tmp_path: Path) -> None:
    code = "import sys, fffs; writer = fffs.FileWriter(sys.argv[1], 2); writer.write_one(b'x')"
    assert run_python(code, tmp_path / "a.ffr").returncode == 0
    assert not (tmp_path / "a.ffr").exists()


def test_writers_give_their_file_descriptors_back(tmp_path: Path) -> None:
    before = open_files()
    with fffs.FileWriter(tmp_path / "a.ffr", 0):
        pass
    with pytest.raises(KeyError):
        with fffs.FileWriter(tmp_path / "b.ffr", 1):
            raise KeyError
    assert open_files() == before


def test_a_written_file_has_the_mode_that_the_umask_gives(tmp_path: Path) -> None:
    with fffs.FileWriter(tmp_path / "a.ffr", 0):
        pass
    (tmp_path / "plain").touch()
    assert (tmp_path / "a.ffr").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_data_reach_the_disk_before_the_name_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, bool]] = []
    fsync = os.fsync

    def record(fd: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{fd}"), (tmp_path / "a.ffr").exists()))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", record)
    monkeypatch.setattr(os, "fdatasync", record)
    with fffs.FileWriter(tmp_path / "a.ffr", 1) as writer:
        writer.write_one(b"x")
    assert len(synced) >= 2, "the file and its folder must be synced"
    assert synced[0][1] is False, "the file is synced before the target exists"
    assert synced[-1] == (str(tmp_path), True), "the folder is synced when the target exists"


def test_a_full_disk_is_an_error_that_names_the_file_and_leaves_nothing(tmp_path: Path) -> None:
    # For any user, a limit on file sizes has the effect of a full disk.
    code = """
        import os, resource, signal, sys
        import fffs
        from fffs.errors import WriteError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
        try:
            with fffs.FileWriter(sys.argv[1], 100) as writer:
                for _ in range(100):
                    writer.write_one(bytes(50_000))
        except WriteError as error:
            assert sys.argv[1] in str(error), error
            assert os.listdir(os.path.dirname(sys.argv[1])) == []
            sys.exit(7)
    """
    result = run_python(code, tmp_path / "a.ffr")
    assert (result.returncode, result.stderr) == (7, b"")
    assert WriteError.exit_code == 7


def test_a_failed_write_in_the_middle_can_be_seen_and_does_not_count(tmp_path: Path) -> None:
    with fffs.FileWriter(tmp_path / "a.ffr", 1) as writer:
        with pytest.raises(TypeError):
            writer.write_one("text")  # type: ignore[arg-type]
        assert writer.count == 0
        writer.write_one(b"x")
    assert written(tmp_path / "a.ffr") == [b"x"]


# ---------------------------------------------------------------- records

PLAIN = bytes(range(240))
BUFFERS: dict[str, Callable[[], Any]] = {
    "bytes": lambda: PLAIN,
    "bytearray": lambda: bytearray(PLAIN),
    "memoryview": lambda: memoryview(PLAIN),
    "memoryview of ints": lambda: memoryview(PLAIN).cast("i"),
    "memoryview in two dimensions": lambda: memoryview(PLAIN).cast("B", (12, 20)),
    "part of a memoryview": lambda: memoryview(b"xx" + PLAIN + b"xx")[2:-2],
    "array.array": lambda: array.array("d", PLAIN),
    "uint8 array": lambda: np.frombuffer(PLAIN, np.uint8),
    "float32 array": lambda: np.frombuffer(PLAIN, np.float32),
    "big-endian array": lambda: np.frombuffer(PLAIN, ">i8"),
    "array in three dimensions": lambda: np.frombuffer(PLAIN, np.int16).reshape(4, 5, 6),
    "complex array": lambda: np.frombuffer(PLAIN, np.complex128),
    "array of dates": lambda: np.arange("2020-01-01", "2020-02-01", dtype="datetime64[D]"),
    "array of text": lambda: np.array(["one", "three"]),
    "bool array": lambda: np.ones(240, np.bool_),
    "structured array": lambda: np.frombuffer(PLAIN, [("a", "u1"), ("b", "<f8"), ("c", "S3")]),
    "rows of an array": lambda: np.frombuffer(PLAIN * 3, np.uint8).reshape(9, 80)[3:6],
    "a number without dimensions": lambda: np.array(3.5),
    "numpy scalar": lambda: np.float64(3.5),
    "nothing": lambda: b"",
    "empty array": lambda: np.empty((0, 7), np.float32),
}


@pytest.mark.parametrize("kind", BUFFERS)
def test_any_contiguous_buffer_is_written_by_its_bytes(tmp_path: Path, kind: str) -> None:
    buffer = BUFFERS[kind]()
    with fffs.FileWriter(tmp_path / "a.ffr", 3) as writer:
        writer.write_one(b"before")
        writer.write_one(buffer)
        writer.write_one(b"after")
    content = buffer.tobytes() if hasattr(buffer, "tobytes") else bytes(buffer)
    assert written(tmp_path / "a.ffr") == [b"before", content, b"after"]


def test_a_memory_map_is_written(tmp_path: Path) -> None:
    with mmap.mmap(-1, 10_000) as mapped:
        mapped[:] = b"m" * 10_000
        with fffs.FileWriter(tmp_path / "a.ffr", 1) as writer:
            writer.write_one(mapped)
    assert written(tmp_path / "a.ffr") == [b"m" * 10_000]


def test_a_buffer_may_change_after_it_was_written(tmp_path: Path) -> None:
    buffer = np.zeros(1000, np.uint8)
    with fffs.FileWriter(tmp_path / "a.ffr", 3) as writer:
        for i in range(3):
            buffer[:] = i
            writer.write_one(buffer)
    assert written(tmp_path / "a.ffr") == [bytes([i]) * 1000 for i in range(3)]


REFUSED: dict[str, Callable[[], Any]] = {
    "str": lambda: "text",
    "int": lambda: 7,
    "None": lambda: None,
    "list": lambda: [1, 2, 3],
    "tuple of bytes": lambda: (b"a",),
    "every other byte": lambda: memoryview(PLAIN)[::2],
    "strided array": lambda: np.zeros(100, np.uint8)[::2],
    "reversed array": lambda: np.zeros(100, np.uint8)[::-1],
    "column of an array": lambda: np.zeros((10, 10), np.uint8)[:, :5],
    "transposed array": lambda: np.zeros((10, 20), np.uint8).T,
    "array of objects": lambda: np.array([object(), object()]),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_anything_else_is_refused_and_not_counted(tmp_path: Path, kind: str) -> None:
    with fffs.FileWriter(tmp_path / "a.ffr", 1) as writer:
        with pytest.raises((TypeError, UsageError)):
            writer.write_one(REFUSED[kind]())
        assert writer.count == 0
        writer.write_one(b"good")
    assert written(tmp_path / "a.ffr") == [b"good"]


# ---------------------------------------------------------------- under ffrecord's name


def test_code_written_for_ffrecord_finds_everything_it_imports() -> None:
    code = """
        import importlib.util
        import fffs
        fffs.install_as_ffrecord()
        assert importlib.util.find_spec("ffrecord").name == "ffrecord"
        import ffrecord, ffrecord.fileio, ffrecord.package
        from ffrecord import FileReader, FileWriter, PackedFolder, checkFsAlign, pack_folder, __version__
        assert ffrecord.fileio.FileReader is FileReader is fffs.FileReader
        assert ffrecord.fileio.FileWriter is FileWriter is fffs.FileWriter
        assert ffrecord.package.PackedFolder is PackedFolder is fffs.PackedFolder
        assert ffrecord.package.pack_folder is pack_folder is fffs.pack_folder
    """
    result = run_python(code)
    assert (result.returncode, result.stderr) == (0, b"")


def test_nothing_stands_in_for_ffrecord_unasked() -> None:
    result = run_python("import fffs, sys; sys.exit('ffrecord' in sys.modules)")
    assert (result.returncode, result.stderr) == (0, b"")


def test_a_pickle_that_names_ffrecords_reader_opens_as_ours() -> None:
    code = """
        import pickle, sys
        import fffs
        fffs.install_as_ffrecord()
        reader = pickle.loads(b"cffrecord.fileio\\nFileReader\\n(V" + sys.argv[1].encode() + b"\\nI01\\ntR.")
        assert type(reader) is fffs.FileReader and reader.n == 100
    """
    result = run_python(code, MIXED)
    assert (result.returncode, result.stderr) == (0, b"")


def test_no_file_system_asks_for_alignment(tmp_path: Path) -> None:
    assert fffs.checkFsAlign(str(tmp_path)) is False


@pytest.mark.parametrize("wrong", [True, np.True_, 1.0, None, "1"])
def test_what_is_no_number_of_a_record_is_refused_by_every_call(wrong: Any) -> None:
    with fffs.FileReader(MIXED) as reader:
        calls: list[Callable[[], Any]] = [
            lambda: reader.read_one(wrong),
            lambda: reader.read([wrong]),
            lambda: reader.read([1, wrong]),
            lambda: reader.lengths([1, wrong]),
            lambda: reader.read_range(wrong, 0, 1),
            lambda: reader.read_range(0, wrong, 3),
            lambda: reader.read_range(0, 0, wrong),
        ]
        for call in calls:
            with pytest.raises(UsageError, match="must be integers"):
                call()


def test_objects_are_no_memory_to_read_into() -> None:
    with fffs.FileReader(MIXED) as reader, pytest.raises(UsageError, match="it holds objects"):
        reader.read_into([0], np.zeros(4, object))
