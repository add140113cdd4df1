"""Mount options, and what mount(8) and the kernel's tables make of them. Nothing here mounts."""

from __future__ import annotations

import subprocess
import sys
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


def test_mountinfo_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    line = r"57 29 0:52 / /a\040b\134c\011d rw,nosuid shared:1 master:2 - fuse.fffs /x\040y.ffr ro,user_id=0" + "\n"
    mount = mounts._parse(line)
    assert mount == mounts.Mount("57", "0:52", "/a b\\c\td", "fuse.fffs", "/x y.ffr")
    assert mount.ours


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
