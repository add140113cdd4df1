"""Mounts over, beneath and beside ours, in an order that the table of mounts does not show."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import pack_small_folder
from inside import mount_at
from mounting import Mounts, in_namespace, is_mounted, libc, mounts_below, run_fffs

from fffs.errors import MountError
from fffs.mount import umount

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root has a mount namespace of its own"),
]

# System calls, with the same numbers on all architectures; <linux/mount.h>.
MOVE_MOUNT, FSOPEN, FSCONFIG, FSMOUNT = 429, 430, 431, 432
AT_FDCWD, FSCONFIG_SET_STRING, FSCONFIG_CMD_CREATE, FROM_EMPTY_PATH, BENEATH = -100, 1, 6, 4, 0x200


End = Callable[[Path, int], None]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A packed folder with one small file."""
    return pack_small_folder(tmp_path)


def mount_tmpfs(path: Path) -> None:
    path.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "strange", path], check=True)
    (path / "kept").write_text("by others")


def move(old: Path, new: Path) -> None:
    subprocess.run(["mount", "--move", old, new], check=True)


@pytest.fixture(params=["umount", "signal"])
def end(request: pytest.FixtureRequest, mounts: Mounts) -> End:
    """Ends a mount in one of two ways. code: the exit code of ``fffs umount``."""

    def end_it(path: Path, code: int = 0) -> None:
        if request.param == "umount":
            text = run_fffs("umount", path, code=code)
            if code:
                return
            assert text == ""
        else:
            mounts.daemon.kill(signal.SIGTERM)
        assert mounts.daemon.wait()

    return end_it


def test_an_older_mount_that_was_moved_over_ours_stays(source: Path, mounts: Mounts, end: End) -> None:
    def work(folder: Path) -> None:
        mount_tmpfs(folder / "old")
        path = mounts(source, at=folder / "m")
        move(folder / "old", path)
        mounts.daemon.expect(f"ERROR .*{re.escape(str(path))}: it is still mounted there, below strange")
        end(path, MountError.exit_code)
        assert (path / "kept").read_text() == "by others"
        subprocess.run(["umount", path], check=True)
        run_fffs("umount", path)

    in_namespace(work)


def test_an_older_mount_of_ours_that_was_moved_over_another_stays(source: Path, mounts: Mounts) -> None:
    def work(folder: Path) -> None:
        old, path = mounts(source, at=folder / "old"), folder / "m"
        path.mkdir()
        first = mounts.daemon
        mounts(source, at=path)
        move(old, path)
        mounts.daemon.expect("ERROR .*: it is still mounted there, below ")
        mounts.daemon.kill(signal.SIGTERM)
        assert mounts.daemon.wait() and not first.wait(0)
        assert (path / "file").read_text() == "content"
        umount(path)
        assert first.wait(0) and mounts_below(folder) == [str(path)]
        umount(path)

    in_namespace(work)


def put_beneath(path: Path) -> None:
    """Mount a tmpfs beneath the mount at a path. Skips the test before Linux 6.5."""
    made = libc.syscall(FSOPEN, b"tmpfs", 0)
    libc.syscall(FSCONFIG, made, FSCONFIG_SET_STRING, b"source", b"strange", 0)
    libc.syscall(FSCONFIG, made, FSCONFIG_CMD_CREATE, None, None, 0)
    mount = libc.syscall(FSMOUNT, made, 0, 0)
    try:
        if libc.syscall(MOVE_MOUNT, mount, b"", AT_FDCWD, os.fsencode(path), FROM_EMPTY_PATH | BENEATH) != 0:
            pytest.skip("this kernel puts no mount beneath another")
    finally:
        os.close(mount)
        os.close(made)


def test_a_mount_with_a_newer_one_beneath_it_is_unmounted(source: Path, mounts: Mounts, end: End) -> None:
    def work(folder: Path) -> None:
        path = mounts(source, at=folder / "m")
        put_beneath(path)
        end(path, 0)
        left = mount_at(str(path))
        assert left is not None and left.source == "strange" and mounts_below(folder) == [str(path)]

    in_namespace(work)


def test_a_mount_below_a_disk_that_was_mounted_later_is_said_to_be_hidden(
    source: Path, mounts: Mounts, end: End
) -> None:
    def work(folder: Path) -> None:
        path = folder / "above" / "m"
        path.mkdir(parents=True)
        mounts(source, at=path)
        mount_tmpfs(path.parent)
        hidden = (
            f"it is still mounted there, below strange (tmpfs) on {path.parent}; unmount that, and then: fffs umount"
        )
        with pytest.raises(MountError, match=re.escape(hidden)):
            umount(path)
        mounts.daemon.expect(r"ERROR .*: it is still mounted there, below strange \(tmpfs\);")
        mount_tmpfs(path)
        end(path, MountError.exit_code)
        assert (path / "kept").read_text() == "by others"
        subprocess.run(["umount", path], check=True)
        subprocess.run(["umount", path.parent], check=True)
        run_fffs("umount", path)

    in_namespace(work)


def test_a_mount_in_a_shared_folder_that_is_bound_elsewhere_is_unmounted_there_too(
    source: Path, mounts: Mounts, end: End
) -> None:
    def work(folder: Path) -> None:
        mount_tmpfs(folder / "shared")
        subprocess.run(["mount", "--make-shared", folder / "shared"], check=True)
        (folder / "bound").mkdir()
        subprocess.run(["mount", "--bind", folder / "shared", folder / "bound"], check=True)
        path = mounts(source, at=folder / "shared" / "m")
        assert is_mounted(folder / "bound" / "m")
        end(path, 0)
        assert mounts.daemon.wait(0)
        assert not path.exists() and not is_mounted(folder / "bound" / "m")

    in_namespace(work)


def test_what_others_mount_in_place_of_ours_stays(source: Path, mounts: Mounts) -> None:
    """The kernel gives the new mount the numbers of the old one, while the daemon is stopped."""

    def work(folder: Path) -> None:
        path = mounts(source, at=folder / "m")
        mounts.daemon.kill(signal.SIGSTOP)
        subprocess.run(["umount", "--lazy", "-c", path], check=True)
        mount_tmpfs(path)
        mounts.daemon.kill(signal.SIGCONT)
        assert mounts.daemon.wait()
        assert (path / "kept").read_text() == "by others"
        subprocess.run(["umount", path], check=True)

    in_namespace(work)
