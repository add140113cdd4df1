"""Reads through the mount: only verified bytes, errors only for damaged files, no waiting for another disk."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import random
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from golden_files import Golden
from mounting import Daemon, Mounts, is_mounted, pack_files, run_fffs, wait_until

import fffs
import fffs.ofrecord

pytestmark = pytest.mark.fuse

MIB = 1024 * 1024


def write_records(path: Path, records: list[bytes]) -> Path:
    """Write a plain record file, without tree and block checksums."""
    with fffs.FileWriter(path, len(records)) as writer:
        for record in records:
            writer.write_one(record)
    return path


def place_of(content: bytes, source: Path) -> int:
    """Return the offset of a record with this content in the file."""
    at = source.read_bytes().find(content)
    assert at > 0
    return at


def flip(path: Path, offset: int) -> None:
    """Damage a byte in place."""
    with open(path, "r+b", buffering=0) as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x40]))


def forget_pages(path: Path) -> None:
    """Make the next read of a mounted file ask the daemon."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def read_or_eio(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError as error:
        assert error.errno == errno.EIO
        return None


def some_bytes(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


# ---------------------------------------------------------------- damage


def test_a_damaged_record_is_an_error_of_its_file_alone(tmp_path: Path, mounts: Mounts) -> None:
    records = [some_bytes(k, 5000 + k) for k in range(20)]
    source = write_records(tmp_path / "r.ffr", records)
    flip(source, place_of(records[7], source) + 4000)
    mounted = mounts(source, xattr=True)
    mounts.daemon.expect("000007: .*r.ffr: record 7: ")
    mounts.daemon.expect(r"reads failed, of 1 records; `fffs verify`")
    for _ in range(3):
        assert [read_or_eio(mounted / f"{k:06}") for k in range(20)] == [
            r if k != 7 else None for k, r in enumerate(records)
        ]
        fd = os.open(mounted / "000007", os.O_RDONLY)
        for offset in (0, 1, 4095, 4999):  # also in good parts, because the checksum is that of the whole record
            with pytest.raises(OSError) as caught:
                os.pread(fd, 10, offset)
            assert caught.value.errno == errno.EIO
        os.close(fd)
    wait_until(lambda: mounts.daemon.trouble())  # the line is written after the reply
    assert len(mounts.daemon.trouble()) == 1, "one line for one bad record, however often it is read"
    assert os.getxattr(mounted / "000007", "user.fffs.verified") == b"no"
    assert os.getxattr(mounted / "000006", "user.fffs.verified") == b"yes"
    assert os.stat(mounted / "000007").st_size == 5007


@pytest.mark.parametrize("cut_to", [None, 50, 0], ids=["touched", "cut", "emptied"])
def test_a_source_that_changed_is_one_line_however_many_records_it_has(
    tmp_path: Path, mounts: Mounts, cut_to: int | None
) -> None:
    with fffs.ofrecord.OFRecordWriter(tmp_path / "x.ofrecord") as writer:
        for k in range(20):
            writer.write_one(b"%d" % k)
    mounted = mounts(tmp_path / "x.ofrecord", format="ofrecord")
    if cut_to is not None:
        os.truncate(tmp_path / "x.ofrecord", cut_to)
    os.utime(tmp_path / "x.ofrecord", (1, 1))
    mounts.daemon.expect("0000[01][0-9]: .*x.ofrecord: its modification time or size changed while it was open")
    mounts.daemon.expect(r"\d+ reads failed, of 20 records; `fffs verify`")
    assert [read_or_eio(mounted / f"{k:06}") for k in range(20)] == [None] * 20
    run_fffs("umount", mounted)
    assert len(mounts.daemon.trouble()) == 2


def test_the_log_names_the_path_of_a_bad_file(tmp_path: Path, mounts: Mounts) -> None:
    folder = tmp_path / "folder"
    (folder / "x" / "y").mkdir(parents=True)
    (folder / "x" / "y" / "bad").write_bytes(b"content that is unique")
    for k in range(30):
        (folder / f"{k}").write_text("")
        (folder / "x" / f"{k}").write_text(f"{k}")
    fffs.pack_folder(folder, tmp_path / "p.ffr")
    flip(tmp_path / "p.ffr", place_of(b"content that is unique", tmp_path / "p.ffr"))
    mounted = mounts(tmp_path / "p.ffr")
    mounts.daemon.expect(r" ERROR x/y/bad: .*checksum")
    mounts.daemon.expect(r"1 records")
    assert read_or_eio(mounted / "x/y/bad") is None
    wait_until(lambda: len(mounts.daemon.trouble()) == 1)


def test_without_verification_damage_is_given_out(tmp_path: Path, mounts: Mounts) -> None:
    source = pack_files(tmp_path / "folder", file=b"unchecked content")
    flip(source, place_of(b"unchecked content", source))
    mounted = mounts(source, verify=False, xattr=True)
    assert (mounted / "file").read_bytes() == b"5nchecked content"
    assert os.getxattr(mounted / "file", "user.fffs.verified") == b"no"


def test_a_damaged_block_leaves_the_others_of_a_large_file_readable(tmp_path: Path, mounts: Mounts) -> None:
    content = some_bytes(1, 5 * MIB + 1000)
    source = pack_files(tmp_path / "folder", large=content, small=b"sibling")
    flip(source, place_of(content, source) + 2 * MIB + 5)
    mounted = mounts(source)
    mounts.daemon.expect("large: .*record [01]: ")
    mounts.daemon.expect("of 1 records")
    fd = os.open(mounted / "large", os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    for block in (0, 1, 3, 4, 5):
        assert os.pread(fd, 500, block * MIB + 300) == content[block * MIB + 300 : block * MIB + 800]
    for offset in (2 * MIB, 2 * MIB + 5, 3 * MIB - 1):
        with pytest.raises(OSError) as caught:
            os.pread(fd, 1, offset)
        assert caught.value.errno == errno.EIO
    os.close(fd)
    assert (mounted / "small").read_bytes() == b"sibling"
    wait_until(lambda: len(mounts.daemon.trouble()) == 1)


@pytest.mark.parametrize("identity", ["record-crc", "data-first-byte", "data-last-byte", "data-other-record"])
def test_golden_files_with_damaged_data(identity: str, golden: Golden, tmp_path: Path, mounts: Mounts) -> None:
    (tmp_path / "c.ffr").write_bytes(golden.corrupt(identity))
    base = golden.raw(golden.corruptions[identity]["base"]).records
    try:
        mounted = mounts(tmp_path / "c.ffr")
    except fffs.errors.MetadataError:
        assert identity == "record-crc"  # a checksum in the header is covered by the header's own
        return
    mounts.daemon.expect("checksum|1 records;")
    read = [read_or_eio(mounted / name) for name in sorted(os.listdir(mounted))]
    assert [k for k, got in enumerate(read) if got != base[k]] == [read.index(None)]
    assert read.count(None) == 1


# ---------------------------------------------------------------- a source that changes


def test_a_source_overwritten_while_mounted_gives_the_old_bytes_or_an_error(tmp_path: Path, mounts: Mounts) -> None:
    records = [some_bytes(k, 20_000) for k in range(50)]
    source = write_records(tmp_path / "r.ffr", records)
    good = source.read_bytes()
    mounted = mounts(source)
    mounts.daemon.expect(".")
    names = [f"{k:06}" for k in range(50)]
    for name in names[:25]:
        (mounted / name).read_bytes()
    with open(source, "r+b", buffering=0) as file:
        file.write(bytes(len(good)))
    for name in names:
        forget_pages(mounted / name)
    assert all(got in (None, records[k]) for k, got in enumerate(read_or_eio(mounted / name) for name in names))
    assert read_or_eio(mounted / names[49]) is None
    with open(source, "r+b", buffering=0) as file:
        file.write(good)
    assert [read_or_eio(mounted / name) for name in names] == records, "good bytes are good again"


def test_a_source_truncated_while_mounted_is_an_error_not_a_crash(tmp_path: Path, mounts: Mounts) -> None:
    content = some_bytes(1, 3 * MIB)
    source = pack_files(tmp_path / "folder", a=b"small and first", large=content)
    end = place_of(content, source) + MIB + 100
    mounted = mounts(source)
    mounts.daemon.expect("large: .*r")
    mounts.daemon.expect("of 1 records")
    assert (mounted / "large").read_bytes() == content
    os.truncate(source, end)
    forget_pages(mounted / "large")
    forget_pages(mounted / "a")
    assert read_or_eio(mounted / "large") is None
    assert (mounted / "a").read_bytes() == b"small and first"
    wait_until(mounts.daemon.trouble)
    assert not mounts.daemon.wait(0)


@pytest.mark.parametrize("missing", [1, 4, 5, 2000])
def test_the_last_record_of_a_truncated_file_is_no_empty_file(tmp_path: Path, mounts: Mounts, missing: int) -> None:
    """Its length is that of the rest of the file. Where there is none, the kernel would ask nobody for its bytes."""
    records = [b"zero", some_bytes(1, 3000), b"", b"last"]
    source = write_records(tmp_path / "r.ffr", records)
    os.truncate(source, source.stat().st_size - missing)
    mounted = mounts(source)
    for text in ("the file is truncated", "000001", "000003", "reads failed, of [12] records"):
        mounts.daemon.expect(text)
    found = [read_or_eio(mounted / f"{k:06}") for k in range(4)]
    assert found == [records[0], records[1] if missing < 5 else None, b"", None]
    wait_until(lambda: len(mounts.daemon.trouble()) >= found.count(None))


# ---------------------------------------------------------------- large records


@pytest.mark.parametrize("blocks", [True, False], ids=["block checksums", "one checksum"])
def test_random_reads_of_a_large_record(blocks: bool, tmp_path: Path, mounts: Mounts) -> None:
    content = some_bytes(2, 7 * MIB + 12345)
    if blocks:
        path = mounts(pack_files(tmp_path / "folder", large=content)) / "large"
    else:
        path = mounts(write_records(tmp_path / "r.ffr", [b"x" * 100, content])) / "000001"
    rng = random.Random(3)
    fd = os.open(path, os.O_RDONLY)
    for _ in range(200):
        start, size = rng.randrange(len(content) + 5000), rng.choice([1, 100, 4096, 70_000, 2 * MIB])
        assert os.pread(fd, size, start) == content[start : start + size]
    os.close(fd)
    assert path.read_bytes() == content


def test_sizes_around_pages_and_blocks(tmp_path: Path, mounts: Mounts) -> None:
    sizes = [0, 1, 4095, 4096, 4097, 131072, MIB - 1, MIB, MIB + 1]
    mounted = mounts(write_records(tmp_path / "r.ffr", [some_bytes(size, size) for size in sizes]))
    for k, size in enumerate(sizes):
        content, path = some_bytes(size, size), mounted / f"{k:06}"
        assert path.read_bytes() == content
        fd = os.open(path, os.O_RDONLY)
        assert os.pread(fd, 10, size) == os.pread(fd, 10, size + 100_000) == b""
        assert os.pread(fd, 100, max(size - 3, 0)) == content[-3:]
        os.close(fd)


def test_other_ways_to_read(tmp_path: Path, mounts: Mounts) -> None:
    content = some_bytes(4, 2 * MIB + 77)
    path = mounts(pack_files(tmp_path / "folder", file=content)) / "file"
    fd = os.open(path, os.O_RDONLY)
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as view:
        assert view[MIB - 10 : MIB + 10] == content[MIB - 10 : MIB + 10]
        assert bytes(view) == content
    with open(tmp_path / "copy", "w+b") as copy:
        sent = 0
        while sent < len(content):
            sent += os.sendfile(copy.fileno(), fd, sent, len(content) - sent)
        copy.seek(0)
        assert copy.read() == content
    direct = os.open(path, os.O_RDONLY | os.O_DIRECT)
    with mmap.mmap(-1, 4 * MIB) as buffer:  # page-aligned
        assert os.preadv(direct, [buffer], 0) == len(content)
        assert buffer[: len(content)] == content
    os.close(direct)
    os.close(fd)


def test_calls_that_no_fuse_file_system_has_fail_as_there(tmp_path: Path, mounts: Mounts) -> None:
    path = mounts(pack_files(tmp_path / "folder", file=b"content")) / "file"
    with open(path, "rb", buffering=0) as file:
        assert file.read() == b"content"  # cached, so that a read does not wait
        with pytest.raises(OSError) as raised:
            os.preadv(file.fileno(), [bytearray(7)], 0, os.RWF_NOWAIT)
        assert raised.value.errno == errno.EOPNOTSUPP


def test_ioctls_of_disks_find_no_disk(tmp_path: Path, mounts: Mounts) -> None:
    fibmap, figetbsz, fs_ioc_fiemap = 1, 2, 0xC020660B
    path = mounts(pack_files(tmp_path / "folder", file=b"content")) / "file"
    with open(path, "rb") as file:
        assert fcntl.ioctl(file, fibmap, bytes(4)) == bytes(4)
        assert int.from_bytes(fcntl.ioctl(file, figetbsz, bytes(4)), sys.byteorder) == mmap.PAGESIZE
        with pytest.raises(OSError) as raised:
            fcntl.ioctl(file, fs_ioc_fiemap, struct.pack("QQIIII", 0, 1 << 20, 0, 0, 0, 0))
        assert raised.value.errno == errno.EOPNOTSUPP


# ---------------------------------------------------------------- many readers


@pytest.mark.parametrize("readers", [2, 16])
def test_readers_at_once(readers: int, tmp_path: Path, mounts: Mounts) -> None:
    records = [some_bytes(k, 300 * k * k % 400_000) for k in range(120)] + [some_bytes(7, 3 * MIB)]
    mounted = mounts(write_records(tmp_path / "r.ffr", records))

    def read(seed: int) -> int:
        rng = random.Random(seed)
        wrong = 0
        for k in rng.sample(range(len(records)), 80):
            path = mounted / f"{k:06}"
            wrong += path.read_bytes() != records[k] or path.stat().st_size != len(records[k])
            if rng.random() < 0.3:
                forget_pages(path)
        return wrong

    with ThreadPoolExecutor(readers) as pool:
        assert sum(pool.map(read, range(readers))) == 0


def test_processes_at_once(tmp_path: Path, mounts: Mounts) -> None:
    folder = tmp_path / "folder"
    for d in range(10):
        (folder / f"{d}").mkdir(parents=True)
        for k in range(30):
            (folder / f"{d}" / f"{k}").write_bytes(some_bytes(d * 100 + k, 10_000))
    fffs.pack_folder(folder, tmp_path / "p.ffr")
    mounted = mounts(tmp_path / "p.ffr")
    sums = subprocess.check_output("find . -type f | sort | xargs sha256sum", cwd=folder, shell=True)
    command = "find . -type f | sort | xargs -P 4 -n 20 sha256sum | sort -k2"
    running = [subprocess.Popen(command, cwd=mounted, shell=True, stdout=subprocess.PIPE) for _ in range(2)]
    for process in running:
        assert sorted(process.communicate()[0].splitlines()) == sorted(sums.splitlines())
    assert mounts.daemon.threads() < 50


def test_reading_leaves_nothing_open_in_the_daemon(tmp_path: Path, mounts: Mounts) -> None:
    mounted = mounts(write_records(tmp_path / "r.ffr", [some_bytes(k, 2 * MIB) for k in range(10)]))
    (mounted / "000000").read_bytes()
    before = mounts.daemon.descriptors()
    for k in range(10):
        (mounted / f"{k:06}").read_bytes()
        os.listdir(mounted)
    assert mounts.daemon.descriptors() <= before + 1  # at most an I/O context more


# ---------------------------------------------------------------- a daemon with injected bugs

FAULTY = """
import os, sys, time
from fffs.mount import MountOptions
from fffs.mount.daemon.job import make_job
from fffs.mount.daemon.log import DaemonLog
from fffs.mount.daemon.session import serve
from fffs.records.store import RecordStore

source, mountpoint, log, gate = sys.argv[1:]
original = RecordStore.read_range_into

def read_range_into(self, record, start, dest, *, wait=True):
    if record == 1:
        raise KeyError("a bug")
    if record >= 2 and not os.path.exists(gate):  # a disk that does not answer
        if not wait:
            return None
        open(gate + ".waiting", "w").close()
        while not os.path.exists(gate):
            time.sleep(0.02)
    return original(self, record, start, dest, wait=wait)

RecordStore.read_range_into = read_range_into
DaemonLog(log)
serve(make_job(source, mountpoint, MountOptions(log=log, fastpath=False)))
"""


@pytest.fixture
def faulty(tmp_path: Path, mounts: Mounts) -> Iterator[Path]:
    """A mount without fast path: reading the second record raises; later records wait until ``gate`` exists."""
    source = write_records(tmp_path / "r.ffr", [some_bytes(k, 9000) for k in range(300)])
    path, log = tmp_path / "faulty", tmp_path / "faulty.log"
    command = [sys.executable, "-c", FAULTY, source, path, log, tmp_path / "gate"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    wait_until(lambda: is_mounted(path) or process.poll() is not None)
    mounts.daemons.append(Daemon(path, log))
    yield path
    (tmp_path / "gate").touch()
    mounts.daemon.kill(15)
    assert process.wait(20) == 0


@pytest.mark.parametrize("mounts", [False], indirect=True, ids=["pyfuse3"])
def test_reads_from_a_stalled_disk_keep_nobody_else_waiting(faulty: Path, tmp_path: Path) -> None:
    assert (faulty / "000000").read_bytes() == some_bytes(0, 9000)
    with ThreadPoolExecutor(251) as pool:  # more than the default numbers of threads, tasks and background requests
        stalled = [pool.submit((faulty / f"{k:06}").read_bytes) for k in range(2, 252)]
        try:
            for _ in range(20):
                # In another thread: if this call waited as well, the gate would never open.
                pool.submit(forget_pages, faulty / "000000").result(30)
                assert pool.submit((faulty / "000000").read_bytes).result(30) == some_bytes(0, 9000)
                assert len(pool.submit(os.listdir, faulty).result(30)) == 300
            assert not any(future.done() for future in stalled)
        finally:
            (tmp_path / "gate").touch()
        assert [future.result(60) for future in stalled] == [some_bytes(k, 9000) for k in range(2, 252)]


@pytest.mark.parametrize("mounts", [False], indirect=True, ids=["pyfuse3"])
def test_a_bug_is_an_error_of_one_read_and_a_traceback_in_the_log(faulty: Path, mounts: Mounts) -> None:
    mounts.daemon.expect("unexpected error in read", traceback=True)
    for _ in range(3):
        assert read_or_eio(faulty / "000001") is None
    assert (faulty / "000000").read_bytes() == some_bytes(0, 9000)
    log = mounts.daemon.log()
    assert re.search(r"KeyError: 'a bug'", log) and "Traceback" in log


@pytest.mark.parametrize("mounts", [False], indirect=True, ids=["pyfuse3"])
def test_a_read_under_way_is_answered_although_the_daemon_was_told_to_end(
    faulty: Path, tmp_path: Path, mounts: Mounts
) -> None:
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit((faulty / "000005").read_bytes)
        try:
            wait_until((tmp_path / "gate.waiting").exists)
            mounts.daemon.kill(15)
            wait_until(lambda: not is_mounted(faulty))
        finally:
            (tmp_path / "gate").touch()
        assert read.result(20) == some_bytes(5, 9000)
    assert mounts.daemon.wait()
