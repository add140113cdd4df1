"""Descriptors: fffs never uses the numbers of standard streams, even if they are free."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from inside import descriptors
from object_server import ObjectServer, late

import fffs

# Objects under the name ``kept`` keep the descriptors open.
OPENED = {
    "FileReader": "kept = fffs.FileReader(source)",
    "past the page cache": "kept = fffs.FileReader(source); kept.use_direct(); kept.read([0])",
    "PackedFolder": "kept = fffs.PackedFolder(source)",
    "FileWriter": "kept = fffs.FileWriter(target + '.ffr', 1)",
    "TFRecordWriter": "from fffs.tfrecord import TFRecordWriter; kept = TFRecordWriter(target)",
    "BagWriter": "from fffs.granular import BagWriter; kept = BagWriter(target + '.bag')",
    "AtomicFolder": "from fffs.files.atomic_folder import AtomicFolder; kept = AtomicFolder(target, target)",
    "folder that is packed": (
        "from fffs.packing.source_folder import open_source; kept = open_source(os.path.dirname(source).encode())\n"
        "kept.__enter__()"
    ),
    "image of a mount": "from fffs.mount.daemon.kernel_mount import _unnamed_file; kept = _unnamed_file()",
    "mount point": "from fffs.mount.system.mountpoint import MountPoint; kept = MountPoint(target)",
    "pipe": "from fffs.base.descriptors import pipe; kept = pipe()",
}
# write(2) to the descriptor of an io_uring fails.
CLOSED = """
import os, sys
import fffs
source, target = sys.argv[1:]
for number in range(3):
    os.close(number)
{opened}
taken = 0
for number in range(3):
    try:
        taken += os.readlink(f"/proc/self/fd/{{number}}") != "anon_inode:[io_uring]"
    except FileNotFoundError:
        pass
os._exit(20 + taken)
"""


READ_BY_THREADS = """
import resource, sys, threading
import fffs
resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))
reader = fffs.FileReader(sys.argv[1], cache="off")
reader.read([0])  # so that the latency is known
threads = [threading.Thread(target=reader.read, args=(range(0, reader.n, 2),)) for _ in range(8)]
for thread in threads:
    thread.start()
while any(thread.is_alive() for thread in threads):
    open("/dev/null").close()
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(bytes(100_000))
    fffs.pack_folder(tmp_path / "folder", tmp_path / "p.ffr")
    return tmp_path / "p.ffr"


@pytest.mark.parametrize("kind", OPENED)
def test_no_file_of_ours_is_a_standard_stream(kind: str, source: Path, tmp_path: Path) -> None:
    code = CLOSED.format(opened=OPENED[kind])
    done = subprocess.run([sys.executable, "-c", code, source, tmp_path / "new"], check=False)
    assert done.returncode == 20


def test_what_is_printed_to_a_closed_stderr_gets_into_no_file(tmp_path: Path) -> None:
    code = (
        "import contextlib, os, sys, fffs\nos.close(2)\n"
        "with fffs.FileWriter(sys.argv[1], 1) as writer:\n"
        "    with contextlib.suppress(OSError):\n"
        "        os.write(2, b'a warning')\n"
        "    writer.write_one(b'record')\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "x.ffr"], check=True)
    with fffs.FileReader(tmp_path / "x.ffr") as reader:
        assert [bytes(record) for record in reader.read([0])] == [b"record"]
    assert b"warning" not in (tmp_path / "x.ffr").read_bytes()


def test_what_is_printed_to_a_closed_stderr_gets_into_no_copy_through_fsspec(source: Path, tmp_path: Path) -> None:
    code = (
        "import contextlib, os, sys, fffs.fsspec, fsspec.callbacks\n"
        "class Noisy(fsspec.callbacks.Callback):\n"
        "    def relative_update(self, inc=1):\n"
        "        with contextlib.suppress(OSError):\n"
        "            os.write(2, b'a warning')\n"
        "files = fffs.fsspec.FfrFileSystem(sys.argv[1])\n"
        "os.close(2)\n"
        "files.get_file('file', sys.argv[2], callback=Noisy())\n"
    )
    subprocess.run([sys.executable, "-c", code, source, tmp_path / "copy"], check=True)
    assert (tmp_path / "copy").read_bytes() == bytes(100_000)


def test_a_file_that_cannot_get_a_higher_number_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, its = os.pipe()

    def refuse(*_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(descriptors.fcntl, "fcntl", refuse)
    monkeypatch.setattr(descriptors, "LOWEST", its + 1)
    for fd in (ours, its):
        with pytest.raises(OSError, match="Too many open files"):
            descriptors.above_standard(fd)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


@pytest.mark.parametrize("name", ["memfd_create", "pidfd_open"])
def test_a_python_built_for_an_older_c_library_has_what_the_system_has(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Python builds of conda and uv are such."""
    monkeypatch.delattr(os, name)
    if name == "memfd_create":
        fd, path = descriptors.memory_file("x"), "/memfd:x (deleted)"
    else:
        fd, path = descriptors.process_file(os.getpid()), "anon_inode:[pidfd]"
    try:
        assert os.readlink(f"/proc/self/fd/{fd}") in (path, f"pidfd:[{os.stat(fd).st_ino}]")
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)


def test_a_call_that_the_c_library_lacks_is_an_os_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors.ctypes, "CDLL", lambda *_, **__: object())
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(OSError, match="Function not implemented"):
        descriptors.memory_file("x")


def test_threads_that_read_objects_leave_descriptors_to_others(server: ObjectServer, tmp_path: Path) -> None:
    """Each might have a connection for each of its records."""
    with fffs.FileWriter(tmp_path / "r.ffr", 120) as writer:
        for _ in range(120):
            writer.write_one(os.urandom(20_000))
    url = server.put("r.ffr", (tmp_path / "r.ffr").read_bytes())
    server.always = late(0.05)
    command = [sys.executable, "-c", READ_BY_THREADS, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
