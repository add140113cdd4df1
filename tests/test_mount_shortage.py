"""Daemons of an ordinary user, which need fusermount3 to unmount, where descriptors or processes are lacking."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mounting import in_namespace, is_mounted, pack_files

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
    pytest.mark.skipif(shutil.which("fusermount3") is None, reason="there is no fusermount3"),
]

NOBODY = 65534
USER = """
import errno, os, resource, subprocess, sys
from fffs.base.descriptors import memory_file
from fffs.mount import MountOptions
from fffs.mount.__main__ import main
from fffs.mount.daemon import session
from fffs.mount.daemon.job import make_job

def refuse(command, *arguments, real=subprocess.run, **options):
    global refused
    if "-u" in command and refused:
        refused -= 1
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), command[0])
    return real(command, *arguments, **options)

user, descriptors, refused = map(int, sys.argv[1:4])
source, mountpoint, log = sys.argv[4:]
subprocess.run = refuse
job = memory_file("job")
os.write(job, make_job(source, mountpoint, MountOptions(log=log)).encode().encode())
os.setgroups([])
os.setgid(user)
os.setuid(user)
resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
sys.argv[1:] = [mountpoint, f"--job={job}", f"--report={os.dup(1)}"]
sys.exit(main())
"""


class UserDaemon:
    """A daemon of an ordinary user. ``error``: why it did not mount, or None.

    descriptors: how many it may have. refused: how often the system refuses to start a process that unmounts.
    """

    def __init__(self, folder: Path, descriptors: int = 256, refused: int = 0) -> None:
        self.path, self._log = folder / "m", folder / "log"
        self._log.unlink(missing_ok=True)
        arguments = [NOBODY, descriptors, refused, folder / "f.ffr", self.path, self._log]
        command = [sys.executable, "-c", USER, *map(str, arguments)]
        # Without the development mode, in which trio reports the files that it opened at its start.
        environment = os.environ | {"PYTHONDEVMODE": "", "PYTHONWARNINGS": ""}
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        assert self._process.stdout
        self.error: Any = pickle.load(self._process.stdout)

    def end(self) -> str:
        """End it. It must leave no mount. Returns its log."""
        if self.error is None:
            self._process.send_signal(signal.SIGTERM)
        self._process.communicate(timeout=60)
        text = self._log.read_text() if self._log.exists() else ""
        assert not is_mounted(self.path), text
        return text


def public_pack(folder: Path) -> None:
    pack_files(folder / "f", a=b"content").chmod(0o644)


def test_a_daemon_that_lacks_descriptors_leaves_no_mount() -> None:
    def work(folder: Path) -> None:
        public_pack(folder)
        errors = []
        for descriptors in range(14, 36, 3):
            daemon = UserDaemon(folder, descriptors)
            text = daemon.end()
            assert not daemon.path.exists()
            assert daemon.error or f"{daemon.path}: unmounted" in text
            errors.append(daemon.error and str(daemon.error))
        assert errors[0], "these are too few"
        assert errors[-1] is None, "these are enough"
        assert all("Too many open files; allow this process more" in error for error in errors if error)

    in_namespace(work)


@pytest.mark.parametrize("refused", [1, 2])
def test_a_daemon_that_may_start_no_process_leaves_no_mount(refused: int) -> None:
    """It tries again when its threads have ended, and becomes fusermount3 at last, which removes no folder."""

    def work(folder: Path) -> None:
        public_pack(folder)
        daemon = UserDaemon(folder, refused=refused)
        assert daemon.error is None
        text = daemon.end()
        assert f"{daemon.path}: cannot unmount: fusermount3: the system refuses to start a process; allow" in text
        assert (f"{daemon.path}: unmounted" in text) == (refused == 1)
        assert (f"{daemon.path}: still mounted, without a daemon" in text) == (refused == 2)
        assert (f"{daemon.path}: fusermount3 takes the place of the daemon" in text) == (refused == 2)
        assert daemon.path.exists() == (refused == 2)

    in_namespace(work)
