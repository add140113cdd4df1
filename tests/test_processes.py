"""Processes and threads in all combinations: fork at any moment, spawn, forkserver, copies, all kinds of exits.

Programs in an interpreter of their own run with all checks of Python, and must write nothing to stderr.
"""

from __future__ import annotations

import copy
import errno
import functools
import os
import pickle
import random
import signal
import subprocess
import sys
import textwrap
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from engine_model import (
    FOREVER,
    PATIENCE,
    Batch,
    Record,
    Source,
    fault,
    held,
    in_child,
    make_cold,
    many_records,
    random_records,
    usage,
    wait_for,
    wait_until,
)
from inside import engine, importing, lib

import fffs
from fffs import granular
from fffs.errors import ClosedError

pytest_plugins = ("engine_fixtures",)
pytestmark = pytest.mark.usefixtures("nothing_leaks")

EAGAIN = errno.EAGAIN

# ---------------------------------------------------------------- the engine and fork


def test_fork_after_use(backend: str, source: Source) -> None:
    records = many_records(source)
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
    """A ring must end when the parent closes it; a child cannot use it and must not keep it."""
    make_cold(source)
    Batch(many_records(source)).check()

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
    records = many_records(source)

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
    """The child neither helps threads of the parent nor counts helpers that were requested for them."""
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

        # No thread accepts the work that these offer.
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


# ---------------------------------------------------------------- readers and fork


SIZES = [*range(0, 60_000, 997), 112 << 10, 200_000, (1 << 20) + 1, (2 << 20) + 77]


def content(record: int) -> bytes:
    return random.Random(record).randbytes(SIZES[record])


@pytest.fixture(scope="module")
def path(folder: Path) -> Path:
    """A file with records of all sizes, on a disk on which it can be dropped from the page cache."""
    with fffs.FileWriter(folder / "records.ffr", len(SIZES)) as writer:
        for record in range(len(SIZES)):
            writer.write_one(content(record))
    return folder / "records.ffr"


def files_open(path: Path) -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}") == str(path)
        except FileNotFoundError:  # the descriptor of listdir
            continue
    return found


