"""Files on which a server of NFS or SMB has a lease, which it gives up when somebody opens them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mounting import pack_files

import fffs

SERVER = """\
import fcntl, os, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
for path in sys.argv[1:]:
    file = os.open(path, os.O_RDWR)
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("ready", flush=True)
while signal.sigwait([signal.SIGIO]):
    time.sleep(0.2)
    for file in range(3, 20):
        try:
            if fcntl.fcntl(file, fcntl.F_GETLEASE) != fcntl.F_WRLCK:
                fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
                print(os.readlink(f"/proc/self/fd/{file}"), flush=True)
        except OSError:
            pass
"""


@contextmanager
def leased(*paths: Path) -> Iterator[None]:
    """Have a server hold leases on files, of which each must be asked for within the block."""
    with subprocess.Popen([sys.executable, "-c", SERVER, *paths], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            assert server.stdout.readline() == "ready\n"
            yield
            asked = {server.stdout.readline().rstrip() for _ in paths}
        finally:
            server.kill()
    assert asked == {str(path) for path in paths}


def test_records_of_a_file(tmp_path: Path) -> None:
    path = pack_files(tmp_path / "p", a=b"one")
    with leased(path):
        packed = fffs.PackedFolder(path)
    with packed:
        assert bytes(packed.read_one("a")) == b"one"


@pytest.mark.parametrize("options", [[], ["--keep-going"], ["--parts", "2"]])
def test_files_that_are_packed(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "in").mkdir()
    contents = {"a": b"first", "b": b"second", "c": b"", "d": bytes(3 << 20), "e": b"last"}
    for name, data in contents.items():
        (tmp_path / "in" / name).write_bytes(data)
    with leased(tmp_path / "in/b", tmp_path / "in/d"):
        command = [sys.executable, "-m", "fffs", "pack", *options, tmp_path / "in", tmp_path / "p.ffr"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    made = tmp_path / "p.ffr"
    parts = sorted(made.iterdir()) if made.is_dir() else made
    with fffs.PackedFolder(parts) as packed:
        assert {name: bytes(packed.read_one(name)) for name in contents} == contents


@pytest.mark.parametrize("size", [10, 3 << 20])
def test_an_interrupt_does_not_wait_for_a_server_that_keeps_its_lease(tmp_path: Path, size: int) -> None:
    (tmp_path / "in").mkdir()
    for k in range(40):
        (tmp_path / "in" / f"{k:02}").write_bytes(bytes(size))
    command = [sys.executable, "-c", SERVER, tmp_path / "in/20"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            server.send_signal(signal.SIGSTOP)
            pack = [sys.executable, "-m", "fffs", "pack", "--jobs", "2", tmp_path / "in", tmp_path / "p.ffr"]
            with subprocess.Popen(pack, stderr=subprocess.PIPE, text=True) as packing:
                with pytest.raises(subprocess.TimeoutExpired):
                    packing.wait(3)
                packing.send_signal(signal.SIGINT)
                assert packing.wait(20) == 130  # the kernel ends the lease after 45 seconds
        finally:
            server.kill()
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
