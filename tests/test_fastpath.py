"""The fast path: its messages without a kernel, mounts that have to work without it, and all ways in which it ends."""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from inside import FIRST_ANSWER, TreeView, lib, load_source
from mounting import Daemon, Mounts, counters_of, detach_all, is_mounted, read_all, run_fffs, wait_until

import fffs
from fffs.errors import MountError
from fffs.mount import MountOptions, umount

fastpath = pytest.importorskip("fffs.mount.daemon.fastpath")

LOOKUP, GETATTR, OPEN, READ, STATFS, READDIR, OPENDIR = 1, 3, 14, 15, 17, 28, 27
GETXATTR, INTERRUPT, UNKNOWN = 22, 36, 4000
ON = MountOptions(fastpath=True, threads=2)


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A packed folder with a file and a folder, nodes 1 and 2."""
    (tmp_path / "folder" / "sub").mkdir(parents=True)
    (tmp_path / "folder" / "file").write_text("content")
    fffs.pack_folder(tmp_path / "folder", tmp_path / "p.ffr")
    return tmp_path / "p.ffr"


@pytest.fixture
def source(packed: Path) -> Iterator[TreeView]:
    with load_source([str(packed)]) as source:
        yield TreeView(source.tree, source.store)


def descriptors_and_threads() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


# ---------------------------------------------------------------- without a kernel


class Wire:
    """A fast path between two sockets: the test takes the roles of the kernel and of the library."""

    def __init__(self, source: TreeView, options: MountOptions = ON) -> None:
        self.kernel, device = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.kernel.settimeout(20)
        self.path = fastpath.FastPath(device.detach(), source, options)
        self.library = socket.socket(fileno=self.path.number)
        self.library.settimeout(20)

    def send(self, opcode: int, node: int = 1, body: bytes = b"", claimed: int | None = None) -> None:
        length = 40 + len(body) if claimed is None else claimed
        self.kernel.send(struct.pack("<IIQQIIII", length, opcode, 77, node, 0, 0, 0, 0) + body)

    def ask(self, opcode: int, node: int = 1, body: bytes = b"", claimed: int | None = None) -> tuple[int, bytes]:
        """Return the error and the rest of the reply."""
        self.send(opcode, node, body, claimed)
        return self.reply()

    def reply(self) -> tuple[int, bytes]:
        data = self.kernel.recv(1 << 17)
        length, error, unique = struct.unpack_from("<IiQ", data)
        assert (length, unique) == (len(data), 77)
        return -error, data[16:]

    def close(self) -> None:
        assert self.path.close()
        self.kernel.close()
        self.library.close()


@pytest.fixture
def wire(source: TreeView) -> Iterator[Wire]:
    wire = Wire(source)
    yield wire
    wire.close()


def read_in(offset: int, size: int) -> bytes:
    return struct.pack("<QQIIQII", 0, offset, size, 0, 0, 0, 0)


def test_hot_requests_are_answered_without_the_library(wire: Wire) -> None:
    assert wire.ask(LOOKUP, 1, b"file\0")[0] == 0
    assert wire.ask(READ, 2, read_in(3, 100)) == (0, b"tent")
    assert wire.ask(READDIR, 1, read_in(0, 4096))[1].count(b"file") == 1
    wire.library.settimeout(0)
    with pytest.raises(BlockingIOError):
        wire.library.recv(1)


def test_opening_to_read_need_not_be_asked_for_again_and_to_write_is_refused(wire: Wire) -> None:
    flags: Callable[[int], bytes] = lambda value: struct.pack("<II", value, 0)  # noqa: E731
    for refused in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC, os.O_WRONLY | os.O_APPEND):
        assert wire.ask(OPEN, 2, flags(refused)) == (errno.EROFS, b"")
    for allowed in (os.O_RDONLY, os.O_RDONLY | os.O_NONBLOCK | 0o100000):
        assert wire.ask(OPEN, 2, flags(allowed)) == (errno.ENOSYS, b"")


@pytest.mark.parametrize("opcode", [LOOKUP, READ, READDIR, OPEN])
def test_a_message_shorter_than_its_kind_is_an_error_and_not_the_librarys(opcode: int, wire: Wire) -> None:
    assert wire.ask(opcode, 1) == (errno.EIO, b"")
    assert wire.ask(opcode, 1, b"no end") == (errno.EIO, b"")


@pytest.mark.parametrize("claimed", [0, 39, 41, 48, 2**32 - 1])
@pytest.mark.parametrize("opcode", [GETATTR, STATFS, UNKNOWN])
def test_a_message_that_lies_about_its_length_is_an_error(claimed: int, opcode: int, wire: Wire) -> None:
    assert wire.ask(opcode, 1, claimed=claimed) == (errno.EIO, b"")


def test_what_is_shorter_than_a_header_is_dropped(wire: Wire) -> None:
    for length in (1, 16, 39):
        wire.kernel.send(bytes(length))
    wire.send(INTERRUPT)
    assert wire.ask(GETATTR)[0] == 0


def test_a_node_that_never_was_is_stale(wire: Wire) -> None:
    for node in (0, 4, 2**32 + 1, FIRST_ANSWER - 1):
        for opcode in (LOOKUP, GETATTR, OPEN, READ):
            assert wire.ask(opcode, node, b"name\0" + bytes(40)) == (errno.ESTALE, b"")


def test_questions_and_answers_are_the_librarys(wire: Wire) -> None:
    """A name that no file can have is a question, and the answers have inode numbers that no node has."""
    requests = [(LOOKUP, 1, b"n" * 256 + b"\0"), (GETATTR, FIRST_ANSWER, b""), (READ, 2**64 - 1, read_in(0, 10))]
    for opcode, node, body in [*requests, (GETXATTR, 2, bytes(8) + b"user.x\0")]:
        wire.send(opcode, node, body)
        assert struct.unpack_from("<IIQQ", wire.library.recv(1000)) == (40 + len(body), opcode, 77, node)
        wire.library.send(struct.pack("<IiQ", 20, 0, 77) + b"good")
        assert wire.reply() == (0, b"good")
    assert wire.ask(OPEN, FIRST_ANSWER, struct.pack("<II", os.O_RDONLY, 0)) == (errno.ENOSYS, b"")
    assert wire.ask(LOOKUP, 1, b"n" * 255 + b"\0")[0] == 0


@pytest.mark.parametrize("opcode", [STATFS, UNKNOWN])
def test_what_is_unknown_is_forwarded_and_answered_by_the_library(opcode: int, wire: Wire) -> None:
    wire.send(opcode, 1, b"anything")
    message = wire.library.recv(1000)
    assert struct.unpack_from("<II", message) == (48, opcode) and message[40:] == b"anything"
    wire.library.send(struct.pack("<IiQ", 20, 0, 77) + b"good")
    assert wire.reply() == (0, b"good")


def test_when_the_library_is_gone_its_requests_fail_and_others_do_not(wire: Wire) -> None:
    wire.library.close()
    assert wire.ask(STATFS) == (errno.EIO, b"")
    assert wire.ask(READ, 2, read_in(0, 7)) == (0, b"content")


def test_nothing_is_left_when_it_has_ended(source: TreeView) -> None:
    Wire(source).close()
    before = descriptors_and_threads()
    for _ in range(5):
        wire = Wire(source)
        wire.ask(READ, 2, read_in(0, 7))
        wire.close()
    assert descriptors_and_threads() == before


# ---------------------------------------------------------------- failing system calls


@pytest.fixture
def fault() -> Iterator[Callable[..., None]]:
    yield lib.fffs_fault_set
    lib.fffs_fault_set(lib.FFFS_FAULT_NONE, 0, 0, 0)


@pytest.mark.parametrize("nth", [1, 2], ids=["relay", "first"])
def test_a_thread_that_cannot_be_started_leaves_every_message_unread(
    nth: int, source: TreeView, fault: Callable[..., None]
) -> None:
    before = descriptors_and_threads()
    kernel, device = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    kernel.send(b"the first message")
    fault(lib.FFFS_FAULT_THREAD, nth, 1, 0)
    with pytest.raises(MountError, match="cannot be started: Resource temporarily unavailable"):
        fastpath.FastPath(device.fileno(), source, ON)
    assert device.recv(100) == b"the first message"
    kernel.close()
    device.close()
    assert descriptors_and_threads() == before


def test_fewer_threads_than_wanted_are_enough(source: TreeView, fault: Callable[..., None]) -> None:
    fault(lib.FFFS_FAULT_THREAD, 3, 1000, 0)
    wire = Wire(source, MountOptions(fastpath=True, threads=8))
    assert wire.path.stats()["threads"] == 1
    assert wire.ask(READ, 2, read_in(0, 7)) == (0, b"content")
    wire.close()


def test_every_allocation_may_fail_at_the_start(source: TreeView, fault: Callable[..., None]) -> None:
    Wire(source).close()  # makes what is allocated only once
    refused = 0
    for nth in range(1, 4):
        before = descriptors_and_threads()
        kernel, device = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fuse = device.detach()
        fault(lib.FFFS_FAULT_MEMORY, nth, 1000, 0)
        try:
            path = fastpath.FastPath(fuse, source, ON)
        except MountError as error:
            assert "Cannot allocate memory" in str(error)
            refused += 1
            os.close(fuse)
        else:
            path.close()
            os.close(path.number)
        fault(lib.FFFS_FAULT_NONE, 0, 0, 0)
        kernel.close()
        assert descriptors_and_threads() == before
    assert refused


def test_a_cold_read_is_done_by_who_got_it_when_no_thread_can_be_started(
    source: TreeView, tmp_path: Path, fault: Callable[..., None]
) -> None:
    large = os.urandom(3 << 20)
    with fffs.FileWriter(tmp_path / "r.ffr", 1) as writer:
        writer.write_one(large)  # without block checksums: hot threads do not verify so much
    with load_source([str(tmp_path / "r.ffr")]) as opened:
        cold = TreeView(opened.tree, opened.store)
        wire = Wire(cold)
        fault(lib.FFFS_FAULT_THREAD, 1, 1000, 0)
        assert wire.ask(READ, 2, read_in(1000, 5000)) == (0, large[1000:6000])
        assert wire.path.stats()["cold_reads"] == 1 and wire.path.stats()["cold_threads"] == 0
        wire.close()


# ---------------------------------------------------------------- mounts without it

SERVE = """
import json, os, sys
from fffs.mount import MountOptions
from fffs.mount.daemon.job import make_job
from fffs.mount.daemon.log import DaemonLog
from fffs.mount.daemon.session import serve
from fffs.native import lib