def forget_pages(reader: fffs.FileReader) -> None:
    os.posix_fadvise(reader.store.files[0].file.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def check_all(reader: fffs.FileReader) -> None:
    """Read in all ways, cached and not cached."""
    for _ in range(2):
        numbers = list(range(len(SIZES)))
        assert [record.tobytes() for record in reader.read(numbers)] == [content(record) for record in numbers]
        assert reader.read_one(7).tobytes() == content(7)
        assert reader.read_range(len(SIZES) - 1, 5, 70_000).tobytes() == content(len(SIZES) - 1)[5:70_000]
        forget_pages(reader)


def test_both_sides_of_a_fork_go_on_while_threads_read(backend: str, path: Path) -> None:
    """The threads of the parent continue as well, and children have threads and children of their own."""
    stop, failures = threading.Event(), list[BaseException]()

    def read(reader: fffs.FileReader) -> None:
        try:
            while not stop.is_set():
                check_all(reader)
        except BaseException as error:
            failures.append(error)

    def child(reader: fffs.FileReader, deeper: bool) -> None:
        with ThreadPoolExecutor(2) as pool:
            checks = [pool.submit(check_all, reader) for _ in range(2)]
            if deeper:
                wait_for(in_child(lambda: child(reader, False)))
            check_all(reader)
            for check in checks:
                check.result()
        with fffs.FileReader(path) as own:
            check_all(own)

    with fffs.FileReader(path) as reader:
        threads = [threading.Thread(target=read, args=(reader,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            children = [in_child(functools.partial(child, reader, deeper)) for deeper in (False, False, True)]
            check_all(reader)
            for pid in children:
                wait_for(pid)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert not failures


def in_a_stalled_thread(work: Callable[[], object], then: Callable[[], None]) -> None:
    """Call ``work`` while a thread is in the middle of a read, which ends afterwards."""
    thread = threading.Thread(target=work)
    with fault(lib.FFFS_FAULT_PREAD, 1, 1, lib.FFFS_FAULT_HOLD):
        thread.start()
        wait_until(lambda: held() == 1)
        then()
    thread.join()


def test_a_child_can_close_what_the_parents_threads_read_from(path: Path) -> None:
    """Threads that read at the fork do not exist in the child, which must not wait for them."""

    def child() -> None:
        lib.fffs_fault_set(lib.FFFS_FAULT_NONE, 0, 0, 0)
        check_all(reader)
        reader.close()
        assert files_open(path) == 0
        with pytest.raises(ClosedError):
            reader.read([1])

    with fffs.FileReader(path) as reader:
        in_a_stalled_thread(lambda: reader.read([5]), lambda: wait_for(in_child(child)))
        check_all(reader)


def test_a_child_closes_what_the_parent_was_about_to_close(path: Path) -> None:
    """It is closed while a thread reads, which would close the files at its end, but does not exist in the child."""

    def child() -> None:
        assert files_open(path) == 0

    def then() -> None:
        reader.close()
        assert files_open(path) == 1
        wait_for(in_child(child))

    reader = fffs.FileReader(path)
    in_a_stalled_thread(lambda: reader.read([5]), then)
    assert files_open(path) == 0


def test_a_child_forked_in_the_middle_of_its_own_read_counts_right(path: Path) -> None:
    """In the child, only the forking thread continues, with its own use of the reader."""

    def child() -> None:
        reader.store.end_use()
        check_all(reader)
        reader.close()
        assert files_open(path) == 0

    with fffs.FileReader(path) as reader:
        with reader.store.use():
            wait_for(in_child(child))
        check_all(reader)


def test_no_lock_of_a_reader_is_inherited(path: Path) -> None:
    """A thread holds the lock that counts uses of the reader at the moment of the fork."""
    locked, done = threading.Event(), threading.Event()

    def hold() -> None:
        with reader.store._lock:
            locked.set()
            done.wait(PATIENCE)

    with fffs.FileReader(path) as reader:
        thread = threading.Thread(target=hold)
        thread.start()
        locked.wait(PATIENCE)
        pid = in_child(lambda: check_all(reader))
        try:
            wait_for(pid)
        finally:
            done.set()
            thread.join()


# ---------------------------------------------------------------- copies


COPIES: dict[str, Callable[[fffs.FileReader], fffs.FileReader]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda reader: pickle.loads(pickle.dumps(reader)),
}


@pytest.mark.parametrize("how", COPIES)
def test_copies_made_while_threads_read_are_readers_of_their_own(backend: str, path: Path, how: str) -> None:
    stop, failures = threading.Event(), list[BaseException]()

    def read(reader: fffs.FileReader) -> None:
        try:
            while not stop.is_set():
                check_all(reader)
        except BaseException as error:
            failures.append(error)

    reader = fffs.FileReader(path)
    thread = threading.Thread(target=read, args=(reader,))
    thread.start()
    try:
        copies = [COPIES[how](reader) for _ in range(8)]
        for number, made in enumerate(copies):
            assert made.store.files[0].file.descriptor != reader.store.files[0].file.descriptor
            if number % 2:
                made.close()
        assert files_open(path) == 1 + 4
    finally:
        stop.set()
        thread.join()
    reader.close()
    for made in copies[::2]:
        check_all(made)
        made.close()
    assert not failures and files_open(path) == 0


# ---------------------------------------------------------------- programs in new interpreters


PRELUDE = """
import multiprocessing, os, random, signal, sys, threading, time, warnings, zlib
import fffs
from fffs.native import lib

PATH = sys.argv[1]

def check(reader, times=3):
    for _ in range(times):
        numbers = random.sample(range(len(reader)), 30)
        assert [zlib.crc32(record) for record in reader.read(numbers)] == [CRCS[number] for number in numbers]
        os.posix_fadvise(reader.store.files[0].file.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    return "good"

def check_threads(reader, count):
    results = []
    threads = [threading.Thread(target=lambda: results.append(check(reader))) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["good"] * count
    return "good"

def hold_reads():
    lib.fffs_fault_set(lib.FFFS_FAULT_PREAD, 1, 10**9, lib.FFFS_FAULT_HOLD)

def wait_for_held(count):
    while lib.fffs_fault_held() < count:
        time.sleep(0.001)
"""


def run_script(folder: Path, path: Path, code: str, status: int = 0) -> str:
    """Run a program, which must exit with that status and write nothing to stderr. Returns its stdout."""
    script = folder / "script.py"
    script.write_text(
        PRELUDE + f"CRCS = {[zlib.crc32(content(record)) for record in range(len(SIZES))]}\n" + textwrap.dedent(code)
    )
    command = [sys.executable, "-X", "dev", "-W", "error", str(script), str(path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (result.returncode, result.stderr) == (status, "")
    return result.stdout


WORKERS = """
    def opens(path):
        with fffs.FileReader(path) as reader:
            return check(reader)

    def uses(reader):
        with reader:
            return check_threads(reader, 3)

    def inherits(_):
        return check(READER)

    if __name__ == "__main__":
        READER = fffs.FileReader(PATH)
        check_threads(READER, 4)
        context = multiprocessing.get_context({method!r})
        with context.Pool(3) as pool:
            print(*pool.map(opens, [PATH] * 4), *pool.map(uses, [READER] * 4))
            if {method!r} == "fork":
                print(*pool.map(inherits, range(8)))
            check_threads(READER, 2)
            pool.close()
            pool.join()
        READER.close()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_a_pool_read(tmp_path: Path, path: Path, method: str) -> None:
    """They open files, receive a reader, or inherit it from their parent, which reads in several threads."""
    code = WORKERS.replace("{method!r}", repr(method))
    if method == "fork":  # Python 3.12 warns of forks in processes with threads, which is what is tested
        code = "    warnings.simplefilter('ignore', DeprecationWarning)\n" + code
    assert run_script(tmp_path, path, code).split() == ["good"] * (16 if method == "fork" else 8)


def test_sixteen_workers_with_eight_readers_each(tmp_path: Path, path: Path) -> None:
    code = """
        warnings.simplefilter("ignore", DeprecationWarning)

        def work(start, answers):
            readers = [fffs.FileReader(PATH) for _ in range(8)]
            start.wait()
            threads = [threading.Thread(target=lambda r=r: answers.put(check(r, 2))) for r in readers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for reader in readers:
                reader.close()

        if __name__ == "__main__":
            context = multiprocessing.get_context("fork")
            with fffs.FileReader(PATH) as reader:
                check_threads(reader, 16)
                start, answers = context.Barrier(16), context.SimpleQueue()
                workers = [context.Process(target=work, args=(start, answers)) for _ in range(16)]
                for worker in workers:
                    worker.start()
                print(*(answers.get() for _ in range(16 * 8)))
                for worker in workers:
                    worker.join()
                print(*(worker.exitcode for worker in workers))
                check(reader)
                answers.close()
    """
    assert run_script(tmp_path, path, code).split() == ["good"] * 128 + ["0"] * 16


# How a worker ends during its reads, and the status that its parent gets.
ENDS = {
    "os._exit": ("os._exit(0)", 0),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_worker_that_ends_in_the_middle_of_reads_leaves_its_parent_reading(
    tmp_path: Path, path: Path, how: str
) -> None:
    code = f"""
        warnings.simplefilter("ignore", DeprecationWarning)
        with fffs.FileReader(PATH) as reader:
            check_threads(reader, 4)
            for _ in range(3):
                child = os.fork()
                if child == 0:
                    def read():
                        while True:
                            check(reader)
                    for _ in range(4):
                        threading.Thread(target=read, daemon=True).start()
                    check(reader)
                    hold_reads()
                    wait_for_held(4)
                    {ENDS[how][0]}
                check(reader)
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
                check_threads(reader, 4)
    """
    assert run_script(tmp_path, path, code).split() == [str(ENDS[how][1])] * 3


READS = {
    "batches": "reader.read(range(len(reader)))",
    "single records": "[reader.read_one(record) for record in range(len(reader))]",
    "ranges": "[reader.read_range(record, 1, 90_000) for record in range(len(reader))]",
    "opening": "fffs.FileReader(PATH).close()",
}


@pytest.mark.parametrize("what", READS)
def test_the_interpreter_ends_while_daemon_threads_read(tmp_path: Path, path: Path, what: str) -> None:
    code = f"""
        reader = fffs.FileReader(PATH)
        rounds = threading.Semaphore(0)

        def read():
            while True:
                {READS[what]}
                rounds.release()

        for _ in range(6):
            threading.Thread(target=read, daemon=True).start()
        for _ in range(12):
            rounds.acquire()
        print("end")
    """
    for _ in range(2):
        assert run_script(tmp_path, path, code) == "end\n"


@pytest.mark.parametrize("what", ["batches", "ranges"])
def test_the_interpreter_clears_modules_before_it_collects_a_reader(tmp_path: Path, path: Path, what: str) -> None:
    code = f"""
        import codecs  # its globals are cleared after those of fffs

        codecs.kept = reader = fffs.FileReader(PATH)
        {READS[what]}
        print("end")
    """
    assert run_script(tmp_path, path, code) == "end\n"


@pytest.mark.parametrize("what", ["batches", "ranges"])
def test_the_interpreter_ends_while_the_disk_does_not_answer(tmp_path: Path, path: Path, what: str) -> None:
    code = f"""
        reader = fffs.FileReader(PATH)

        def read():
            {READS[what]}

        hold_reads()
        for _ in range(6):
            threading.Thread(target=read, daemon=True).start()
        wait_for_held(6)
        print("end")
    """
    assert run_script(tmp_path, path, code) == "end\n"


def test_an_exception_ends_the_interpreter_as_usual_while_threads_read(tmp_path: Path, path: Path) -> None:
    code = f"""
        reader = fffs.FileReader(PATH)

        def read():
            while True:
                {READS["batches"]}

        for _ in range(4):
            threading.Thread(target=read, daemon=True).start()
        check(reader)
        sys.exit(3)
    """
    run_script(tmp_path, path, code, status=3)


# ---------------------------------------------------------------- writers and fork


@pytest.mark.parametrize("kind", ["FileWriter", "TFRecordWriter", "OFRecordWriter", "BagWriter"])
def test_a_child_of_fork_cannot_write_into_or_publish_what_its_parent_writes(tmp_path: Path, kind: str) -> None:
    code = f"""
        from fffs import granular, ofrecord, tfrecord
        from fffs.errors import WriterError
        warnings.simplefilter("ignore", DeprecationWarning)
        target = PATH + {{"FileWriter": ".ffr", "BagWriter": ".bag"}}.get({kind!r}, ".tfrecord")
        kinds = {{
            "FileWriter": lambda path: fffs.FileWriter(path, 2),
            "TFRecordWriter": tfrecord.TFRecordWriter,
            "OFRecordWriter": ofrecord.OFRecordWriter,
            "BagWriter": granular.BagWriter,
        }}
        writer = kinds[{kind!r}](target)
        write = getattr(writer, "write_one", None) or writer.append
        write(b"first")
        if (child := os.fork()) == 0:
            for step in (lambda: write(b"child's"), writer.close):
                try:
                    step()
                except WriterError as error:
                    print("made it before the fork" in str(error), flush=True)
            del writer, write
            sys.exit(0)  # runs what is left to be run: nothing is flushed
        os.waitpid(child, 0)
        print(os.path.exists(target))
        write(b"second")
        writer.close()
        with fffs.open(target, format="ofrecord" if {kind!r} == "OFRecordWriter" else None) as reader:
            print([bytes(record) for record in reader.read(range(reader.n))])
    """
    out = run_script(tmp_path, tmp_path / "written", code)
    assert out.splitlines() == ["True", "True", "False", "[b'first', b'second']"]


def test_threads_that_use_fffs_first_at_once_import_one_after_the_other() -> None:
    """numpy alone fails in half of all attempts if two threads import different parts of it."""
    code = """
        import threading, fffs
        names = ["PackedFolder", "plan_dump", "JobReport", "convert", "plan_pack", "utils", "unpack", "checkFsAlign"]
        ready, failed = threading.Barrier(len(names)), []
        def use(name):
            ready.wait()
            try:
                getattr(fffs, name)
            except BaseException as error:
                failed.append((name, error))
        threads = [threading.Thread(target=use, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(failed)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    assert subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout == "[]\n"


def test_imports_wait_a_while_for_each_other_and_a_child_forgets_those_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importing, "PATIENCE", 0.1)
    entered, leave = threading.Event(), threading.Event()

    def imports() -> None:
        with importing.importing:
            entered.set()
            leave.wait(60)

    other = threading.Thread(target=imports)
    other.start()
    assert entered.wait(60)

    def child() -> None:
        with importing.importing, importing.importing:
            pass
        wait_for(in_child(lambda: None))

    with importing.importing:
        wait_for(in_child(child))
    leave.set()
    other.join()
    monkeypatch.setattr(importing, "PATIENCE", 1e6)
    wait_for(in_child(child))  # which fails after a minute


@pytest.mark.parametrize("name", ["x.ffr", "x.bag", "data"])
def test_a_child_that_is_forked_while_another_thread_first_opens_something_reads(tmp_path: Path, name: str) -> None:
    """Opening imports. A child would wait for ever for the lock of an import that a thread of its parent had begun."""
    path = tmp_path / name
    if name == "data":
        with granular.DatasetWriter(path, {"a": "bytes"}) as writer:
            writer.append({"a": b"0"})
    else:
        with fffs.FileWriter(tmp_path / "x.ffr", 1) as file:
            file.write_one(b"0")
        if name == "x.bag":
            fffs.convert(tmp_path / "x.ffr", path)
    code = """
import os, sys, threading, time, fffs
begun = threading.Event()
class Slow:
    "Makes each import of a module of the package take a moment."
    def find_spec(self, name, path=None, target=None):
        if name.startswith("fffs."):
            begun.set()
            time.sleep(0.002)
sys.meta_path.insert(0, Slow())
def read():
    with fffs.open(sys.argv[1]) as reader:
        reader.read_one(0)
thread = threading.Thread(target=read)
thread.start()
begun.wait()
time.sleep(float(sys.argv[2]))
if (child := os.fork()) == 0:
    read()
    os._exit(0)
for _ in range(3000):
    if os.waitpid(child, os.WNOHANG)[0]:
        break
    time.sleep(0.01)
else:
    os.kill(child, 9)
    sys.exit("the child hangs")
thread.join()
"""
    for delay in ("0", "0.03", "0.1"):
        command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, path, delay]
        subprocess.run(command, timeout=120, check=True)
