"""A daemon answers and ends although a log, a disk or its parent blocks."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from mounting import Daemon, Mounts, is_mounted, run_fffs, umount_quietly, wait_until

import fffs
from fffs.errors import MountError

pytestmark = pytest.mark.fuse

BOTH = pytest.mark.parametrize("mounts", [False, True], indirect=True, ids=["pyfuse3", "fastpath"])


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A packed folder of 400 damaged files, and a good one."""
    (tmp_path / "folder").mkdir()
    for k in range(400):
        (tmp_path / "folder" / f"{k:03}").write_bytes(b"content %03d" % k)
    (tmp_path / "folder" / "good").write_bytes(b"good")
    path = tmp_path / "damaged.ffr"
    fffs.pack_folder(tmp_path / "folder", path)
    path.write_bytes(path.read_bytes().replace(b"content", b"cantent"))
    return path


@pytest.fixture
def full_pipe() -> Iterator[int]:
    """The write end of a full pipe without readers."""
    ours, its = os.pipe()
    fcntl.fcntl(its, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(its, False)
    while True:
        try:
            os.write(its, b"x")
        except BlockingIOError:
            break
    os.set_blocking(its, True)
    yield its
    os.close(its)
    os.close(ours)


@pytest.mark.parametrize("fastpath", ["on", "off"])
def test_a_log_that_nobody_reads_stops_nothing(damaged: Path, full_pipe: int, fastpath: str, tmp_path: Path) -> None:
    path = tmp_path / "mnt"
    command = [sys.executable, "-m", "fffs", "mount", "--foreground", "-o", f"fastpath={fastpath}", damaged, path]
    with subprocess.Popen(command, stderr=full_pipe) as process:
        try:
            wait_until(lambda: is_mounted(path))
            for k in range(400):
                with pytest.raises(OSError) as caught:
                    (path / f"{k:03}").read_bytes()
                assert caught.value.errno == errno.EIO
            for command in (["stat", "-f", path], ["cat", path / "good"]):
                subprocess.run(command, stdout=subprocess.DEVNULL, timeout=20, check=True)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()
            subprocess.run(["umount", "-l", path], stderr=subprocess.DEVNULL, check=False)
    assert not is_mounted(path)


@BOTH
def test_each_damaged_file_is_named_although_they_are_unmounted_at_once(damaged: Path, mounts: Mounts) -> None:
    path = mounts(damaged)
    mounts.daemon.expect("[0-9]{3}: .*damaged.ffr: record [0-9]+: ")
    mounts.daemon.expect("[48]00 reads failed, of 400 records")
    for k in range(400):
        with pytest.raises(OSError, match="Input/output"):
            (path / f"{k:03}").read_bytes()
    assert run_fffs("umount", path) == ""
    assert mounts.daemon.wait()
    named = re.findall(r"ERROR (\d{3}): .* record \d+: ", mounts.daemon.log())
    assert sorted(named) == [f"{k:03}" for k in range(400)]


def test_lines_that_a_log_does_not_take_in_time_are_counted() -> None:
    code = """
import logging, os, sys, time
from fffs.mount.daemon import log
log.ROOM = 5
ours, its = os.pipe()
os.dup2(its, 2)
log.DaemonLog()
import fcntl; fcntl.fcntl(its, fcntl.F_SETPIPE_SZ, 4096)
logging.error("x" * 5000)
time.sleep(0.5)
for k in range(20):
    logging.error("line %d", k)
print(os.read(ours, 5010).decode().strip("x\\n"))
assert log.write_out()
print(os.read(ours, 5000).decode())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "fffs: line 0\n" in done.stdout
    assert "15 lines are missing here" in done.stdout


def test_a_system_log_that_accepts_no_connection_does_not_stop_a_daemon(tmp_path: Path) -> None:
    code = """
import logging, os, socket, sys
from fffs.mount.daemon import log
output = os.dup(1)  # leave_terminal replaces the standard streams
log.SYSTEM_LOG, log.PATIENCE = sys.argv[1], 0.5
server, waiting = socket.socket(socket.AF_UNIX), []
server.bind(sys.argv[1])
server.listen(0)
while True:
    waiting.append(socket.socket(socket.AF_UNIX))
    waiting[-1].setblocking(False)
    try:
        waiting[-1].connect(sys.argv[1])
    except BlockingIOError:
        break
ours = log.DaemonLog()
print("begun", flush=True)
ours.leave_terminal()
logging.error("a line")
os.write(output, b"written" if log.write_out() else b"waiting")
sys.exit(3)
"""
    command = [sys.executable, "-c", code, tmp_path / "log"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "begun\nwaiting"), "1: its log accepts no lines at the end"


def test_a_daemon_that_may_start_no_thread_says_so_in_one_line(tmp_path: Path) -> None:
    code = """
import os, pickle, resource, sys
from fffs.base.descriptors import memory_file, pipe
from fffs.mount import MountOptions
from fffs.mount.__main__ import main
from fffs.mount.daemon.job import make_job

job, (ours, its) = memory_file("job"), pipe()
os.write(job, make_job(*sys.argv[1:], MountOptions()).encode().encode())
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
if os.getuid() == 0:  # root may start threads beyond the limit, which counts all processes of a user
    os.setgroups([])
    os.setgid(54321)
    os.setuid(54321)
sys.argv[1:] = ["mnt", f"--job={job}", f"--report={its}"]
code = main()
print(str(pickle.loads(os.read(ours, 65536))), code)
"""
    command = [sys.executable, "-c", code, tmp_path / "x.ffr", tmp_path / "mnt"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    why = "the system refuses to start a thread; allow this user or container more of them (ulimit -u)"
    assert done.stderr == ""
    assert done.stdout == f"{tmp_path}/mnt: cannot serve it: {why} {MountError.exit_code}\n"


@pytest.mark.parametrize(
    "what", ["session.Operations", "place._device", "place.duplicate", "session.pyfuse3.init", "session.trio.run"]
)
def test_a_daemon_without_memory_says_so_in_one_line_and_leaves_no_mount(
    what: str, damaged: Path, tmp_path: Path
) -> None:
    code = """
import os, pickle, sys
from fffs.base.descriptors import memory_file, pipe
from fffs.mount import MountOptions
from fffs.mount.__main__ import main
from fffs.mount.daemon import session
from fffs.mount.daemon.job import make_job
from fffs.mount.system import place

def fail(*arguments):
    raise MemoryError

job, (ours, its) = memory_file("job"), pipe()
os.write(job, make_job(*sys.argv[1:3], MountOptions()).encode().encode())
owner, _, name = sys.argv[3].rpartition(".")
setattr(eval(owner), name, fail)
sys.argv[1:] = [sys.argv[2], f"--job={job}", f"--report={its}"]
code = main()
print(str(pickle.loads(os.read(ours, 65536))), code)
"""
    command = [sys.executable, "-c", code, damaged, tmp_path / "mnt", what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    left = is_mounted(tmp_path / "mnt")
    umount_quietly(tmp_path / "mnt")
    assert done.stderr == ""
    assert done.stdout == f"{tmp_path}/mnt: cannot serve it: not enough memory {MountError.exit_code}\n"
    assert not left and not (tmp_path / "mnt").exists()


def test_a_log_file_that_was_renamed_is_opened_again(damaged: Path, tmp_path: Path) -> None:
    """Also for what is written to the standard streams, as by libfuse and an interpreter that crashes."""
    log, old, path = tmp_path / "log", tmp_path / "log.1", tmp_path / "mnt"
    assert run_fffs("mount", "-o", f"log={log}", damaged, path) == ""
    daemon = Daemon(path, log)
    for number in range(3):
        with pytest.raises(OSError):
            (path / f"{number:03}").read_bytes()
        line = f"ERROR {number:03}"
        wait_until(lambda line=line: log.exists() and line in log.read_text())  # type: ignore[misc]
        streams = [os.stat(f"/proc/{daemon.pid}/fd/{fd}") for fd in (1, 2)]
        assert all(os.path.samestat(stream, log.stat()) for stream in streams)
        log.rename(old)
        if number == 0:
            log.touch()  # as logrotate does if it is to create the next file
    assert run_fffs("umount", path) == ""
    assert daemon.wait()


def test_a_log_file_that_cannot_be_opened_again_is_kept(tmp_path: Path) -> None:
    code = """
import logging, os, pathlib, shutil, sys
from fffs.mount.daemon import log
log.DaemonLog(sys.argv[1] + "/log", quiet=True)
os.link(sys.argv[1] + "/log", sys.argv[1] + ".kept")
logging.info("one")
assert log.write_out()
shutil.rmtree(sys.argv[1])
logging.info("two")
assert log.write_out()
print(pathlib.Path(sys.argv[1] + ".kept").read_text())
"""
    (tmp_path / "folder").mkdir()
    command = [sys.executable, "-c", code, tmp_path / "folder"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert re.fullmatch(r"\S+ \S+ INFO one\n\S+ \S+ INFO two\n\n", done.stdout)


@pytest.mark.parametrize("planted", ["link", "dangling", "hard", "above", "fifo"])
def test_a_log_is_not_led_elsewhere_by_those_who_may_write_to_its_folder(
    damaged: Path, tmp_path: Path, planted: str
) -> None:
    """Lines have names of the source, so that they could become the text of any file of root's."""
    other, folder, path = tmp_path / "other", tmp_path / "logs", tmp_path / "mnt"
    for made in (other, folder):
        made.mkdir()
    log, moved, victim = folder / "log", tmp_path / "moved", other / "log"
    victim.write_text("of root")
    assert run_fffs("mount", "-o", f"log={log}", damaged, path) == ""
    daemon = Daemon(path, moved)
    if planted == "above":
        folder.rename(tmp_path / "logs.old")
        os.rename(tmp_path / "logs.old" / "log", moved)
        folder.symlink_to(other)
    else:
        log.rename(moved)
        if planted == "fifo":
            os.mkfifo(log)
        elif planted == "hard":
            os.link(victim, log)
        else:
            log.symlink_to(victim if planted == "link" else other / "new")
    with pytest.raises(OSError):
        (path / "000").read_bytes()
    written = tmp_path / "logs.old" / "log" if planted == "above" else moved
    wait_until(lambda: written.exists() and "ERROR 000" in written.read_text())
    assert run_fffs("umount", path) == ""
    daemon.wait()
    assert victim.read_text() == "of root" and os.listdir(other) == ["log"]


def test_a_daemon_without_a_log_says_so_before_it_leaves_the_terminal(tmp_path: Path) -> None:
    code = "import sys; from fffs.mount.daemon import log; log.SYSTEM_LOG = sys.argv[1]; "
    command = [sys.executable, "-c", code + "log.DaemonLog(sys.argv[2]).leave_terminal()", tmp_path / "none"]
    for file, shown in (
        ("", f"fffs: no errors will be logged: there is no system log ({tmp_path}/none); use -o log=FILE\n"),
        (f"{tmp_path}/log", ""),
    ):
        done = subprocess.run([*command, file], capture_output=True, text=True, timeout=60, check=True)
        assert done.stderr == shown


def test_a_daemon_hears_signals_that_its_parent_blocks(damaged: Path, tmp_path: Path) -> None:
    code = (
        "import signal, sys, fffs.mount\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP, signal.SIGINT})\n"
        "fffs.mount.mount(sys.argv[1], sys.argv[2])\n"
    )
    subprocess.run([sys.executable, "-c", code, damaged, tmp_path / "mnt"], timeout=60, check=True)
    daemon = Daemon(tmp_path / "mnt", tmp_path / "no log")
    daemon.kill(signal.SIGTERM)
    assert daemon.wait(20)
    assert not is_mounted(tmp_path / "mnt")


# ---------------------------------------------------------------- a stalled disk


@pytest.fixture
def slow(tmp_path: Path, mounts: Mounts) -> Iterator[Path]:
    """A packed file of 24 MiB, damaged near its end, on a disk of which only the last 4 MiB of the pack are cached."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "large").write_bytes(os.urandom(24 << 20))
    (tmp_path / "disk").mkdir()
    pack = tmp_path / "disk" / "p.ffr"
    fffs.pack_folder(tmp_path / "folder", pack)
    with pack.open("r+b") as file:
        file.seek((23 << 20) + (1 << 19))
        file.write(b"damaged")
    fffs.pack_folder(tmp_path / "disk", tmp_path / "disk.ffr")
    lower = mounts(tmp_path / "disk.ffr", fastpath=False)
    upper = mounts(lower / "p.ffr")
    fd = os.open(lower / "p.ffr", os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.pread(fd, 4 << 20, os.fstat(fd).st_size - (4 << 20))
    os.close(fd)
    mounts.daemons[0].kill(signal.SIGSTOP)
    yield upper / "large"
    mounts.daemons[0].kill(signal.SIGCONT)


@pytest.mark.parametrize("mounts", [True], indirect=True, ids=["fastpath"])
def test_unmounting_ends_a_daemon_that_explains_a_damaged_record(slow: Path, mounts: Mounts) -> None:
    mounts.daemon.expect("large: .*record 0")
    mounts.daemon.expect("reads failed, of (more than 0|1) records")
    with open(slow, "rb", buffering=0) as file, pytest.raises(OSError) as caught:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(file.fileno(), 4096, 23 << 20)
    assert caught.value.errno == errno.EIO
    began = time.monotonic()
    assert run_fffs("umount", slow.parent) == ""
    assert time.monotonic() - began < 9
    assert mounts.daemon.wait(20)


@BOTH
def test_unmounting_ends_a_daemon_of_which_a_read_waits_for_its_disk(slow: Path, mounts: Mounts) -> None:
    with subprocess.Popen(["head", "-c", "4096", slow], stdout=subprocess.DEVNULL) as reader:
        time.sleep(1)
        assert reader.poll() is None
        reader.kill()
    began = time.monotonic()
    assert run_fffs("umount", slow.parent) == ""
    assert time.monotonic() - began < 9
    assert mounts.daemon.wait(20)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_a_log_on_a_full_disk_is_one_line_and_says_later_what_is_missing(tmp_path: Path, damaged: Path) -> None:
    disk, mounted = tmp_path / "disk", tmp_path / "mnt"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=True)
    try:
        fill = disk / "fill"
        with suppress(OSError), fill.open("wb", 0) as file:
            while True:
                file.write(bytes(4096))
        command = [sys.executable, "-m", "fffs", "mount", "-o", f"log={disk / 'log'}", damaged, mounted]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        try:
            assert done.stderr == f"fffs: {disk / 'log'}: cannot be written: [Errno 28] No space left on device\n"
            for _ in range(2):
                with pytest.raises(OSError, match="Input/output error"):
                    (mounted / "000").read_bytes()
                fill.unlink(missing_ok=True)
        finally:
            subprocess.run([sys.executable, "-m", "fffs", "umount", mounted], timeout=60, check=True)
        wait_until(lambda: "unmounted" in (disk / "log").read_text())
        assert "lines are missing here: they could not be written" in (disk / "log").read_text()
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