sources, mountpoint, log, options = sys.argv[1].split(":"), *sys.argv[2:]
DaemonLog(log)
{prelude}
serve(make_job(sources, mountpoint, MountOptions(log=log, **json.loads(options)), debug={debug}))
"""


@contextmanager
def served(tmp_path: Path, source: Path, prelude: str, debug: bool = False, **options: Any) -> Iterator[Daemon]:
    """Start a daemon with some code that runs before it mounts. End it after the block, if it still runs."""
    log = tmp_path / "served.log"
    code = SERVE.format(prelude=prelude, debug=debug)
    command = [sys.executable, "-c", code, str(source), str(tmp_path / "m"), str(log), json.dumps(options)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: is_mounted(tmp_path / "m") or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        daemon = Daemon(tmp_path / "m", log)
        yield daemon
        daemon.kill(signal.SIGTERM)
        assert process.wait(20) is not None
    finally:
        detach_all(tmp_path)
        process.kill()
        process.wait()


def without(daemon: Daemon) -> list[str]:
    """Return why the daemon does without the fast path, from its log."""
    return [line.partition("without the fast path: ")[2] for line in daemon.log().splitlines() if "without the" in line]


NO_THREADS = "lib.fffs_fault_set(lib.FFFS_FAULT_THREAD, 1, 10**9, 0)"
NO_MEMORY = """
from fffs.mount.daemon import fastpath
begin = fastpath.FastPath.__init__
def refuse(self, fuse, source, options):
    source.store.native
    lib.fffs_fault_set(lib.FFFS_FAULT_MEMORY, 1, 1, 0)
    begin(self, fuse, source, options)
