"""The life of a mount: it begins, ends in every way, and leaves nothing behind."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import resource
import select
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from builders import pack_small_folder, record_file
from inside import MountPoint, background, is_alive, mount_at, mount_fusermount, mount_kernel, refuse_mounted
from mounting import (
    Daemon,
    Mounts,
    daemon_of,
    detach_all,
    gone_afterwards,
    in_namespace,
    is_mounted,
    libc,
    mounts_below,
    run_fffs,
    wait_until,
)

import fffs
from fffs.errors import DeadMountError, FormatError, MountError, SourceNotFoundError, UsageError
from fffs.mount import MountOptions, mounted, umount

pytestmark = pytest.mark.fuse

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A packed folder with one small file."""
    return pack_small_folder(tmp_path)


# ---------------------------------------------------------------- mounting


def test_the_mount_answers_when_the_command_returns(source: Path, tmp_path: Path, mounts: Mounts) -> None:
    assert run_fffs("mount", source, tmp_path / "m", "-o", f"log={tmp_path}/log") == ""
    assert (tmp_path / "m" / "file").read_text() == "content"
    mounts.daemons.append(Daemon(tmp_path / "m", tmp_path / "log"))
    assert run_fffs("umount", tmp_path / "m") == ""
    assert mounts.daemon.wait(0), "umount returns when the daemon is gone"
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-", "<&-"])
@pytest.mark.parametrize("program", [["fffs", "mount"], ["mount.fffs"]], ids=" ".join)
def test_mounting_with_closed_streams(
    program: list[str], closed: str, source: Path, tmp_path: Path, mounts: Mounts
) -> None:
    """The caller does not wait for the end of a pipe that the daemon has as a standard stream."""
    command = [Path(sys.executable).with_name(program[0]), *program[1:], source, tmp_path / "m"]
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *command, "-o", f"log={tmp_path}/log"]
    assert subprocess.run(shell, timeout=60, check=False).returncode == 0
    mounts.daemons.append(Daemon(tmp_path / "m", tmp_path / "log"))
    assert {os.readlink(f"/proc/{mounts.daemon.pid}/fd/{fd}") for fd in range(3)} == {"/dev/null", f"{tmp_path}/log"}
    umount(tmp_path / "m")
    assert mounts.daemon.wait(0)


def test_what_the_tables_of_mounts_show(source: Path, mounts: Mounts) -> None:
    path = mounts(source)
    columns = subprocess.check_output(["findmnt", "-nro", "SOURCE,FSTYPE,OPTIONS", path], text=True).split()
    assert columns[:2] == [str(source), "fuse.fffs"]
    assert {"ro", "nosuid", "nodev", "default_permissions"} <= set(columns[2].split(","))


@as_root
def test_large_files_are_read_ahead_in_large_pieces(source: Path, mounts: Mounts) -> None:
    mount = mount_at(str(mounts(source)))
    assert mount is not None
    setting = Path(f"/sys/class/bdi/{mount.device}/read_ahead_kb")
    if not os.access(setting, os.W_OK):
        pytest.skip("/sys is read-only here")
    assert int(setting.read_text()) == 1024


def test_relative_paths(source: Path, tmp_path: Path, mounts: Mounts) -> None:
    run_fffs("mount", "p.ffr", "rel/m", "-o", "log=rel.log,xattr", cwd=tmp_path)
    mounts.daemons.append(Daemon(tmp_path / "rel" / "m", tmp_path / "rel.log"))
    assert os.getxattr(tmp_path / "rel" / "m", "user.fffs.source") == os.fsencode(source)
    run_fffs("umount", "rel/m", cwd=tmp_path)
    assert not (tmp_path / "rel").exists()


def test_more_sources_than_an_argument_can_name(source: Path, tmp_path: Path, mounts: Mounts) -> None:
    """The arguments of the daemon, which every user can read, contain the mount point and no sources."""
    folder = tmp_path.joinpath(*["deep" * 60] * 6)
    folder.mkdir(parents=True)
    with fffs.FileWriter(folder / "r.ffr", 1) as writer:
        writer.write_one(b"plain")
    sources = [folder / "r.ffr"] * 100
    assert sum(len(bytes(path)) for path in sources) > 1 << 17
    path = mounts(*sources)
    assert len(os.listdir(path)) == len(sources)
    arguments = Path(f"/proc/{mounts.daemon.pid}/cmdline").read_bytes()
    assert bytes(path) in arguments and b"r.ffr" not in arguments


def test_mount_points_that_were_made_are_removed_and_others_kept(source: Path, tmp_path: Path, mounts: Mounts) -> None:
    (tmp_path / "there").mkdir()
    for path in (tmp_path / "there", tmp_path / "not" / "yet" / "there"):
        umount(mounts(source, at=path))
    assert (tmp_path / "there").is_dir()
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize(
    "name", ["with space", "tab\tand\nnewline", "back\\slash", "comma,equals=", "\udcff\udcfe", "ü"]
)
def test_strange_names(name: str, source: Path, tmp_path: Path, mounts: Mounts) -> None:
    (tmp_path / name).mkdir()
    strange = source.rename(tmp_path / name / f"{name}.ffr")
    path = mounts(strange, at=tmp_path / name / "mount")
    found = mount_at(str(path))
    assert found is not None and found.source == str(strange)
    assert (path / "file").read_text() == "content"
    umount(path)
    assert mounts.daemon.wait(0)


@as_root
@pytest.mark.parametrize("name", ["c\rr", "\x0b\x0c\x1c\x1d\x1e\x85\u2028", "#"])
def test_names_that_end_lines_elsewhere(name: str, source: Path, mounts: Mounts) -> None:
    def work(folder: Path) -> None:
        strange = copy_of(source, folder, f"{name}.ffr")
        path = mounts(strange, at=folder / f"mount {name}")
        found = mount_at(str(path))
        assert found is not None and found.source == str(strange)
        assert (path / "file").read_text() == "content"
        run_fffs("umount", path)
        assert mounts.daemon.wait(0)

    in_namespace(work)  # so that a failure does not disturb other mounts


