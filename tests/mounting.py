"""Real mounts for tests: each is unmounted after its test, and each line of its daemon's log must be expected.

Daemons run in Python's development mode (conftest.py), so unclosed and unawaited objects are in the log, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import dataclasses
import json
import os
import re
import select
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from inside import DAEMON_QUESTION, STAT_QUESTION, mount_at

import fffs.mount
from fffs.mount import MountOptions

TROUBLE = re.compile(r" (WARNING|ERROR|CRITICAL) |Traceback")
# Lines that every mount may log. A line that is followed by others, such as a traceback, does not match.
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
HARMLESS = re.compile(
    TIME + r" INFO .*: (mounted .*|unmounted|SIG[A-Z]+|in use, unmounting lazily)\n"
    # A message of libfuse on stderr, if it is unmounted while it reads a request from the kernel.
    r"(fuse: reading device: Software caused connection abort\n)?"
)
ENTRY = re.compile(rf"(?m)^(?={TIME} [A-Z]+ )")
# No process may write this to stderr, in any test.
FORBIDDEN = re.compile(r"Traceback|never awaited|ResourceWarning|RuntimeWarning|Exception ignored|Fatal Python error")
libc = ctypes.CDLL(None, use_errno=True)


def mounts_below(folder: Path) -> list[str]:
    """Return the mount points below a folder, innermost last."""
    lines = os.fsdecode(Path("/proc/thread-self/mountinfo").read_bytes()).split("\n")[:-1]
    points = [re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), line.split(" ")[4]) for line in lines]
    return [point for point in points if point.startswith(f"{folder}/")]


def detach_all(folder: Path) -> None:
    """Lazily unmount everything below a folder."""
    for point in reversed(mounts_below(folder)):
        umount_quietly(Path(point))


def umount_quietly(path: Path) -> None:
    """Unmount lazily at the end of a test, whatever is open and whatever state the daemon is in."""
    libc.umount2(os.fsencode(path), 2)


def wait_until(condition: Any, seconds: float = 60.0) -> None:
    """Wait for a condition that another process will make true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def read_all(fd: int) -> bytes:
    """Read a file. If the daemon ends during a read, that read may be short, and the next one fails."""
    data = b""
    while part := os.pread(fd, 1 << 20, len(data)):
        data += part
    return data


def pack_files(folder: Path, **files: bytes) -> Path:
    """Write a packed folder of these files."""
    folder.mkdir()
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    fffs.pack_folder(folder, folder.with_suffix(".ffr"))
    return folder.with_suffix(".ffr")


def answer_of(path: Path, question: bytes) -> bytes:
    """Ask the daemon of a mount, without a limit of time."""
    return Path(os.fsdecode(os.path.join(os.fsencode(path), question))).read_bytes()


def daemon_of(path: Path) -> int:
    """Return the process id of the daemon of a mount."""
    return int(answer_of(path, DAEMON_QUESTION).split()[0])


def counters_of(path: Path) -> dict[str, Any]:
    """Return the counters of a mount."""
    return json.loads(answer_of(path, STAT_QUESTION))  # type: ignore[no-any-return]