fastpath.FastPath.__init__ = refuse
"""
# A seccomp filter as in containers: one call fails with EPERM, others are allowed.
NO_EVENTFD = """
import ctypes, platform, struct
number = {{"x86_64": 290, "aarch64": 19}}[platform.machine()]
rows = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *row) for row in rows))
program = struct.pack("<HxxxxxxQ", len(rows), ctypes.addressof(code))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.c_char_p(program)) == 0
"""


@pytest.mark.fuse
@pytest.mark.parametrize(
    ("prelude", "why"),
    [
        (NO_THREADS, "the native threads cannot be started: Resource temporarily unavailable"),
        (NO_MEMORY, "the native threads cannot be started: Cannot allocate memory"),
        pytest.param(
            NO_EVENTFD.replace("{{", "{").replace("}}", "}"),
            "the native threads cannot be started: Operation not permitted",
            marks=pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="numbers of system calls"),
        ),
    ],
    ids=["threads", "memory", "seccomp"],
)
def test_a_mount_works_without_what_the_system_refuses(prelude: str, why: str, packed: Path, tmp_path: Path) -> None:
    with served(tmp_path, packed, prelude) as daemon:
        assert (daemon.path / "file").read_text() == "content"
        assert sorted(os.listdir(daemon.path)) == ["file", "sub"]
        assert not counters_of(daemon.path)["fastpath"]
        assert without(daemon) == [why]
        assert "WARNING without" in daemon.log()


@pytest.mark.fuse
def test_a_mount_whose_requests_are_to_be_logged_does_without(packed: Path, tmp_path: Path) -> None:
    with served(tmp_path, packed, "", debug=True) as daemon:
        assert (daemon.path / "file").read_text() == "content"
        assert without(daemon) == ["every request is to be logged, and native threads do not log requests"]


@pytest.fixture
def remote(packed: Path, tmp_path: Path, mounts: Mounts) -> Path:
    """A packed folder on a file system that is not local, another mount."""
    (tmp_path / "outer").mkdir()
    packed.rename(tmp_path / "outer" / "inner.ffr")
    fffs.pack_folder(tmp_path / "outer", tmp_path / "outer.ffr")
    return mounts(tmp_path / "outer.ffr") / "inner.ffr"


@pytest.mark.fuse
def test_a_source_on_another_machine_is_read_without_unless_asked_for(remote: Path, mounts: Mounts) -> None:
    path = mounts(remote, fastpath=None)
    mounts.daemon.expect("without the fast path")
    assert without(mounts.daemon) == [
        f"{remote} is on a file system of type fuse.fffs; -o fastpath=on uses it nevertheless"
    ]
    assert (path / "file").read_text() == "content" and not counters_of(path)["fastpath"]
    umount(path)
    path = mounts(remote, fastpath=True)
    assert (path / "file").read_text() == "content" and counters_of(path)["fastpath"]
    umount(path)


@pytest.mark.fuse
def test_a_local_file_is_mounted_with_the_fast_path_by_default(packed: Path, tmp_path: Path) -> None:
    with served(tmp_path, packed, "") as daemon:
        assert counters_of(daemon.path)["fastpath"] and without(daemon) == []


def test_what_is_no_file_of_this_machine_does_without(source: TreeView, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fastpath.find_obstacle(source, ON, False) == ""
    monkeypatch.setattr(source.store.files[0].file, "descriptor", -1)
    assert fastpath.find_obstacle(source, ON, False).endswith("p.ffr is not a file of this machine")


# ---------------------------------------------------------------- the end


@contextmanager
def busy_readers(paths: list[Path], count: int = 4) -> Iterator[list[OSError]]:
    """Threads that read files repeatedly, past the kernel's cache, until a read fails. Yields the errors."""
    failures: list[OSError] = []
    contents = [path.read_bytes() for path in paths]

    def work() -> None:
        try:
            while True:
                for path, content in zip(paths, contents, strict=True):
                    fd = os.open(path, os.O_RDONLY)
                    try:
                        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                        assert read_all(fd) == content
                    finally:
                        with suppress(OSError):
                            os.close(fd)
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    yield failures
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a reader hangs"
    assert len(failures) == count


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A record file of 300 records."""
    with fffs.FileWriter(tmp_path / "r.ffr", 300) as writer:
        for k in range(300):
            writer.write_one(bytes([k % 256]) * 9000)
    return tmp_path / "r.ffr"


@pytest.mark.fuse
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_busy_readers_get_an_error_when_the_daemon_is_told_to_end(number: int, many: Path, mounts: Mounts) -> None:
    path = mounts(many)
    mounts.daemon.expect("in use, unmounting lazily")
    with busy_readers([path / f"{k:06}" for k in range(20)]) as failures:
        mounts.daemon.kill(number)
        assert mounts.daemon.wait()
    ends = {errno.ENOTCONN, errno.ECONNABORTED} | ({errno.ENOENT} if number == signal.SIGTERM else set())
    assert {error.errno for error in failures} <= ends
    if number == signal.SIGTERM:
        assert not path.exists()
    else:
        with pytest.raises(OSError) as caught:
            os.listdir(path)
        assert caught.value.errno == errno.ENOTCONN


CRASH = """
from fffs.mount.fs.operations import Operations
async def crash(self, ctx):
    raise BaseException("out of order")
