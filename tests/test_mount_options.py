"""Mount options, and what mount(8) and the kernel's tables make of them. Nothing here mounts."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import fffs.mount
from fffs.errors import UsageError
from fffs.mount import MountOptions, mounts
from fffs.mount.job import Job, make_job
from fffs.mount.options import parse


def test_options_in_mount_style() -> None:
    assert parse([]) == MountOptions()
    assert parse(["allow_other,uid=1000", "gid=5,verify=off,"]) == MountOptions(
        verify=False, allow_other=True, uid=1000, gid=5
    )
    assert parse(["verify=off,verify=on"]).verify, "the later one wins"
    assert parse(["umask=027,noexec,suffix=.jpg,nonempty"]) == MountOptions(
        umask=0o27, noexec=True, suffix=".jpg", nonempty=True
    )
    assert parse(["format=bag"]).format == "bag"


def test_what_fstab_passes_is_accepted() -> None:
    line = "defaults,noatime,nodev,nosuid,auto,noauto,user,user=me,_netdev,nofail,x-systemd.automount,x-gvfs-show,ro"
    assert parse([line]) == MountOptions()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("nonsense", "-o nonsense: no such option; there are allow_other, .*verify=on|off, uid=N"),
        ("rw", "read-only"),
        ("suid", "-o suid: a mount is always nosuid"),
        ("dev", "-o dev: a mount is always nodev"),
        ("remount", "unmount it"),
        ("auto_unmount", "fffs umount"),
        ("verify=maybe", "on or off"),
        ("verify", "verify="),
        ("allow_other=1", "write it as allow_other"),
        ("uid=me", "must be a number"),
        ("uid=-1", "must be a number"),
        ("gid=4294967295", "must be a number"),
        ("umask=999", "octal"),
        ("log=", "must be a file"),
        ("format=zip", "no format 'zip'; there are ffrecord, tfrecord, ofrecord, bag"),
    ],
)
def test_wrong_options_are_named(option: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse([option])


def test_a_job_survives_the_way_to_the_daemon(tmp_path: Path) -> None:
    job = make_job([b"/a/\xff.ffr", "b c.ffr"], tmp_path / "m \n", MountOptions(uid=3, suffix=".x"), debug=True)
    assert Job.decode(job.encode()) == job
    assert job.sources[0] == "/a/\udcff.ffr" and job.sources[1].startswith("/")
    assert job.options.suffix == ".x"


def test_the_name_of_many_sources_fits_the_kernels_table(tmp_path: Path) -> None:
    job = make_job([f"/{'x' * 200}/{k}" for k in range(100)], tmp_path, MountOptions())
    assert len(job.name) < 1000 and job.name.startswith(job.sources[0])


def read_table(content: bytes) -> list[mounts.Mount]:
    with tempfile.TemporaryFile() as table:
        table.write(content)
        table.flush()
        return list(mounts.read_table(table.fileno()))


LINE = rb"57 29 0:52 / /a\040b\134c\011d rw,nosuid shared:1 master:2 - fuse.fffs /x\040y.ffr ro,user_id=0" + b"\n"
MOUNT = mounts.Mount("57", "0:52", "/a b\\c\td", "fuse.fffs", "/x y.ffr")


def test_mountinfo_escapes() -> None:
    assert read_table(LINE) == [MOUNT]
    assert MOUNT.ours


def test_mountinfo_says_which_file_systems_are_writable() -> None:
    writable = LINE.replace(b" ro,", b" rw,").replace(b" rw,nosuid", b" ro,nosuid")
    assert [mount.writable for mount in read_table(LINE + writable)] == [False, True]


# What ends a line, or separates words, for Python but not for the kernel; and bytes of no encoding.
@pytest.mark.parametrize(
    "odd", ["\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\xa0", "\u2028", "\udcff", " - "]
)
def test_only_a_newline_ends_a_line_of_mountinfo(odd: str) -> None:
    escaped = os.fsencode(odd).replace(b" ", rb"\040")
    (stranger, ours) = read_table(LINE.replace(b"y.ffr", b"y" + escaped + b".ffr") + LINE)
    assert (stranger.source, ours) == (f"/x y{odd}.ffr", MOUNT)


@pytest.mark.parametrize(
    "line", [b"", b"57", b"57 29 0:52 / /a rw", b"57 29 0:52 / /a rw - ext4", b"a b c d e f g h - i"]
)
def test_a_line_of_mountinfo_that_is_none_is_left_out(line: bytes) -> None:
    assert read_table(line + b"\n" + LINE + line) == [MOUNT]


def test_the_root_is_mounted() -> None:
    found = mounts.mount_at("/")
    assert found is not None and not found.ours


def test_options_of_the_context_manager_are_checked() -> None:
    with pytest.raises(UsageError, match="no_such"), fffs.mount.mounted("x", no_such=1):
        pass


def test_the_helper_refuses_what_it_does_not_understand() -> None:
    for argv in (["only-a-source"], ["a", "b", "--what"], ["a", "b", "-o", "nonsense"]):
        with pytest.raises(UsageError):
            fffs.mount.helper(argv)
    assert fffs.mount.helper(["a", "b", "-f", "-s", "-n", "-v", "-o", "rw,nonsense"]) == 0


def test_the_package_is_imported_without_pyfuse3() -> None:
    code = (
        "import sys; sys.modules['pyfuse3'] = sys.modules['trio'] = None\n"
        "import fffs.mount\n"
        "try:\n    fffs.mount.mount('x', '/nowhere', foreground=True)\n"
        "except fffs.errors.MountError as error:\n    print(error)"
    )
    assert "pip install 'fffs[mount]'" in subprocess.check_output([sys.executable, "-c", code], text=True)


@pytest.mark.parametrize(("source", "mountpoint", "what"), [("", "m", "a source"), ("x.ffr", "", "the mount point")])
def test_an_empty_name_is_not_the_current_folder(source: str, mountpoint: str, what: str) -> None:
    with pytest.raises(UsageError, match=f"^the name of {what} is empty$"):
        make_job(source, mountpoint, MountOptions())
