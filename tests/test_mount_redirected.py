"""Mounts of root below folders of a user who exchanges one of them for a symbolic link between a check and its call."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from inside import MountPoint, mount_at, mount_kernel
from inside import mounts as mount_table
from mounting import Mounts, detach_all, in_namespace, libc, mounts_below

import fffs
from fffs.errors import MountError
from fffs.mount import umount

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.skipif(os.geteuid() != 0, reason="fusermount3 checks what other users mount"),
]

REDIRECTED = """
import os, signal, sys
from pathlib import Path
from fffs.mount import MountOptions
from fffs.mount.daemon import kernel_mount, session
from fffs.mount.daemon.job import make_job
from fffs.mount.system import erofs, kernel

pack, home, victim, way = map(Path, sys.argv[1:])

def redirected(*arguments):
    if way.name != "kernel" or arguments[0] == erofs._MOVE_MOUNT:
        os.rename(home / "d", home / "e")
        os.symlink(victim, home / "d")
    return original(*arguments)

def end():
    print(*(line.split()[4] for line in open("/proc/self/mountinfo") if str(home.parent) in line))
    signal.raise_signal(signal.SIGTERM)

if way.name == "kernel":
    original, erofs._call = erofs._call, redirected
    kernel_mount.hold(make_job(pack, home / "d" / "m", MountOptions(kernel=True)), end, [])
else:
    original, kernel._mount = kernel._mount, redirected
    session.serve(make_job(pack, home / "d" / "m", MountOptions()), end)
"""


# A kernel whose fdinfo does not show the number of a connection.
UNTOLD = """
from fffs.mount.system import place
place._device = lambda fuse: ""
"""

AS_USER = """
import os, signal, sys
from fffs.mount import MountOptions
from fffs.mount.daemon import session
from fffs.mount.daemon.job import make_job

user, path, *sources = sys.argv[1:]
if int(user):
    os.setgroups([])
    os.setgid(int(user))
    os.setuid(int(user))

def end():
    print("mounted" if os.path.ismount(path) else "not mounted")
    signal.raise_signal(signal.SIGTERM)

session.serve(make_job(sources, path, MountOptions()), end)
"""

NAMES = (b"a b,c", b"back\\slash\\", b"new\nline", b"tab\t#hash", b"cr\r", b"not UTF-8 \xff\xfe", b"x" * 240, b"-=")


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """The folder of a user, with a folder d/m; and another folder, with m, which is not empty."""
    home, victim = tmp_path / "home", tmp_path / "victim"
    for path in (home / "d" / "m", victim / "m"):
        path.mkdir(parents=True)
    (victim / "m" / "passwd").write_text("root")
    yield home, victim
    detach_all(tmp_path)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "passwd").write_text("user")
    fffs.pack_folder(tmp_path / "source", tmp_path / "a.ffr", align=True)
    return tmp_path / "a.ffr"


@pytest.mark.parametrize("way", ["daemon", "kernel"])
def test_a_mount_appears_on_the_folder_that_was_examined(way: str, source: Path, folders: tuple[Path, Path]) -> None:
    home, victim = folders
    command = [sys.executable, "-c", REDIRECTED, source, home, victim, way]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == f"{home}/e/m\n", done.stderr
    assert (victim / "m" / "passwd").read_text() == "root"
    assert mounts_below(home.parent) == [], "it was found where it is"


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("after", ["cover_of", "number_below"])
def test_another_mount_is_not_unmounted(
    after: str, lazy: bool, source: Path, folders: tuple[Path, Path], mounts: Mounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, victim = folders
    path = mounts(source, at=home / "d" / "m")
    subprocess.run(["mount", "-t", "tmpfs", "other", victim / "m"], check=True)
    look: Callable[..., Any] = getattr(mount_kernel, after)

    def redirected(*arguments: Any) -> Any:
        found = look(*arguments)
        if not (home / "e").exists():
            os.rename(home / "d", home / "e")
            os.symlink(victim, home / "d")
        return found

    monkeypatch.setattr(mount_kernel, after, redirected)
    umount(path, lazy)
    assert mount_at(f"{home}/e/m") is None
    other = mount_at(f"{victim}/m")
    assert other is not None and other.type == "tmpfs"


@pytest.mark.parametrize("missing", ["new", "new/deep/er"])
def test_a_missing_mount_point_is_not_created_elsewhere(
    missing: str, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, victim = folders
    make = os.mkdir

    def redirected(*arguments: Any, **options: Any) -> None:
        if not (home / "e").exists():
            os.rename(home / "d", home / "e")
            os.symlink(victim, home / "d")
        make(*arguments, **options)

    monkeypatch.setattr(os, "mkdir", redirected)
    point = None
    with contextlib.suppress(MountError):
        point = MountPoint(f"{home}/d/{missing}")
        with point.examined():
            raise AssertionError
    if point:
        point.remove()
    assert sorted(os.listdir(victim)) == ["m"]


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EINVAL, errno.EPERM])
def test_root_unmounts_where_the_system_has_or_allows_no_statx(
    number: int, source: Path, mounts: Mounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EINVAL: glibc emulates it, without the flags."""
    path = mounts(source)

    class WithoutStatx:
        def __getattr__(self, name: str) -> Any:
            return getattr(libc, name)

        def statx(self, *_: Any) -> int:
            ctypes.set_errno(number)
            return -1

    monkeypatch.setattr(mount_table, "_libc", WithoutStatx())
    monkeypatch.setenv("PATH", "")  # without fusermount3
    umount(path)
    assert mount_at(str(path)) is None


def test_a_link_above_a_mount_point_that_appears_while_the_mount_is_prepared_is_refused(
    source: Path, folders: tuple[Path, Path]
) -> None:
    home, _ = folders
    (home / "empty" / "m").mkdir(parents=True)
    code = REDIRECTED.replace(
        "kernel._mount = kernel._mount", "session.MountPoint.__init__ = session.MountPoint.__init__"
    )
    command = [sys.executable, "-c", code, source, home, home / "empty", "daemon"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "MountError" in done.stderr and f"{home}/d/m: moved or removed while the mount was prepared" in done.stderr
    assert mounts_below(home.parent) == []


@pytest.mark.parametrize("user", [0, 65534])
def test_a_daemon_finds_its_mount_where_the_kernel_does_not_tell_its_number(user: int) -> None:
    """It compares the source in the table of mounts, where fusermount3 and the kernel both escape characters."""

    def work(folder: Path) -> None:
        (folder / "source").mkdir()
        for name in NAMES:
            pack, path = os.fsdecode(os.path.join(os.fsencode(folder), name + b".ffr")), folder / "m"
            fffs.pack_folder(folder / "source", pack)
            command = [sys.executable, "-c", UNTOLD + AS_USER, str(user), path, pack]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert (done.stdout, done.returncode) == ("mounted\n", 0), (name, done.stderr)
            assert not path.exists(), "it is unmounted, and the folder was made for the mount"
            os.unlink(pack)

    in_namespace(work)


def test_another_mount_is_not_taken_for_its_own_where_the_kernel_does_not_tell_the_number(
    source: Path, folders: tuple[Path, Path]
) -> None:
    home, victim = folders
    subprocess.run(["mount", "-t", "tmpfs", "other", victim / "m"], check=True)
    command = [sys.executable, "-c", UNTOLD + REDIRECTED, source, home, victim, "daemon"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "MountError" in done.stderr and "others moved a folder above it meanwhile" in done.stderr
    other = mount_at(f"{victim}/m")
    assert other is not None and other.type == "tmpfs"