Operations.statfs = crash
"""


@pytest.mark.fuse
@pytest.mark.parametrize("made", [False, True], ids=["own folder", "made folder"])
@pytest.mark.parametrize("on", [False, True], ids=["pyfuse3", "fastpath"])
def test_a_crash_of_pyfuse3_is_an_error_for_all_who_wait_and_leaves_a_dead_mount(
    on: bool, made: bool, many: Path, tmp_path: Path
) -> None:
    if not made:
        (tmp_path / "m").mkdir()
    with served(tmp_path, many, CRASH, fastpath=on) as daemon:
        with busy_readers([daemon.path / f"{k:06}" for k in range(20)], 2):
            with pytest.raises(OSError) as caught:
                os.statvfs(daemon.path)
            assert caught.value.errno in (errno.ECONNABORTED, errno.ENOTCONN, errno.EIO)
            assert daemon.wait()
        with pytest.raises(OSError) as caught:
            os.listdir(daemon.path)
        assert caught.value.errno == errno.ENOTCONN, "and not a folder that looks fine"
        assert run_fffs("umount", daemon.path) == ""
        assert daemon.path.exists() != made


@pytest.fixture
def stalled(many: Path, tmp_path: Path, mounts: Mounts) -> Iterator[Path]:
    """A mount of two sources; the disk of the first one, with 300 records, does not answer."""
    (tmp_path / "disk").mkdir()
    many.rename(tmp_path / "disk" / "r.ffr")
    fffs.pack_folder(tmp_path / "disk", tmp_path / "disk.ffr")
    slow = mounts(tmp_path / "disk.ffr", fastpath=False) / "r.ffr"
    with fffs.FileWriter(tmp_path / "good.ffr", 1) as writer:
        writer.write_one(b"from another disk")
    mounted = mounts(slow, tmp_path / "good.ffr")
    forget_pages(slow)
    mounts.daemons[0].kill(signal.SIGSTOP)
    yield mounted
    mounts.daemons[0].kill(signal.SIGCONT)
    if is_mounted(mounted):
        umount(mounted)


def forget_pages(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def read_or_error(path: Path) -> bytes | int | None:
    try:
        return path.read_bytes()
    except OSError as error:
        return error.errno


@pytest.mark.fuse
def test_a_disk_that_does_not_answer_keeps_only_its_own_readers_waiting(stalled: Path, mounts: Mounts) -> None:
    with ThreadPoolExecutor(250) as pool:  # more than the threads for one file
        waiting = [pool.submit(read_or_error, stalled / f"{k:06}") for k in range(250)]
        try:
            for _ in range(20):
                forget_pages(stalled / "000300")
                assert (stalled / "000300").read_bytes() == b"from another disk"
            assert len(os.listdir(stalled)) == 301
            assert counters_of(stalled)["reads"] >= 20
            assert not any(future.done() for future in waiting)
        finally:
            mounts.daemons[0].kill(signal.SIGCONT)
        assert [future.result(60) for future in waiting] == [bytes([k % 256]) * 9000 for k in range(250)]
    assert mounts.daemon.threads() < 150, "there is no thread for each who waits"


@pytest.mark.fuse
def test_files_on_one_disk_that_does_not_answer_share_its_threads(many: Path, tmp_path: Path, mounts: Mounts) -> None:
    """So that a union of many packs on it leaves threads for other disks."""
    (tmp_path / "disk").mkdir()
    for k in range(3):
        shutil.copy(many, tmp_path / "disk" / f"{k}.ffr")
    fffs.pack_folder(tmp_path / "disk", tmp_path / "disk.ffr")
    with fffs.FileWriter(tmp_path / "good.ffr", 1) as writer:
        writer.write_one(b"from another disk")
    slow = sorted(mounts(tmp_path / "disk.ffr", fastpath=False).iterdir())
    path = mounts(*slow, tmp_path / "good.ffr")
    before = mounts.daemon.threads()
    for file in slow:
        forget_pages(file)
    mounts.daemons[0].kill(signal.SIGSTOP)
    with ThreadPoolExecutor(100) as pool:
        waiting = [pool.submit(read_or_error, path / f"{k:06}") for k in range(0, 900, 9)]
        try:
            wait_until(lambda: mounts.daemon.threads() >= before + lib.FFFS_FAST_LANE)
            if mounts.fastpath:
                wait_until(lambda: counters_of(path)["reads_waiting"] == len(waiting) - lib.FFFS_FAST_LANE)
            assert (path / "000900").read_bytes() == b"from another disk"
            assert mounts.daemon.threads() < before + 2 * lib.FFFS_FAST_LANE
        finally:
            mounts.daemons[0].kill(signal.SIGCONT)
        assert {len(future.result(60)) for future in waiting} == {9000}


@pytest.mark.fuse
@pytest.mark.parametrize("mounts", [True], indirect=True, ids=["fastpath"])
def test_the_daemon_ends_although_a_disk_does_not_answer(stalled: Path, mounts: Mounts) -> None:
    mounts.daemon.expect("in use, unmounting lazily")
    with ThreadPoolExecutor(40) as pool:
        waiting = [pool.submit(read_or_error, stalled / f"{k:06}") for k in range(40)]
        wait_until(lambda: counters_of(stalled)["reads_waiting"] == 40 - lib.FFFS_FAST_LANE)
        mounts.daemon.kill(signal.SIGTERM)
        assert mounts.daemon.wait()
        assert {future.result(20) for future in waiting} <= {errno.ENOTCONN, errno.ECONNABORTED}
    assert not stalled.exists()


@pytest.mark.parametrize("option", [32, 1 << 20])
@pytest.mark.parametrize("largest", [1 << 20, 300_000, 8192])
def test_the_largest_reply_fits_into_a_packet(monkeypatch: pytest.MonkeyPatch, option: int, largest: int) -> None:
    """Tested as root, and as a user with smaller limits."""
    from inside import fastpath

    monkeypatch.setattr(fastpath, "_SO_SNDBUFFORCE", option)
    monkeypatch.setattr(fastpath, "LARGEST_READ", largest)
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, its:
        room = fastpath.make_room(its)
        assert 4096 <= room <= largest and room % 4096 in (0, largest % 4096)
        its.setblocking(False)
        assert its.send(bytes(16 + room)) == len(ours.recv(2 << 20)) == 16 + room