@as_root
def test_no_name_in_the_table_of_mounts_disturbs_the_mounts_of_others(source: Path, mounts: Mounts) -> None:
    def work(folder: Path) -> None:
        path, stranger = mounts(source, at=folder / "m"), folder / "stranger"
        stranger.mkdir()
        name = b"a\rb\x85c\x0bd\x1ce\xffe"
        assert libc.mount(name, bytes(stranger), b"tmpfs", ctypes.c_ulong(0), None) == 0
        # The daemon reads the table again; its reaction shows that it parsed the table.
        mounts.daemon.expect("remounted as writable by another process: it is read-only again")
        assert libc.mount(None, bytes(path), None, ctypes.c_ulong(32), None) == 0
        wait_until(lambda: "read-only again" in mounts.daemon.log())
        other = mounts(source, at=folder / "another")
        assert (other / "file").read_text() == (path / "file").read_text()
        for mounted_here in (other, path):
            run_fffs("umount", mounted_here)
        assert mounts.daemon.wait(0)

    in_namespace(work)


def test_through_a_symbolic_link(source: Path, tmp_path: Path, mounts: Mounts) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    run_fffs("mount", source, tmp_path / "link", "-o", f"log={tmp_path}/log")
    mounts.daemons.append(Daemon(tmp_path / "real", tmp_path / "log"))
    umount(tmp_path / "link")
    assert not is_mounted(tmp_path / "real")


def test_a_folder_that_is_not_empty(source: Path, tmp_path: Path, mounts: Mounts) -> None:
    with pytest.raises(MountError, match=r"not empty.*nonempty"):
        mounts(source, at=tmp_path / "folder")
    path = mounts(source, at=tmp_path / "folder", nonempty=True)
    assert mounts.daemon.pid != os.getpid()
    umount(path)
    assert (path / "file").read_text() == "content"


def test_what_cannot_be_mounted_on(source: Path, tmp_path: Path, mounts: Mounts) -> None:
    (tmp_path / "a file").touch()
    with pytest.raises(MountError, match="not a folder"):
        mounts(source, at=tmp_path / "a file")
    with pytest.raises(MountError, match="not a folder"):
        mounts(source, at=tmp_path / "a file" / "below")
    with pytest.raises(MountError, match="cannot create the mount point"):
        mounts(source, at=Path("/proc/fffs"))
    for needed in ("/proc", "/sys", "/sys/class", "/dev"):
        with pytest.raises(MountError, match=r"would hide .*, which fffs needs"):
            MountPoint(needed, nonempty=True)  # directly: a daemon there would wait for itself
    for other in ("/", "/dev/shm", "/sys/fs"):
        MountPoint(other, nonempty=True).remove()
    path = mounts(source)
    with pytest.raises(MountError, match=r"p\.ffr is mounted there; unmount it first"):
        mounts(source, at=path)


@pytest.mark.parametrize("arguments", [[], ["-f"]], ids=["background", "foreground"])
def test_a_source_that_cannot_be_mounted(arguments: list[str], tmp_path: Path, source: Path) -> None:
    (tmp_path / "garbage").write_bytes(os.urandom(5000))
    (tmp_path / "zeros").write_bytes(bytes(5000))
    cases = {"nothing": SourceNotFoundError, "garbage": FormatError, "zeros": FormatError}
    for name, error in cases.items():
        text = run_fffs("mount", *arguments, tmp_path / name, tmp_path / "a" / "m", code=error.exit_code)
        assert text.count("\n") == 1 and str(tmp_path / name) in text
    text = run_fffs("mount", *arguments, "--suffix", ".x", source, tmp_path / "a" / "m", code=UsageError.exit_code)
    assert "--suffix" in text
    assert not (tmp_path / "a").exists() and not mounts_below(tmp_path)


def test_a_log_that_cannot_be_written(source: Path, tmp_path: Path) -> None:
    text = run_fffs("mount", source, tmp_path / "m", "-o", f"log={tmp_path}/no/log", code=7)
    assert text.count("\n") == 1 and "no/log" in text
    os.mkfifo(tmp_path / "fifo")
    text = run_fffs("mount", source, tmp_path / "m", "-o", f"log={tmp_path}/fifo", code=7)
    assert text.count("\n") == 1 and "/fifo" in text, "nothing reads it"


@pytest.mark.parametrize(
    "log", ["a.ffr", "./a.ffr", "link", "hard", "set/x.ffr", "a.ffr.fffs-crc", "rows/a.bag", "rows/a.idx"]
)
def test_a_log_that_would_damage_a_source_is_refused(tmp_path: Path, log: str) -> None:
    (tmp_path / "set").mkdir()
    for name in ("a.ffr", "set/w.ffr", "set/x.ffr"):
        (tmp_path / name).write_bytes(record_file([b"one", b"two"]))
    with fffs.granular.DatasetWriter(tmp_path / "rows", {"a": "bytes"}, layout="v3") as writer:
        writer.append({"a": b"one"})
    os.symlink("a.ffr", tmp_path / "link")
    os.link(tmp_path / "a.ffr", tmp_path / "hard")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    source = tmp_path / (os.path.dirname(log).strip(".") or "a.ffr")
    text = run_fffs("mount", source, tmp_path / "m", "-o", f"log={tmp_path}/{log}", code=2)
    assert text.count("\n") == 1 and text.endswith("; name another file\n") and log.strip("./") in text
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert not (tmp_path / "m").exists()


def test_what_mount_8_calls(source: Path, tmp_path: Path, mounts: Mounts) -> None:
    (tmp_path / "m").mkdir()
    options = f"rw,noatime,user=me,x-thing,log={tmp_path}/log"
    assert fffs.mount.helper([str(source), str(tmp_path / "m"), "-n", "-o", options]) == 0
    mounts.daemons.append(Daemon(tmp_path / "m", tmp_path / "log"))
    assert (tmp_path / "m" / "file").read_text() == "content"


# ---------------------------------------------------------------- unmounting


@pytest.mark.parametrize("tool", [["umount"], ["fusermount3", "-u"]])
def test_other_tools_unmount_too(tool: list[str], source: Path, mounts: Mounts) -> None:
    path = mounts(source)
    subprocess.run([*tool, path], check=True)
    assert mounts.daemon.wait()
    wait_until(lambda: not path.exists())


def test_unmounting_what_is_in_use(source: Path, mounts: Mounts) -> None:
    path = mounts(source)
    with (path / "file").open() as file:
        text = run_fffs("umount", path, code=MountError.exit_code)
        assert f"fffs umount --lazy {path}" in text and text.count("\n") == 1
        assert is_mounted(path)
        umount(path, lazy=True)
        assert not is_mounted(path)
        assert file.read() == "content", "what is open stays readable"
        assert not mounts.daemon.wait(0.1)
    assert mounts.daemon.wait()
    assert not path.exists()


