"""Accidents to a mount under load: to its source, disk, daemon, readers. No wrong bytes are read, and nothing hangs."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from mounting import Mounts, is_mounted, read_all, run_fffs, umount_quietly, wait_until

import fffs
import fffs.granular
from fffs.mount import umount

pytestmark = pytest.mark.fuse

MIB = 1 << 20
# scripts/soak sets more.
READS = int(os.environ.get("FFFS_ACCIDENT_READS", "2000"))


# ---------------------------------------------------------------- sources and readers


def content_of(number: int, size: int) -> bytes:
    """Return bytes that no other record has, so that wrong results cannot look right."""
    return random.Random(f"content {number}").randbytes(size)


def record_files(path: Path, count: int, size: int) -> list[bytes]:
    """Write a record file. Returns its records."""
    records = [content_of(k, size + k) for k in range(count)]
    with fffs.FileWriter(path, count) as writer:
        for record in records:
            writer.write_one(record)
    return records


def forget_pages(path: Path) -> None:
    """Drop a file from the kernel's cache without asking its file system, which may not answer."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def read(path: Path) -> bytes | int:
    """Return the bytes of a file that is not cached, or an error number."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError as error:
        return error.errno or -1
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return read_all(fd)
    except OSError as error:
        return error.errno or -1
    finally:
        with suppress(OSError):  # the first close after the connection ended
            os.close(fd)


# A process that reads random files until it is told to stop, and prints how often it got each result.
READER = """
import errno, os, random, signal, sys, zlib
folder, seed, *sums = sys.argv[1:]
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
rng, good, wrong, failed = random.Random(seed), 0, 0, {}
print("ready", flush=True)
while not stopped:
    k = rng.randrange(len(sums))
    try:
        fd = os.open(f"{folder}/{k:06}", os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            data = b""
            while part := os.pread(fd, 1 << 20, len(data)):  # short when the daemon ends meanwhile, and then an error
                data += part
        finally:
            os.close(fd)
        if zlib.crc32(data) == int(sums[k]): good += 1
        else: wrong += 1
    except OSError as error:
        name = errno.errorcode[error.errno]
        failed[name] = failed.get(name, 0) + 1
        if name != "EIO": break
print(good, wrong, ",".join(sorted(failed)))
"""


class Readers:
    """Processes that read a mount until it ends or they are stopped."""

    def __init__(self, folder: Path, records: list[bytes], count: int) -> None:
        sums = [str(zlib.crc32(record)) for record in records]
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", READER, folder, str(k), *sums], stdout=subprocess.PIPE, text=True
            )
            for k in range(count)
        ]
        for process in self.processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"

    def end(self) -> list[tuple[int, int, str]]:
        """Stop them. Returns for each the numbers of good and wrong reads, and the errors. No process may hang."""
        for process in self.processes:
            process.terminate()
        try:
            texts = [process.communicate(timeout=60)[0] for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()
        words = [text.rstrip("\n").split(" ") for text in texts]
        return [(int(good), int(wrong), failed) for good, wrong, failed in words]


@pytest.fixture
def kept_open() -> Iterator[list[int]]:
    """Descriptors that are closed after the test. Raises the limit of open files."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    fds: list[int] = []
    yield fds
    for fd in fds:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def bag_of(path: Path, records: list[bytes]) -> Path:
    """Write a Bag of two files in place, as cp(1) does."""
    path.write_bytes(b"".join(records))
    path.with_suffix(".idx").write_bytes(np.cumsum([len(record) for record in records]).astype("<u8").tobytes())
    return path


# ---------------------------------------------------------------- the source


def truncate(source: Path, good: bytes) -> None:
    os.truncate(source, len(good) // 2)


def overwrite(source: Path, good: bytes) -> None:
    with open(source, "r+b", buffering=0) as file:
        file.seek(len(good) // 4)
        file.write(content_of(-1, len(good) // 2))


def overwrite_with_another(source: Path, good: bytes) -> None:
    """Write a valid record file of the same layout with other records and right checksums."""
    records = [content_of(1000 + k, 3000 + k) for k in range(100)]
    with fffs.FileWriter(source.with_name("other.ffr"), 100) as writer:
        for record in records:
            writer.write_one(record)
    other = source.with_name("other.ffr").read_bytes()
    assert len(other) == len(good)
    with open(source, "r+b", buffering=0) as file:
        file.write(other)


def replace(source: Path, good: bytes) -> None:
    source.with_suffix(".new").write_bytes(bytes(len(good)))
    os.replace(source.with_suffix(".new"), source)


def unlink(source: Path, good: bytes) -> None:
    source.unlink()


def grow(source: Path, good: bytes) -> None:
    with open(source, "ab", buffering=0) as file:
        file.write(bytes(100_000))


ACCIDENTS: dict[str, tuple[Callable[[Path, bytes], None], bool]] = {
    "truncated": (truncate, True),
    "overwritten": (overwrite, True),
    "overwritten with another": (overwrite_with_another, True),
    "grown": (grow, False),
    "replaced": (replace, False),  # the open file stays
    "unlinked": (unlink, False),
}


@pytest.mark.parametrize("accident", ACCIDENTS)
def test_whatever_happens_to_the_source_only_original_bytes_are_given_out(
    accident: str, tmp_path: Path, mounts: Mounts
) -> None:
    """Thousands of reads return the packed bytes or EIO."""
    source = tmp_path / "r.ffr"
    records = record_files(source, 100, 3000)
    good = source.read_bytes()
    happen, harms = ACCIDENTS[accident]
    path = mounts(source)
    if harms:
        mounts.daemon.expect(r"0000\d\d: .*r.ffr")
        mounts.daemon.expect("reads failed, of (more than )?[0-9]+ records")
    done = threading.Event()
    begun: list[int] = []

    def work(seed: int) -> tuple[int, int]:
        rng, intact, failed = random.Random(seed), 0, 0
        for k in range(READS // 8):
            number = rng.randrange(100)
            data = read(path / f"{number:06}")
            begun.append(number)
            if k == READS // 10:
                done.wait()
            assert data in (records[number], errno.EIO), f"record {number}: {data!r:.80}"
            failed += data == errno.EIO
            intact += data != errno.EIO
        return intact, failed

    with ThreadPoolExecutor(8) as pool:
        counts = [pool.submit(work, seed) for seed in range(8)]
        try:
            wait_until(lambda: len(begun) > READS // 4)
            happen(source, good)
        finally:
            done.set()
        results = [count.result(60) for count in counts]
    assert sum(intact for intact, _ in results) > READS // 5
    assert (sum(failed for _, failed in results) > 0) == harms
    assert not mounts.daemon.wait(0), "the daemon lives"
    assert len(os.listdir(path)) == 100
    if accident in ("truncated", "overwritten"):  # with the original bytes again, no error is remembered
        with open(source, "r+b", buffering=0) as file:
            file.write(good)
        assert [read(path / f"{k:06}") for k in range(100)] == records


def test_a_bag_that_grows_or_is_overwritten_gives_no_more_bytes(tmp_path: Path, mounts: Mounts) -> None:
    source = tmp_path / "x.bag"
    for k in range(3):
        path = mounts(bag_of(source, [b"old %d" % k for k in range(20)]), at=tmp_path / f"{k}")
        mounts.daemon.expect(r"0000\d\d: .*x.bag: its modification time or size changed")
        mounts.daemon.expect("reads failed, of")
        assert read(path / "000007") == b"old 7"
        if k == 0:
            with fffs.granular.BagWriter(source, layout="v3") as bag:
                bag.append(b"more")
        else:
            bag_of(source, [b"new %d" % k for k in range(20 * k)])
        assert read(path / "000008") == errno.EIO
        umount(path)
        path = mounts(source, at=tmp_path / f"{k} again")
        assert read(path / "000008") == (b"new 8" if k else b"old 8")
        umount(path)


@pytest.mark.parametrize("bit", range(3))
def test_a_flipped_bit_is_an_error_of_its_record_and_one_line(bit: int, tmp_path: Path, mounts: Mounts) -> None:
    """The first, the last or another bit of a record flips on the disk after mounting."""
    source = tmp_path / "r.ffr"
    records = record_files(source, 40, 5000)
    start = source.read_bytes().find(records[17])
    at = start * 8 + (0, len(records[17]) * 8 - 1, 20_003)[bit]
    path = mounts(source)
    mounts.daemon.expect("000017: .*r.ffr: record 17: ")
    mounts.daemon.expect(r"(\d+) reads failed, of 1 records")
    with open(source, "r+b", buffering=0) as file:
        byte = os.pread(file.fileno(), 1, at // 8)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 1 << at % 8]), at // 8)
    for _ in range(5):
        found = [read(path / f"{k:06}") for k in range(40)]
        assert found == [record if k != 17 else errno.EIO for k, record in enumerate(records)]
    wait_until(lambda: len(mounts.daemon.trouble()) == 1)
    umount(path)
    summary = [line for line in mounts.daemon.trouble() if "reads failed" in line]
    assert len(mounts.daemon.trouble()) == 2 and len(summary) == 1, mounts.daemon.log()


# ---------------------------------------------------------------- load


def test_ten_thousand_files_open_at_once(tmp_path: Path, mounts: Mounts, kept_open: list[int]) -> None:
    source = tmp_path / "r.ffr"
    count = min(10_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 500)
    assert count > 5000, "the limit of open files is too low here"
    with fffs.FileWriter(source, count) as writer:
        for k in range(count):
            writer.write_one(b"%d" % k)
    path = mounts(source)
    assert sorted(os.listdir(path)) == [f"{k:06}" for k in range(count)]
    before = mounts.daemon.descriptors()
    for k in range(count):
        kept_open.append(os.open(path / f"{k:06}", os.O_RDONLY))
    assert mounts.daemon.descriptors() <= before + 2, "an open file costs the daemon no descriptor"
    assert all(os.read(fd, 100) == b"%d" % k for k, fd in enumerate(kept_open))


def test_sixty_four_processes_at_once(tmp_path: Path, mounts: Mounts) -> None:
    records = record_files(tmp_path / "r.ffr", 100, 20_000)
    readers = Readers(mounts(tmp_path / "r.ffr"), records, 64)
    results = readers.end()
    assert all(wrong == 0 and failed == "" for _, wrong, failed in results), results
    assert sum(good for good, _, _ in results) >= 64


def test_a_reader_killed_in_the_middle_of_a_read(tmp_path: Path, mounts: Mounts) -> None:
    records = record_files(tmp_path / "r.ffr", 30, 300_000)
    path = mounts(tmp_path / "r.ffr")
    for _ in range(5):
        readers = Readers(path, records, 4)
        for process in readers.processes:
            process.kill()
            process.communicate()
    assert [read(path / f"{k:06}") for k in range(30)] == records
    umount(path)
    assert mounts.daemon.wait(0), "nothing is held open for processes that are gone"


# ---------------------------------------------------------------- the daemon


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_a_daemon_that_ends_while_processes_read(number: int, tmp_path: Path, mounts: Mounts) -> None:
    """Nothing hangs; a mount point never looks like an empty folder; after unmounting, mounting works again."""
    records = record_files(tmp_path / "r.ffr", 50, 30_000)
    (tmp_path / "mine").mkdir()
    paths = [tmp_path / "made" / "for it", *([tmp_path / "mine"] if number == signal.SIGKILL else [])]
    for path in paths:
        mounts(tmp_path / "r.ffr", at=path)
        readers = Readers(path, records, 8)
        if number == signal.SIGSEGV:
            mounts.daemon.expect(":", traceback=True)
        looks: set[str] = set()
        ended = threading.Event()
        watcher = threading.Thread(target=watch, args=(path, looks, ended))
        watcher.start()
        mounts.daemon.kill(number)
        assert mounts.daemon.wait()
        results = readers.end()
        assert all(wrong == 0 for _, wrong, _ in results), results
        if number == signal.SIGTERM:
            wait_until(lambda path=path: not is_mounted(path))  # type: ignore[misc]
        ended.set()
        watcher.join()
        if number != signal.SIGTERM:
            assert looks <= {"complete", "ENOTCONN", "ECONNABORTED"}, looks
            # The kernel may return cached data; calls that ask the daemon fail.
            assert look(path) in ("complete", "ENOTCONN")
            with pytest.raises(OSError, match=os.strerror(errno.ENOTCONN)):
                os.statvfs(path)
            assert run_fffs("umount", path) == ""
        assert look(path) == ("empty" if path.name == "mine" else "ENOENT")
        assert path.name == "mine" or not path.parent.exists()
        mounts(tmp_path / "r.ffr", at=path)
        assert [read(path / f"{k:06}") for k in range(50)] == records
        umount(path)


def look(path: Path) -> str:
    """Return how the mount point looks to a program."""
    try:
        names = os.listdir(path)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "complete" if len(names) == 50 else "empty" if not names else f"{len(names)} names"


def watch(path: Path, looks: set[str], ended: threading.Event) -> None:
    while not ended.is_set():
        looks.add(look(path))


def test_a_mount_point_that_was_made_stays_while_its_daemon_serves_open_files(tmp_path: Path, mounts: Mounts) -> None:
    """Other mount namespaces may have the mount, too: removing the folder would detach it there."""
    records = record_files(tmp_path / "r.ffr", 3, 100)
    path = mounts(tmp_path / "r.ffr", at=tmp_path / "made" / "for it")
    with open(path / "000001", "rb", buffering=0) as file:
        umount(path, lazy=True)
        assert os.listdir(path) == [] and file.read() == records[1]
    assert mounts.daemon.wait()
    assert not path.parent.exists()


def test_a_mount_point_that_was_made_goes_with_the_mount(tmp_path: Path, mounts: Mounts) -> None:
    """A daemon that is told to end may serve open files for longer; an empty folder would look valid meanwhile."""
    record_files(tmp_path / "r.ffr", 3, 100)
    path = mounts(tmp_path / "r.ffr", at=tmp_path / "made" / "for it")
    fd = os.open(path / "000001", os.O_RDONLY)
    try:
        mounts.daemon.kill(signal.SIGTERM)
        wait_until(lambda: not path.parent.exists())
        path.parent.mkdir()  # made by another program: it stays
    finally:
        with suppress(OSError):
            os.close(fd)
    assert mounts.daemon.wait()
    assert path.parent.is_dir()


def test_a_mount_point_left_by_a_killed_daemon_is_taken_over(tmp_path: Path, mounts: Mounts) -> None:
    """Another program unmounted after the daemon was killed: the next mount removes the folder of the first one."""
    record_files(tmp_path / "r.ffr", 3, 100)
    path = mounts(tmp_path / "r.ffr", at=tmp_path / "made" / "for it")
    mounts.daemon.kill()
    assert mounts.daemon.wait()
    subprocess.run(["umount", "-l", path], check=True)
    assert os.listdir(path) == []
    umount(mounts(tmp_path / "r.ffr", at=path))
    assert not path.parent.exists()


def test_cleaning_up_removes_no_folder_of_somebody_else(tmp_path: Path, mounts: Mounts) -> None:
    record_files(tmp_path / "r.ffr", 3, 100)
    for path, kept in ((tmp_path / "mine", tmp_path / "mine"), (tmp_path / "made" / "for it", tmp_path / "made")):
        (tmp_path / "mine").mkdir(exist_ok=True)
        mounts(tmp_path / "r.ffr", at=path)
        if path != kept:
            (kept / "something").touch()
        mounts.daemon.kill()
        assert mounts.daemon.wait()
        umount(path)
        assert kept.is_dir() and path.exists() == (path == kept)


def test_a_connection_that_somebody_aborts_ends_the_daemon_in_order(tmp_path: Path, mounts: Mounts) -> None:
    """An administrator may do this if a file system hangs."""
    if os.geteuid() != 0:
        pytest.skip("only root can abort a connection")
    record_files(tmp_path / "r.ffr", 3, 100)
    path = mounts(tmp_path / "r.ffr")
    mounts.daemon.expect("its connection to the kernel was aborted")
    (tmp_path / "control").mkdir()
    subprocess.run(["mount", "-t", "fusectl", "fusectl", tmp_path / "control"], check=True)
    try:
        (tmp_path / "control" / str(os.minor(path.stat().st_dev)) / "abort").write_text("1")
    finally:
        subprocess.run(["umount", tmp_path / "control"], check=True)
    assert mounts.daemon.wait()
    assert not path.exists()
    assert len(mounts.daemon.trouble()) == 1


def test_unmounting_while_the_kernel_has_much_to_say(tmp_path: Path, mounts: Mounts) -> None:
    """Thousands of files are closed just before, so the connection may end while a request is read from it."""
    with fffs.FileWriter(tmp_path / "r.ffr", 2000) as writer:
        for k in range(2000):
            writer.write_one(b"%d" % k)
    for _ in range(3):
        path = mounts(tmp_path / "r.ffr")
        fds = [os.open(path / f"{k:06}", os.O_RDONLY) for k in range(2000)]
        for fd in fds:
            os.close(fd)
        umount_quietly(path)
        assert mounts.daemon.wait()
        assert not path.exists()


# ---------------------------------------------------------------- the disk


@contextmanager
def stalled(mounts: Mounts, number: int) -> Iterator[None]:
    """Stall a disk: the source is in a mount whose daemon is stopped."""
    disk = mounts.daemons[number]
    disk.kill(signal.SIGSTOP)
    try:
        yield
    finally:
        disk.kill(signal.SIGCONT)


@pytest.fixture
def on_two_disks(tmp_path: Path, mounts: Mounts) -> tuple[Path, list[bytes]]:
    """Make one mount of two sources: records 0 to 299 are in another mount, the disk, and 300 to 399 on a real disk."""
    (tmp_path / "disk").mkdir()
    records = record_files(tmp_path / "disk" / "a.ffr", 300, 40_000)
    others = [content_of(300 + k, 40_000) for k in range(100)]
    with fffs.FileWriter(tmp_path / "b.ffr", 100) as writer:
        for record in others:
            writer.write_one(record)
    fffs.pack_folder(tmp_path / "disk", tmp_path / "disk.ffr")
    disk = mounts(tmp_path / "disk.ffr")
    path = mounts(disk / "a.ffr", tmp_path / "b.ffr")
    return path, records + others


def test_a_stalled_disk_keeps_nobody_waiting_but_its_own_readers(
    on_two_disks: tuple[Path, list[bytes]], tmp_path: Path, mounts: Mounts
) -> None:
    path, records = on_two_disks
    assert read(path / "000350") == records[350]
    forget_pages(mounts.daemons[0].path / "a.ffr")
    with ThreadPoolExecutor(280) as pool:
        with stalled(mounts, 0):
            waiting = [pool.submit(read, path / f"{k:06}") for k in range(250)]
            for k in [*range(300, 400)] * 2:  # from the other disk, not cached
                forget_pages(tmp_path / "b.ffr")
                assert within(pool, lambda k=k: read(path / f"{k:06}")) == records[k]  # type: ignore[misc]
            assert within(pool, lambda: len(os.listdir(path))) == 400
            assert within(pool, lambda: os.stat(path / "000299").st_size) == len(records[299])
            assert not all(future.done() for future in waiting)
        assert [future.result(60) for future in waiting] == records[:250]


def within(pool: ThreadPoolExecutor, work: Callable[[], object]) -> object:
    """Return the result, within a generous limit, although other threads wait."""
    future: Future[object] = pool.submit(work)
    return future.result(30)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_daemon_ends_although_its_disk_does_not_answer(
    number: int, on_two_disks: tuple[Path, list[bytes]], mounts: Mounts
) -> None:
    path, _ = on_two_disks
    daemon = mounts.daemon
    forget_pages(mounts.daemons[0].path / "a.ffr")
    with ThreadPoolExecutor(8) as pool:
        with stalled(mounts, 0):
            waiting = [pool.submit(read, path / f"{k:06}") for k in range(8)]
            # The kernel may not have forgotten every page.
            wait_until(lambda: all(future.running() or future.done() for future in waiting))
            assert any(future.running() for future in waiting)
            daemon.kill(number)
            if number == signal.SIGTERM:
                wait_until(lambda: not is_mounted(path))
        results = [future.result(60) for future in waiting]
        assert daemon.wait()
        assert all(isinstance(result, bytes) or result in GONE for result in results), results
    if number == signal.SIGKILL:
        umount(path)
    assert not path.exists()


GONE = {errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ENOENT, errno.EINTR}
