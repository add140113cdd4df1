"""Mounts whose daemons cannot start threads any more, as at the limit of a container: they serve, and end when told."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from mounting import Daemon, Mounts, counters_of, daemon_of, is_mounted, pack_files, wait_until

import fffs
import fffs.mount
from fffs.errors import MountError

pytestmark = pytest.mark.fuse

PROGRAM = """
import os, sys
import trio
from fffs.layouts.view import TreeView
from fffs.mount import MountOptions
from fffs.mount.daemon.job import make_job
from fffs.mount.daemon.log import DaemonLog
from fffs.mount.daemon.session import serve

source, mountpoint, log, limit, fastpath = sys.argv[1:]
start, inodes_of = trio.to_thread.run_sync, TreeView.inodes_of

async def run_sync(*arguments, **options):
    if os.path.exists(limit):
        open(limit + ".refused", "w").close()
        raise RuntimeError("can't start new thread")
    return await start(*arguments, **options)

def without_memory(self, records):
    if os.path.exists(limit + ".memory"):
        raise MemoryError
    return inodes_of(self, records)

trio.to_thread.run_sync, TreeView.inodes_of = run_sync, without_memory
DaemonLog(log)
serve(make_job(source, mountpoint, MountOptions(log=log, fastpath=fastpath == "True")))
"""
RECORDS = [bytes(range(k, k + 250)) * 40 for k in range(5)]
BAD = 2


@dataclass
class Limited:
    """A mount of ``RECORDS``, of which one is damaged, and the file whose existence stops new threads."""

    path: Path
    source: Path
    limit: Path
    daemon: Daemon

    def read(self, number: int) -> bytes | None:
        """Read a record from the disk, not from the page cache. None: EIO."""
        with self.source.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            return (self.path / f"{number:06}").read_bytes()
        except OSError as error:
            assert error.errno == errno.EIO
            return None


@pytest.fixture
def limited(tmp_path: Path, mounts: Mounts) -> Iterator[Limited]:
    source = tmp_path / "r.ffr"
    with fffs.FileWriter(source, n=len(RECORDS)) as writer:
        for record in RECORDS:
            writer.write_one(record)
    with source.open("r+b") as file:
        file.seek(source.read_bytes().find(RECORDS[BAD]) + 5)
        file.write(b"damage")
        os.fsync(file.fileno())
    path, log, limit = tmp_path / "limited", tmp_path / "limited.log", tmp_path / "limit"
    command = [sys.executable, "-c", PROGRAM, source, path, log, limit, str(mounts.fastpath)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    wait_until(lambda: is_mounted(path) or process.poll() is not None)
    mounts.daemons.append(Daemon(path, log))
    os.listdir(path)
    yield Limited(path, source, limit, mounts.daemon)
    mounts.daemon.kill(15)
    assert process.wait(20) == 0


def test_records_are_read_and_a_damaged_one_is_named(limited: Limited) -> None:
    limited.limit.touch()
    limited.daemon.expect("000002: .*r.ffr.*record 2.*checksum")
    limited.daemon.expect("reads failed, of 1 records")
    for number, record in enumerate(RECORDS):
        assert limited.read(number) == (None if number == BAD else record)
    wait_until(lambda: "000002" in limited.daemon.log())
    assert counters_of(limited.path)["bad_records"] == 1


@pytest.mark.parametrize("mounts", [True], indirect=True, ids=["fastpath"])
def test_without_memory_to_explain_a_damaged_record_the_others_are_served(limited: Limited) -> None:
    limited.limit.with_suffix(".memory").touch()
    limited.daemon.expect("1 record could not be read; there is not enough memory to find out why")
    limited.daemon.expect("reads failed, of more than 0 records")
    assert limited.read(BAD) is None
    wait_until(lambda: "not enough memory" in limited.daemon.log())
    assert limited.read(BAD + 1) == RECORDS[BAD + 1]


def test_a_signal_unmounts(limited: Limited) -> None:
    limited.limit.touch()
    limited.daemon.kill(15)
    assert limited.daemon.wait()
    assert not is_mounted(limited.path)


def test_a_signal_unmounts_lazily(limited: Limited) -> None:
    with (limited.path / "000000").open("rb"):
        limited.limit.touch()
        limited.daemon.kill(15)
        assert limited.daemon.wait()
    assert not is_mounted(limited.path)


def test_numpy_starts_no_threads_in_a_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = pack_files(tmp_path / "f", a=b"content")
    for wanted in (None, "2"):
        monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
        if wanted:
            monkeypatch.setenv("OPENBLAS_NUM_THREADS", wanted)
        with fffs.mount.mounted(source) as path:
            environment = Path(f"/proc/{daemon_of(path)}/environ").read_bytes().split(b"\0")
            assert f"OPENBLAS_NUM_THREADS={wanted or 1}".encode() in environment


def test_a_mount_is_unmounted_by_a_process_that_can_start_no_thread(
    mounts: Mounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    mounted = mounts(pack_files(tmp_path / "f", a=b"content"))
    monkeypatch.setattr(threading.Thread, "start", start)
    with (mounted / "a").open("rb"), pytest.raises(MountError, match="in use"):
        fffs.mount.umount(mounted)
    fffs.mount.umount(mounted)
    assert not is_mounted(mounted) and mounts.daemon.wait()


def test_what_was_made_writable_is_made_read_only_again(limited: Limited) -> None:
    limited.limit.touch()
    limited.daemon.expect("remounted as writable by another process: it is read-only again")
    subprocess.run(["mount", "-i", "-o", "remount,rw", limited.path], check=True)
    wait_until(limited.limit.with_suffix(".refused").exists)
    limited.limit.unlink()
    wait_until(lambda: "read-only again" in limited.daemon.log())