class Daemon:
    """A daemon that serves a mount."""

    def __init__(self, path: Path, log: Path) -> None:
        self.path, self.log_file = path, log
        self.pid = daemon_of(path)
        self._pidfd = os.pidfd_open(self.pid)
        self._expected: list[tuple[str, bool]] = []

    def expect(self, pattern: str, traceback: bool = False) -> None:
        """Allow matching lines in the log; with traceback, also the lines of a traceback after them."""
        self._expected.append((pattern, traceback))

    def trouble(self) -> list[str]:
        """Return the lines of the log that report problems."""
        return [line for line in self.log().splitlines() if TROUBLE.search(line)]

    def log(self) -> str:
        if not self.wait(0):
            time.sleep(0.05)  # a thread writes the lines
        return self.log_file.read_text(errors="surrogateescape")

    def unexpected(self) -> list[str]:
        """Return the unexpected entries of the log, with all lines that follow each."""
        return [entry for entry in ENTRY.split(self.log()) if entry and not self._is_expected(entry)]

    def _is_expected(self, entry: str) -> bool:
        head, _, rest = entry.partition("\n")
        is_traceback = rest.startswith(("Traceback", "Fatal Python error"))
        return HARMLESS.fullmatch(entry) is not None or any(
            re.search(pattern, head) and traceback == is_traceback and (traceback or not rest)
            for pattern, traceback in self._expected
        )

    def kill(self, number: int = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def wait(self, seconds: float = 60.0) -> bool:
        """Wait until the process has ended."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/task"))

    def forget(self) -> None:
        """End the daemon if it still runs. It must end without being killed."""
        stuck = ""
        if not self.wait(0):
            self.kill(signal.SIGTERM)
            if not self.wait():
                stuck = subprocess.getoutput(f"head -v /proc/{self.pid}/task/*/stack; ls -l /proc/{self.pid}/fd")
                self.kill()
                self.wait()
        os.close(self._pidfd)
        assert not stuck, f"the daemon did not end:\n{stuck}\n{self.log()}"


class Mounts:
    """The mounts of one test."""

    def __init__(self, folder: Path, fastpath: bool = False) -> None:
        self.folder, self.fastpath = folder, fastpath
        self.daemons: list[Daemon] = []
        LIVE.append(self)

    def __call__(self, *sources: Path, at: Path | None = None, **options: Any) -> Path:
        """Mount in the background, with a log. Returns the mount point."""
        number = len(self.daemons)
        path = at or self.folder / f"mnt{number}"
        log = self.folder / f"daemon{number}.log"
        wanted = dataclasses.replace(MountOptions(log=str(log), fastpath=self.fastpath), **options)
        fffs.mount.mount(list(sources), path, options=wanted)
        self.daemons.append(Daemon(path, log))
        return path

    @property
    def daemon(self) -> Daemon:
        """The daemon of the last mount."""
        return self.daemons[-1]

    def end(self) -> None:
        LIVE.remove(self)
        detach_all(self.folder)
        for daemon in self.daemons:
            daemon.forget()
        self.police()

    def police(self) -> None:
        """Fail if a daemon logged something unexpected."""
        unexpected = [entry for daemon in self.daemons for entry in daemon.unexpected()]
        assert not unexpected, "the daemon logged what nobody expects:\n" + "\n".join(unexpected)


# Mounts that have not ended. Those of a module are checked after each of its tests.
LIVE: list[Mounts] = []


def run_fffs(*arguments: Any, code: int = 0, **options: Any) -> str:
    """Run the command line, which must exit with ``code``. Returns its stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "fffs", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert not FORBIDDEN.search(done.stderr), done.stderr
    return done.stderr


def is_mounted(path: Path) -> bool:
    return mount_at(str(path)) is not None


@contextlib.contextmanager
def gone_afterwards(file: IO[Any]) -> Iterator[None]:
    """Close a file whose mount has ended meanwhile: the first close(2) may fail, because it asks the daemon."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.close()


def in_namespace(work: Callable[[Path], None]) -> None:
    """Run work in a thread with a mount namespace of its own, in which every user may open /dev/fuse.

    ``work`` gets a folder that every user can access. Programs that the thread starts are in its namespace, too.
    """
    failure: list[BaseException] = []

    def run() -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="fffs-test-", ignore_cleanup_errors=True) as name:
                os.chmod(name, 0o777)
                device = Path(name, "device")
                assert libc.unshare(0x00020000) == 0, os.strerror(ctypes.get_errno())  # CLONE_NEWNS
                subprocess.run(["mount", "--make-rprivate", "/"], check=True)
                os.mknod(device, 0o666 | stat.S_IFCHR, os.stat("/dev/fuse").st_rdev)
                os.chmod(device, 0o666)
                subprocess.run(["mount", "--bind", device, "/dev/fuse"], check=True)
                try:
                    work(Path(name))
                finally:
                    detach_all(Path(name))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]


# ---------------------------------------------------------------- looking at trees


def describe(folder: Path) -> dict[bytes, tuple[Any, ...]]:
    """Return everything that a packed folder stores, by relative path."""
    root = os.fsencode(folder)
    return {path[len(root) :]: _describe(path) for path in [root, *_walk(root)]}


def _walk(folder: bytes) -> Iterator[bytes]:
    for entry in os.scandir(folder):
        yield entry.path
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path)


def _describe(path: bytes) -> tuple[Any, ...]:
    status = os.lstat(path)
    content: Any = None
    if stat.S_ISREG(status.st_mode):
        content = Path(os.fsdecode(path)).read_bytes()
        assert len(content) == status.st_size
    elif stat.S_ISLNK(status.st_mode):
        content = os.readlink(path)
        # Linux ignores the modes of symbolic links.
    else:
        content = sorted(os.listdir(path))
    return status.st_mode, status.st_mtime_ns, status.st_nlink, content


def list_from(fd: int, offset: int, size: int = 32768) -> list[tuple[bytes, int, int]]:
    """Return (name, inode, offset after it) of directory entries from an offset on: one getdents64(2) after a seek."""
    os.lseek(fd, offset, os.SEEK_SET)
    buffer = ctypes.create_string_buffer(size)
    length = libc.getdents64(fd, buffer, size)
    if length < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    entries, at = [], 0
    while at < length:
        inode, after, record = struct.unpack_from("<QqH", buffer.raw, at)
        name = buffer.raw[at + 19 : at + record].split(b"\0", 1)[0]
        entries.append((name, inode, after))
        at += record
    return entries