def test_unmounting_lazily_what_is_not_in_use(source: Path, mounts: Mounts) -> None:
    path = mounts(source)
    umount(path, lazy=True)
    assert mounts.daemon.wait(0)


def test_unmounting_what_is_not_mounted(tmp_path: Path) -> None:
    with pytest.raises(MountError, match="nothing is mounted"):
        umount(tmp_path)
    with pytest.raises(MountError, match="no such folder"):
        umount(tmp_path / "nothing")
    with pytest.raises(MountError, match="not a mount of fffs"):
        umount("/proc")


@as_root
def test_unmounting_when_the_daemon_does_not_answer(
    source: Path, mounts: Mounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fffs.mount.system.unmount.ASK_SECONDS", 0.2)
    path = mounts(source)
    mounts.daemon.kill(signal.SIGSTOP)
    try:
        with pytest.raises(MountError, match=r"does not answer.*--lazy"):
            umount(path)
        umount(path, lazy=True)
        assert not is_mounted(path)
    finally:
        mounts.daemon.kill(signal.SIGCONT)
    assert mounts.daemon.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_unmounts(number: int, source: Path, mounts: Mounts) -> None:
    path = mounts(source)
    mounts.daemon.kill(number)
    assert mounts.daemon.wait()
    assert not is_mounted(path) and not path.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_unmounts_in_the_foreground_with_files_open(number: int, source: Path, tmp_path: Path) -> None:
    path = tmp_path / "m"
    command = [sys.executable, "-m", "fffs", "mount", "-f", source, path]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == f"fffs: {path}: mounted {source}\n"
        with (path / "file").open() as file, gone_afterwards(file):
            assert file.read() == "content"
            process.send_signal(number)
            text = process.communicate(timeout=60)[1]
        assert process.returncode == 0
        assert not is_mounted(path) and not path.exists()
        assert f"fffs: {path}: unmounted" in text
    finally:
        detach_all(tmp_path)
        process.kill()
        process.wait()


def ignores(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = re.search(r"^SigIgn:\s*([0-9a-f]+)$", status, re.MULTILINE)
    assert ignored is not None
    return bool(int(ignored[1], 16) & 1 << number - 1)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_is_ignored_in_the_foreground_stays_ignored(number: int, source: Path, tmp_path: Path) -> None:
    """As by nohup(1), and by a shell that starts a program with ``&``."""
    path = tmp_path / "m"
    program = (
        f"import os, signal, sys; signal.signal({int(number)}, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    command = [sys.executable, "-c", program, sys.executable, "-m", "fffs", "mount", "-f", source, path]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == f"fffs: {path}: mounted {source}\n"
            assert ignores(process.pid, number)
            process.send_signal(number)
            process.send_signal(signal.SIGTERM)
            assert process.communicate(timeout=60)[1] == f"fffs: {path}: SIGTERM\nfffs: {path}: unmounted\n"
            assert process.returncode == 0
        finally:
            detach_all(tmp_path)
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_is_ignored_ends_a_daemon_in_the_background(number: int, source: Path, mounts: Mounts) -> None:
    previous = signal.signal(number, signal.SIG_IGN)
    try:
        path = mounts(source)
    finally:
        signal.signal(number, previous)
    mounts.daemon.kill(number)
    assert mounts.daemon.wait()
    assert not is_mounted(path)


def test_signals_in_quick_succession_are_as_good_as_one(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "m"
    process = subprocess.Popen([sys.executable, "-m", "fffs", "mount", "-f", source, path], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: is_mounted(path))
        for _ in range(5):  # such as those of a terminal and a supervisor together
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert not is_mounted(path) and not path.exists()
    finally:
        detach_all(tmp_path)
        process.kill()
        process.wait()


def test_signals_until_the_very_end_are_no_error(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "m"
    for _ in range(5):
        command = [sys.executable, "-m", "fffs", "mount", "-f", source, path]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        try:
            wait_until(lambda: is_mounted(path))
            while process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.send_signal(signal.SIGINT)
            text = process.stderr.read()
            assert "Exception" not in text and "Traceback" not in text, text
            assert process.returncode == 0 and not is_mounted(path) and not path.exists()
        finally:
            detach_all(tmp_path)
            process.kill()
            process.wait()
            process.stderr.close()


SILENT = """
import logging, sys, trio
from fffs.mount.daemon import session
from fffs.mount.daemon.job import make_job
from fffs.mount.options import MountOptions

async def getattr(self, inode, ctx):
    print("asked", flush=True)
    await trio.sleep_forever()

logging.basicConfig(stream=sys.stdout, format="%(message)s")
session.Operations.getattr = getattr
session.serve(make_job(sys.argv[1], sys.argv[2], MountOptions(fastpath=False)), lambda: print("ready", flush=True))
"""


@contextmanager
def silent_daemon(source: Path, path: Path) -> Iterator[subprocess.Popen[str]]:
    """A daemon that never answers requests for attributes of its files."""
    process = subprocess.Popen([sys.executable, "-c", SILENT, source, path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=60)
        detach_all(path.parent)


def test_a_daemon_can_be_killed_at_any_moment(source: Path, tmp_path: Path) -> None:
    """It never waits for replies that only it could send; otherwise neither it nor its callers could end."""
    with silent_daemon(source, tmp_path / "m") as daemon:
        waits = subprocess.Popen(["stat", tmp_path / "m"], stderr=subprocess.PIPE, text=True, env={"LC_ALL": "C"})
        assert daemon.stdout is not None and daemon.stdout.readline() == "asked\n"
        daemon.kill()
        assert daemon.wait(20) == -signal.SIGKILL
        assert "connection abort" in waits.communicate(timeout=60)[1]


UNREPORTED = """
import errno, os, sys
from fffs.mount.daemon import session
from fffs.mount.daemon.job import make_job
from fffs.mount.options import MountOptions

def ready():
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

session.serve(make_job(sys.argv[1], sys.argv[2], MountOptions()), ready)
"""


def test_a_daemon_that_cannot_say_that_it_is_ready_unmounts(source: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", UNREPORTED, source, tmp_path / "m"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert f"MountError: {tmp_path}/m: Too many open files" in done.stderr
    assert not is_mounted(tmp_path / "m")
    assert not (tmp_path / "m").exists()


@as_root
def test_it_stays_read_only_without_asking_itself(source: Path, tmp_path: Path) -> None:
    with silent_daemon(source, tmp_path / "m") as daemon:
        remount, path = 32, os.fsencode(tmp_path / "m")
        assert ctypes.CDLL(None).mount(None, path, None, ctypes.c_ulong(remount), None) == 0
        assert daemon.stdout is not None and "read-only again" in daemon.stdout.readline()


def test_a_killed_daemon_is_recognised_and_cleaned_up(source: Path, mounts: Mounts) -> None:
    path = mounts(source)
    with (path / "file").open("rb", 0) as file, gone_afterwards(file):
        mounts.daemon.kill()
        assert mounts.daemon.wait()
        with pytest.raises(OSError) as caught:
            os.listdir(path)
        assert caught.value.errno == errno.ENOTCONN, "and not an empty folder that looks fine"
        with pytest.raises(DeadMountError, match=f"fffs umount {path}"):
            mounts(source, at=path)
        text = run_fffs("mount", "-f", source, path, code=DeadMountError.exit_code)
        assert text.count("\n") == 1 and f"fffs umount {path}" in text
        assert run_fffs("umount", path) == ""  # although a file is open in it
        assert file.fileno() >= 0
    assert not path.exists(), "the folder was made for the mount"
    assert (mounts(source, at=path) / "file").read_text() == "content"


def test_mounted_over_by_somebody_else(source: Path, tmp_path: Path, mounts: Mounts) -> None:
    """At its end, the daemon must unmount only its own mount."""
    path = mounts(source)
    first = mounts.daemon
    os.rename(source, tmp_path / "q.ffr")
    umount(path)
    assert first.wait(0)
    mounts(tmp_path / "q.ffr", at=path)
    first.kill(signal.SIGTERM)
    assert is_mounted(path)


@as_root
def test_mounting_over_a_daemon_that_is_stopped_is_refused(source: Path, mounts: Mounts) -> None:
    path = mounts(source)
    mounts.daemon.kill(signal.SIGSTOP)
    try:
        text = run_fffs("mount", source, path, code=MountError.exit_code)
        assert text == f"fffs: {path}: {source} is mounted there; unmount it first: fffs umount {path}\n"
    finally:
        mounts.daemon.kill(signal.SIGCONT)


def test_mounting_over_a_strange_mount_that_does_not_answer_is_refused(
    source: Path, mounts: Mounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = mounts(source)
    found = mount_at(str(path))
    assert found is not None
    monkeypatch.setattr("fffs.mount.system.mountpoint.mount_at", lambda *_: replace(found, type="fuse.stuck"))
    monkeypatch.setattr("fffs.mount.system.mountpoint.ANSWER_SECONDS", 0.1)
    mounts.daemon.kill(signal.SIGSTOP)
    try:
        with pytest.raises(MountError, match=r"does not answer \(fuse.stuck\); unmount it: umount -l"):
            refuse_mounted(str(path))
        mounts.daemon.kill()
        wait_until(lambda: not is_alive(str(path)))
        with pytest.raises(MountError, match=r"does not answer \(fuse.stuck\); unmount it: umount -l"):
            refuse_mounted(str(path))
    finally:
        mounts.daemon.kill(signal.SIGCONT)


def test_a_daemon_that_does_not_end_keeps_nobody_who_gave_up_waiting(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = background._start, []

    def starting(
        _: list[str], fds: Sequence[int], environment: dict[str, str], **options: Any
    ) -> subprocess.Popen[bytes]:
        code = f"import os, signal; signal.signal(15, signal.SIG_IGN); os.write({fds[0]}, b'.'); signal.pause()"
        started.append(start([sys.executable, "-c", code], fds, environment, **options))
        return started[0]

    def interrupted(report: BinaryIO, _: object) -> None:
        report.read(1)  # by now it ignores the signal
        raise KeyboardInterrupt

    monkeypatch.setattr(background, "_start", starting)
    monkeypatch.setattr(background, "_receive", interrupted)
    monkeypatch.setattr(background, "END_SECONDS", 0.1)
    with pytest.raises(KeyboardInterrupt):
        fffs.mount.mount(source, tmp_path / "m")
    assert started[0].returncode == -signal.SIGKILL


@as_root
@pytest.mark.parametrize("how", ["--move", "--bind"])
def test_a_signal_unmounts_wherever_others_took_the_mount(how: str, source: Path, mounts: Mounts) -> None:
    def work(folder: Path) -> None:
        path, other = mounts(source, at=folder / "m"), folder / "other"
        other.mkdir()
        subprocess.run(["mount", how, path, other], check=True)
        mounts.daemon.kill(signal.SIGTERM)
        assert mounts.daemon.wait()
        assert not is_mounted(path) and not is_mounted(other) and not path.exists()

    in_namespace(work)


@as_root
def test_nobody_waits_for_a_daemon_that_serves_a_bind_mount(
    source: Path, mounts: Mounts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def work(folder: Path) -> None:
        path, other = mounts(source, at=folder / "m"), folder / "other"
        other.mkdir()
        subprocess.run(["mount", "--bind", path, other], check=True)
        with monkeypatch.context() as patch:
            patch.setattr("fffs.mount.system.unmount._wait", lambda _: pytest.fail("it goes on"))
            umount(path)
        assert caplog.messages == [f"{path}: unmounted, but it is also mounted at {other}: fffs umount {other}"]
        assert not is_mounted(path) and (other / "file").read_text() == "content"
        umount(other)
        assert mounts.daemon.wait(0) and len(caplog.messages) == 1

    in_namespace(work)


@as_root
def test_unmounting_leaves_the_mounts_of_other_namespaces_at_the_same_folder(source: Path, mounts: Mounts) -> None:
    """rmdir(2) would detach them."""

    def work(folder: Path) -> None:
        path = folder / "above" / "m"
        in_namespace(lambda _: mounts(source, at=path) and None)
        first = mounts.daemon
        assert path.exists() and not is_mounted(path), "the daemon keeps the other namespace"
        umount(mounts(source, at=path))
        assert mounts.daemon.wait(0)
        assert Path(f"/proc/{first.pid}/root{path}/file").read_text() == "content"
        first.kill(signal.SIGTERM)
        assert first.wait()
        assert not path.parent.exists(), "the last one removes it"

    in_namespace(work)


@as_root
def test_a_copy_of_a_mount_in_a_container_outlives_unmounting(
    source: Path, mounts: Mounts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def work(folder: Path) -> None:
        path = mounts(source, at=folder / "m")
        inside = ["unshare", "-m", "sh", "-c", f"echo; read line; cat {path}/file"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(inside, cwd="/", text=True, **pipes) as container:
            assert container.stdout is not None and container.stdout.readline() == "\n"
            with monkeypatch.context() as patch:
                patch.setattr("fffs.mount.system.unmount.EXIT_SECONDS", 0.1)
                umount(path)
            assert "a container may still have the mount" in caplog.text
            assert not is_mounted(path) and os.listdir(path) == []
            assert container.communicate("\n", timeout=60)[0] == "content"
        assert mounts.daemon.wait()
        assert not path.exists()

    in_namespace(work)


@as_root
def test_a_mount_that_is_covered_at_its_end_is_said_to_be_left(source: Path, mounts: Mounts) -> None:
    def work(folder: Path) -> None:
        path = mounts(source, at=folder / "m")
        subprocess.run(["mount", "-t", "tmpfs", "cover", path], check=True)
        left = f"{path}: it is still mounted there, below cover (tmpfs); unmount that, and then: fffs umount {path}"
        mounts.daemon.expect(f"ERROR .*{re.escape(left)}$")
        mounts.daemon.kill(signal.SIGTERM)
        assert mounts.daemon.wait()
        assert left in mounts.daemon.log() and ": unmounted" not in mounts.daemon.log()
        found = mount_at(str(path))
        assert found is not None and found.type == "tmpfs", "what others mount stays"
        subprocess.run(["umount", path], check=True)
        run_fffs("umount", path)
        assert not path.exists()

    in_namespace(work)


COVERED = """
import signal, sys
from dataclasses import replace
from pathlib import Path
from fffs.mount import MountOptions
from fffs.mount.daemon import session
from fffs.mount.daemon.job import make_job
from fffs.mount.system import kernel

def attach(request, original=kernel.attach):
    fd = original(request)
    print(Path(f"/proc/self/fdinfo/{fd}").read_text().split(), flush=True)
    global other
    other = original(replace(request, source="the other"))
    return fd

kernel.attach = attach
session.serve(make_job(sys.argv[1], sys.argv[2], MountOptions()), lambda: signal.raise_signal(signal.SIGTERM))
print("ended", flush=True)
sys.stdin.read()
"""


@as_root
def test_a_mount_that_is_covered_at_once_is_not_taken_for_the_other(source: Path, tmp_path: Path) -> None:
    """As if two processes had mounted at the same time."""
    path = tmp_path / "m"
    command = [sys.executable, "-c", COVERED, source, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            shown = process.stdout.readline()
            assert process.stdout.readline() == "ended\n"
            if "fuse_connection" not in shown:
                pytest.skip("this kernel does not show the connection of a descriptor")
            top = mount_at(str(path))
            assert top is not None and top.source == "the other"
            assert mounts_below(tmp_path) == [str(path)] * 2, "its own is left, dead, below the other"
        finally:
            detach_all(tmp_path)


REUSED = """
import signal, subprocess, sys
from dataclasses import replace
from fffs.mount import MountOptions
from fffs.mount.daemon import session
from fffs.mount.daemon.job import make_job
from fffs.mount.system.mounts import mount_at

pack, path, other = sys.argv[1:]

def end():
    subprocess.run(["mount", "-t", "tmpfs", "cover", path], check=True)
    signal.raise_signal(signal.SIGTERM)

def detach_again(self, original=session._Session._detach_again):
    subprocess.run(["umount", "-l", path, path], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "other", other], check=True)
    made = mount_at(other)
    assert self._left
    self._left = [replace(mount, number=made.number, device=made.device) for mount in self._left]
    original(self)

session._Session._detach_again = detach_again
session.serve(make_job(pack, path, MountOptions()), end)
"""


@as_root
def test_a_mount_that_has_the_numbers_of_a_daemons_earlier_one_stays(source: Path, tmp_path: Path) -> None:
    """The kernel gives the lowest free ones to the next mount."""
    (tmp_path / "other").mkdir()
    try:
        command = [sys.executable, "-c", REUSED, source, tmp_path / "m", tmp_path / "other"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert mounts_below(tmp_path) == [str(tmp_path / "other")]
    finally:
        detach_all(tmp_path)


AGAIN = """
import errno, os, signal, sys
from fffs.mount import MountOptions
from fffs.mount.daemon import session
from fffs.mount.daemon.job import make_job

def is_alive(path):
    if sys.argv[3] == "no thread":
        raise RuntimeError("can't start new thread")
    return False

session.is_alive = is_alive
session.Place.detach = lambda place, lazy: place._find()
session.serve(make_job(sys.argv[1], sys.argv[2], MountOptions()), lambda: signal.raise_signal(signal.SIGTERM))
"""


EARLY = """
import signal, sys
from fffs.mount import MountOptions
from fffs.mount.daemon import session
from fffs.mount.daemon.job import make_job

def connect(*arguments, original=session.fastpath.connect):
    signal.raise_signal(signal.SIGTERM)
    return original(*arguments)

session.fastpath.connect = connect
session.serve(make_job(sys.argv[1], sys.argv[2], MountOptions()), lambda: print("ready"))
"""


def test_a_mount_that_a_signal_ends_before_it_is_ready_is_not_said_to_be(source: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", EARLY, source, tmp_path / "m"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert not is_mounted(tmp_path / "m")


@as_root
@pytest.mark.parametrize("answer", ["no thread", "no answer"])
def test_what_could_not_be_unmounted_is_tried_again_although_nothing_tells_that_it_is_dead(
    answer: str, source: Path, tmp_path: Path
) -> None:
    try:
        command = [sys.executable, "-c", AGAIN, source, tmp_path / "m", answer]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert mounts_below(tmp_path) == []
    finally:
        detach_all(tmp_path)


# ---------------------------------------------------------------- limited systems


@as_root
def test_without_proc_one_line_says_so_and_reading_works(source: Path, tmp_path: Path, mounts: Mounts) -> None:
    path = mounts(source)

    def run(*arguments: object) -> tuple[int, str]:
        inside = ["unshare", "-m", "sh", "-c", 'umount -l /proc && exec "$@"', "sh", sys.executable, "-m", "fffs"]
        done = subprocess.run([*inside, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stderr

    missing = "fffs: /proc/thread-self/mountinfo: not there; mount /proc first: mount -t proc proc /proc\n"
    for arguments in (
        ["mount", source, tmp_path / "m"],
        ["mount", "-f", source, path],
        ["umount", path],
        ["stat", path],
    ):
        assert run(*arguments) == (MountError.exit_code, missing)
    for arguments in (["ls", source], ["cat", source, "file"], ["info", source], ["verify", source]):
        assert run(*arguments) == (0, "")
    assert (path / "file").read_text() == "content"


@as_root
def test_a_daemon_ends_in_order_although_proc_is_gone(source: Path, mounts: Mounts) -> None:
    def work(folder: Path) -> None:
        path = mounts(source, at=folder / "m")
        assert libc.umount2(b"/proc", 2) == 0
        try:
            mounts.daemon.kill(signal.SIGTERM)
            assert mounts.daemon.wait()
        finally:
            assert libc.mount(b"proc", b"/proc", b"proc", ctypes.c_ulong(0), None) == 0
        assert not is_mounted(path) and not path.exists()

    in_namespace(work)


@pytest.mark.parametrize("limit", [7, 11, 12, 13, 16])
def test_too_few_descriptors_are_said_in_a_line_and_leave_nothing(
    limit: int, source: Path, tmp_path: Path, mounts: Mounts
) -> None:
    options = f"log={tmp_path}/log,fastpath={'on' if mounts.fastpath else 'off'}"
    command = [sys.executable, "-m", "fffs", "mount", source, tmp_path / "m", "-o", options]
    limited = ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", *command]
    # Without the development mode, in which trio reports the files that it opened at its start.
    env = os.environ | {"PYTHONDEVMODE": "", "PYTHONWARNINGS": ""}
    done = subprocess.run(limited, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert done.returncode == MountError.exit_code
    *before, line = done.stderr.rstrip("\n").split("\n")
    assert re.match("fffs: .*Too many open files; allow this process more of them", line)
    assert all(re.fullmatch("fffs: without the fast path: .*Too many open files", other) for other in before), before
    assert not is_mounted(tmp_path / "m") and not (tmp_path / "m").exists()
    assert not (tmp_path / "log").exists() or "Traceback" not in (tmp_path / "log").read_text()


# ---------------------------------------------------------------- ordinary users

USER = """
import os, signal, sys
from fffs.mount import MountOptions
from fffs.mount.daemon.job import make_job
from fffs.mount.daemon.log import DaemonLog
from fffs.mount.daemon.session import serve
from fffs.mount import umount

what, source, mountpoint, allow_other, chld = sys.argv[1:]
if chld == "ignored":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
try:
    if what == "umount":
        umount(mountpoint)
    else:
        DaemonLog()
        serve(make_job(source, mountpoint, MountOptions(allow_other=allow_other == "yes")))
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def as_nobody(*command: object) -> subprocess.CompletedProcess[str]:
    arguments = [str(part) for part in command]
    return subprocess.run(
        arguments, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, text=True, check=False, timeout=60
    )


class UserDaemon:
    """``serve`` in a process of user nobody. Root starts it, because nobody may have no access to the interpreter."""

    def __init__(self, source: Path, path: Path, allow_other: str = "no", chld: str = "") -> None:
        self.source, self.path, self.chld = source, path, chld
        self.process = self._start("mount", allow_other)

    def _start(self, what: str, allow_other: str = "no") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", USER, what, str(self.source), str(self.path), allow_other, self.chld]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> UserDaemon:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def mounted(self) -> bool:
        assert self.process.poll() is None, self.process.communicate()[1]
        return is_mounted(self.path)

    def umount(self) -> str:
        return self._start("umount").communicate(timeout=60)[1]


def copy_of(source: Path, folder: Path, name: str) -> Path:
    (folder / name).write_bytes(source.read_bytes())
    (folder / name).chmod(0o644)
    return folder / name


@as_root
def test_an_ordinary_user_mounts_and_unmounts(source: Path) -> None:
    def work(folder: Path) -> None:
        public = copy_of(source, folder, "a, strange \\ name.ffr")
        with UserDaemon(public, folder / "m") as daemon:
            wait_until(daemon.mounted)
            assert as_nobody("cat", daemon.path / "file").stdout == "content"
            assert as_nobody("stat", "-c", "%u %g", daemon.path / "file").stdout.split() == [str(NOBODY)] * 2
            with pytest.raises(PermissionError):  # not even root, without allow_other
                os.listdir(daemon.path)
            mount = mount_at(str(daemon.path))
            assert mount is not None and (mount.type, mount.source) == ("fuse.fffs", str(public))
            assert daemon.umount() == ""
            assert daemon.process.wait(20) == 0
            assert not daemon.path.exists()

    in_namespace(work)


@as_root
def test_a_user_who_may_not_mount_or_unmount_is_told_who_may(source: Path) -> None:
    def work(folder: Path) -> None:
        public = copy_of(source, folder, "public.ffr")
        os.chmod("/dev/fuse", 0o600)
        with UserDaemon(public, folder / "m") as daemon:
            said = daemon.process.communicate(timeout=60)[1]
            assert "/dev/fuse: Permission denied; have root allow it (chmod 666 /dev/fuse), or read without" in said
            fffs.mount.mount(public, folder / "m", options=MountOptions(log=str(folder / "log")))
            said = daemon.umount()
            assert f"; root can, and the user who mounted it: sudo fffs umount {folder}/m\n" in said
            fffs.mount.umount(folder / "m")

    in_namespace(work)


@pytest.mark.parametrize("there", [True, False])
def test_an_interpreter_that_cannot_be_run_is_named(
    there: bool, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    if there:
        (tmp_path / "python").touch()
    with pytest.raises(MountError, match=r"cannot start a daemon: .*: .*/python; install Python and fffs where this"):
        fffs.mount.mount(source, tmp_path / "m")


def test_a_device_that_is_missing_is_named(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "devnull", str(tmp_path / "null"))
    with pytest.raises(MountError, match=rf"cannot start a daemon: No such file or directory: {tmp_path}/null$"):
        fffs.mount.mount(source, tmp_path / "m")
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)  # then fusermount3 is asked, which needs no such device
    assert mount_kernel.detach_topmost(str(tmp_path), lazy=False).startswith("fusermount3: ")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert mount_kernel.detach_topmost(str(tmp_path), lazy=False) == "fusermount3 is missing; install the package fuse3"


@pytest.mark.parametrize(("problem", "busy"), [("Device or resource busy", True), ("Invalid argument", False)])
def test_the_name_of_a_mount_point_does_not_make_it_busy(problem: str, busy: bool) -> None:
    error = mount_kernel._failure("/mnt/busy/m", f"fusermount3: failed to unmount /mnt/busy/m: {problem}")
    assert isinstance(error, mount_kernel.BusyError) == busy


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make its link")
def test_the_message_of_fusermount3_about_a_name_of_several_lines_is_whole(tmp_path: Path) -> None:
    said = mount_fusermount.unmount(str(tmp_path / "two\nlines"), lazy=False)
    assert said == f"fusermount3: failed to unmount {tmp_path}/two\\nlines: No such file or directory"


@as_root
def test_exit_codes_that_are_lost_hide_no_failure(source: Path) -> None:
    """In a process that ignores SIGCHLD, every program seems to succeed."""

    def work(folder: Path) -> None:
        with UserDaemon(copy_of(source, folder, "p.ffr"), folder / "m", chld="ignored") as daemon:
            wait_until(daemon.mounted)
            command = ["sh", "-c", f"exec 3<{daemon.path}/file; echo; exec sleep 100"]
            holder = subprocess.Popen(command, user=NOBODY, group=NOBODY, extra_groups=[], stdout=subprocess.PIPE)
            try:
                assert holder.stdout is not None
                holder.stdout.readline()
                assert "in use" in daemon.umount() and is_mounted(daemon.path)
                daemon.process.terminate()
                assert daemon.process.wait(20) == 0
                assert not is_mounted(daemon.path), "lazily, because it is in use"
            finally:
                holder.kill()
                holder.communicate()

    in_namespace(work)


@as_root
def test_the_daemon_of_a_user_unmounts_lazily_on_a_signal(source: Path) -> None:
    def work(folder: Path) -> None:
        with UserDaemon(copy_of(source, folder, "p.ffr"), folder / "m") as daemon:
            wait_until(daemon.mounted)
            command = ["sh", "-c", f"exec 3<{daemon.path}/file; echo; exec sleep 100"]
            holder = subprocess.Popen(command, user=NOBODY, group=NOBODY, extra_groups=[], stdout=subprocess.PIPE)
            try:
                assert holder.stdout is not None
                holder.stdout.readline()
                assert "in use" in daemon.umount()
                daemon.process.terminate()
                assert daemon.process.wait(20) == 0
                assert not daemon.path.exists()
            finally:
                holder.kill()
                holder.communicate()

    in_namespace(work)


@as_root
def test_allow_other_for_a_user_needs_fuse_conf(source: Path) -> None:
    conf = Path("/etc/fuse.conf")
    if conf.exists() and any(line.strip() == "user_allow_other" for line in conf.read_text().splitlines()):
        pytest.skip("/etc/fuse.conf allows it")

    def work(folder: Path) -> None:
        with UserDaemon(copy_of(source, folder, "p.ffr"), folder / "m", "yes") as daemon:
            text = daemon.process.communicate(timeout=60)[1]
            assert daemon.process.returncode == 1
            assert "MountError" in text and "user_allow_other" in text and "or omit allow_other" in text
            assert not daemon.path.exists()

    in_namespace(work)


@as_root
@pytest.mark.parametrize("allow_other", [True, False])
def test_allow_other(allow_other: bool, source: Path, shared_folder: Path, mounts: Mounts) -> None:
    path = mounts(source, at=shared_folder / "m", allow_other=allow_other)
    found = as_nobody("cat", path / "file")
    assert (found.stdout == "content") == allow_other
    assert ("Permission denied" in found.stderr) != allow_other
    umount(path)


@as_root
def test_modes_hold_for_other_users(tmp_path: Path, shared_folder: Path, mounts: Mounts) -> None:
    (tmp_path / "folder").mkdir()
    for name, mode in (("public", 0o644), ("private", 0o600)):
        (tmp_path / "folder" / name).write_text(name)
        (tmp_path / "folder" / name).chmod(mode)
    fffs.pack_folder(tmp_path / "folder", tmp_path / "p.ffr")
    path = mounts(tmp_path / "p.ffr", at=shared_folder / "m", allow_other=True)
    assert as_nobody("cat", path / "public").stdout == "public"
    assert "Permission denied" in as_nobody("cat", path / "private").stderr
    assert stat.S_IMODE(os.stat(path / "private").st_mode) == 0o600


# ---------------------------------------------------------------- the context manager


def test_mounted_for_the_length_of_a_with(source: Path, tmp_path: Path) -> None:
    with mounted(source) as path, mounted(str(source), tmp_path / "m") as second:
        assert Path(path, "file").read_text() == Path(second, "file").read_text() == "content"
        assert second == str(tmp_path / "m")
    assert not os.path.exists(path) and not os.path.exists(second)


def test_mounted_takes_options_and_lists(source: Path, tmp_path: Path) -> None:
    with fffs.FileWriter(tmp_path / "r.ffr", 1) as writer:
        writer.write_one(b"plain")
    with mounted([tmp_path / "r.ffr", tmp_path / "r.ffr"], suffix=".bin", uid=77) as path:
        assert sorted(os.listdir(path)) == ["000000.bin", "000001.bin"]
        assert os.stat(path).st_uid == 77


def test_mounted_says_which_option_it_does_not_have(source: Path) -> None:
    with pytest.raises(fffs.errors.UsageError, match=r"no option sufix;"), mounted(source, verify=True, sufix=".bin"):
        pass


def test_mounted_raises_what_the_daemon_raised(tmp_path: Path) -> None:
    (tmp_path / "garbage").write_bytes(b"x" * 100)
    with pytest.raises(SourceNotFoundError, match="nothing"), mounted(tmp_path / "nothing"):
        pytest.fail("nothing was mounted")
    with pytest.raises(FormatError, match="garbage"), mounted(tmp_path / "garbage", tmp_path / "m"):
        pytest.fail("nothing was mounted")
    assert not (tmp_path / "m").exists()


def test_mounted_unmounts_after_an_exception_with_files_open(source: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyError), mounted(source, tmp_path / "m") as path:
        fd = os.open(Path(path, "file"), os.O_RDONLY)
        raise KeyError("in the body")
    assert not is_mounted(tmp_path / "m")
    with suppress(OSError):
        os.close(fd)


def test_mounted_when_the_daemon_is_killed_meanwhile(source: Path, tmp_path: Path) -> None:
    with pytest.raises(MountError, match="the daemon of this mount failed"), mounted(source, tmp_path / "m") as path:
        os.kill(daemon_of(path), signal.SIGKILL)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("killed", [False, True], ids=["lives", "killed"])
def test_mounted_where_exit_codes_are_lost(killed: bool, source: Path, tmp_path: Path) -> None:
    previous = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(MountError, match="the daemon of this mount failed;") if killed else nullcontext():
            with mounted(source, tmp_path / "m") as path:
                if killed:
                    os.kill(daemon_of(path), signal.SIGKILL)
    finally:
        signal.signal(signal.SIGCHLD, previous)
    assert not is_mounted(tmp_path / "m") and not (tmp_path / "m").exists()


def test_a_daemon_hears_of_its_children_although_its_parent_ignores_them(source: Path, mounts: Mounts) -> None:
    previous = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        mounts(source)
    finally:
        signal.signal(signal.SIGCHLD, previous)
    assert not ignores(mounts.daemon.pid, signal.SIGCHLD)


@pytest.mark.parametrize("main", ["main", "main_mount_helper"])
def test_the_programs_hear_of_their_children_although_their_parent_ignores_them(main: str) -> None:
    code = (
        "import signal, sys; from fffs.cli.program import *\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        f"try: {main}()\nexcept SystemExit: sys.exit(signal.getsignal(signal.SIGCHLD) != signal.SIG_DFL)"
    )
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_mounted_leaves_nothing_in_this_process(source: Path) -> None:
    with mounted(source):
        pass
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(3):
        with mounted(source):
            pass
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


def test_mounted_in_many_threads(source: Path) -> None:
    found: list[str] = []

    def work() -> None:
        with mounted(source) as path:
            found.append(Path(path, "file").read_text())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["content"] * 4


def test_the_mount_of_a_process_that_died_is_unmounted(source: Path, tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom fffs.mount import mounted\n"
        "with mounted(sys.argv[1], sys.argv[2]) as path:\n    assert os.listdir(path)\n    os._exit(3)"
    )
    done = subprocess.run([sys.executable, "-c", code, source, tmp_path / "m"], check=False)
    assert done.returncode == 3
    wait_until(lambda: not (tmp_path / "m").exists())


FORKED = """
import os, signal, sys
from fffs.mount import mounted
with mounted(*sys.argv[1:]):
    if os.fork() == 0:
        os.close(1)
        sys.stdin.read()  # until the test ends
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_child_of_fork_does_not_keep_the_mount_of_a_process_that_was_killed(source: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED, source, tmp_path / "m"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:  # the child lives until the pipe is closed
        assert process.wait(60) == -signal.SIGKILL
        wait_until(lambda: not (tmp_path / "m").exists())


LEFT = """
import os, sys
from fffs.mount import mounted
how, *arguments = sys.argv[1:]
try:
    with mounted(*arguments) as path:
        child = os.fork()
        if child == 0 and how == "exits":
            sys.exit(7)
        if child == 0 and how == "raises":
            raise KeyError(how)
        if child:
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert os.listdir(path) == ["file"]
except KeyError:
    sys.exit(7)
if not child:
    sys.exit(7)
assert not os.path.exists(path)
sys.exit(code)
"""


@pytest.mark.parametrize("point", [[], ["m"]], ids=["temporary", "named"])
@pytest.mark.parametrize("how", ["leaves", "exits", "raises"])
def test_a_child_of_fork_that_leaves_the_block_ends_no_mount(
    how: str, point: list[str], source: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", LEFT, how, source, *point]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (7, "")


@pytest.mark.parametrize("ready", [True, False])
def test_a_child_that_another_thread_forks_keeps_nobody_waiting(
    ready: bool, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child inherits an end of the pipe on which the daemon reports."""
    start, kept = background._start, []

    def starting(
        command: list[str], fds: Sequence[int], environment: dict[str, str], **options: Any
    ) -> subprocess.Popen[bytes]:
        kept.append(os.dup(fds[0]))  # as such a child has
        return start(command if ready else ["false"], fds, environment, **options)

    monkeypatch.setattr(background, "_start", starting)
    try:
        with nullcontext() if ready else pytest.raises(MountError, match="ended with exit code 1"):
            with mounted(source) as path:
                assert os.listdir(path) == ["file"]
    finally:
        os.close(kept[0])


def test_the_daemon_does_not_import_from_the_working_folder(source: Path, tmp_path: Path) -> None:
    (tmp_path / "trap").mkdir()
    (tmp_path / "trap" / "trio.py").write_text("raise SystemExit('imported from the working folder')")
    (tmp_path / "trap" / "fffs.py").write_text("raise SystemExit('imported from the working folder')")
    code = "import os, sys; from fffs.mount import mounted; os.chdir(sys.argv[2])\nwith mounted(sys.argv[1]): pass"
    subprocess.run([sys.executable, "-c", code, source, tmp_path / "trap"], check=True)


def test_an_answer_can_be_lost_without_complaint(source: Path, mounts: Mounts) -> None:
    """Killed readers leave requests whose replies are not delivered."""
    path = mounts(source)
    for _ in range(20):
        process = subprocess.Popen(
            ["sh", "-c", f"while :; do ls -l {path}; cat {path}/file; done"], stdout=subprocess.PIPE
        )
        assert process.stdout and process.stdout.read(1), "it has begun"
        process.kill()
        process.stdout.close()
        process.wait()
    assert (path / "file").read_text() == "content"


def test_the_end_of_a_block_leaves_a_mount_that_was_made_there_meanwhile(
    source: Path, tmp_path: Path, mounts: Mounts
) -> None:
    path = tmp_path / "m"
    path.mkdir()
    with pytest.raises(MountError, match="exit code -9"), mounted(source, path):
        daemon = os.pidfd_open(daemon_of(path))
        signal.pidfd_send_signal(daemon, signal.SIGKILL)
        select.select([daemon], [], [], 60)
        os.close(daemon)
        umount(path)
        mounts(source, at=path)
    assert (path / "file").read_text() == "content"


def test_a_log_of_a_block_may_have_a_relative_path(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with mounted(source, log=Path("log")):
        pass
    assert (tmp_path / "log").exists()


def test_a_daemon_may_open_many_files_whoever_starts_it(source: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
    try:
        with mounted(source) as path:
            limits = resource.prlimit(daemon_of(Path(path)), resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert limits[0] == min(hard, 1 << 20)
