"""Mount options, and the formats of mount(8) and of the kernel's tables. Nothing is mounted here."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from inside import MOUNT_POINT_MARK as MARK
from inside import Job, MountPoint, make_job, mounts, remove_left
from inside import parse_options as parse

import fffs.mount
from fffs.errors import MountError, UsageError
from fffs.mount import MountOptions


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
        ("umask=1000", "octal"),
        ("umask=7_7", "octal"),
        ("umask=-0", "octal"),
        ("umask=", "octal"),
        ("uid=007", "must be a number, as `id` shows it"),
        ("uid=" + "9" * 5000, "must be a number"),
        ("threads=1025", "-o threads=1025: must be a number from 0 to 1024"),
        ("threads=4294967294", "from 0 to 1024"),
        ("readahead=4294967294", "from 0 to 1048576"),
        ("log=", "must be a file"),
        ("format=zip", "no format 'zip'; choose one of ffrecord, bag, ofrecord, tfrecord"),
    ],
)
def test_wrong_options_are_named(option: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse([option])


@pytest.mark.parametrize(
    ("option", "value"), [("threads", 1025), ("threads", "4"), ("readahead", -1), ("uid", 2**32 - 1), ("umask", -1)]
)
def test_wrong_numbers_are_refused_in_programs_too(option: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"^{option}={value}: must be "), fffs.mount.mounted("x", **{option: value}):
        pass


def test_the_largest_numbers_are_accepted() -> None:
    assert parse(["threads=1024,readahead=1048576,uid=4294967294,umask=0777,gid=0"]) == MountOptions(
        threads=1024, readahead=1 << 20, uid=2**32 - 2, umask=0o777, gid=0
    )


def test_a_job_survives_the_way_to_the_daemon(tmp_path: Path) -> None:
    job = make_job([b"/a/\xff.ffr", "b c.ffr"], tmp_path / "m \n", MountOptions(uid=3, suffix=".x"), debug=True)
    assert Job.decode(job.encode()) == job
    assert job.sources[0] == "/a/\udcff.ffr" and job.sources[1].startswith("/")
    assert job.options.suffix == ".x"


def test_the_name_of_many_sources_fits_the_kernels_table(tmp_path: Path) -> None:
    job = make_job([f"/{'x' * 200}/{k}" for k in range(100)], tmp_path, MountOptions())
    assert len(job.name) < 1000 and job.name.startswith(job.sources[0])


def read_table(content: bytes, device: str | None = None) -> list[mounts.Mount]:
    with tempfile.TemporaryFile() as table:
        table.write(content)
        table.flush()
        return mounts.read_table(table.fileno(), device)


LINE = rb"57 29 0:52 / /a\040b\134c\011d rw,nosuid shared:1 master:2 - fuse.fffs /x\040y.ffr ro,user_id=0" + b"\n"
MOUNT = mounts.Mount("57", "0:52", "/a b\\c\td", "fuse.fffs", "/x y.ffr")


def test_mountinfo_escapes() -> None:
    assert read_table(LINE) == [MOUNT]
    assert MOUNT.ours


def test_mountinfo_says_which_file_systems_are_writable() -> None:
    writable = LINE.replace(b" ro,", b" rw,").replace(b" rw,nosuid", b" ro,nosuid")
    assert [mount.writable for mount in read_table(LINE + writable)] == [False, True]


# Characters that separate lines or words for Python but not for the kernel, and invalid UTF-8.
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


def test_the_mounts_of_others_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be thousands, and a daemon reads the table whenever one of them changes."""
    parse, parsed = mounts._parse, []
    monkeypatch.setattr(mounts, "_parse", lambda line: parsed.append(line) or parse(line))
    others = b"".join(LINE.replace(b" 0:52 ", b" 0:%d " % number) for number in range(520, 620))
    misleading = LINE.replace(b" 0:52 ", b" 0:9 ").replace(b"ro,user_id", b"0:52 ro,user_id")
    assert read_table(others + LINE + misleading, "0:52") == [MOUNT]
    assert parsed == [line[:-1] for line in (LINE, misleading)]


def test_two_threads_do_not_read_the_same_table_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel would start over for each of them, and return lines twice or not at all."""
    pread, alone = os.pread, []

    def reading(*arguments: int) -> bytes:
        alone.append(mounts._reading.locked())
        return pread(*arguments)

    monkeypatch.setattr(os, "pread", reading)
    assert read_table(LINE) == [MOUNT]
    assert alone == [True, True]
    mounts.mount_at("/")
    assert alone[2:] and not any(alone[2:]), "a table of its own needs no lock, which a child of fork may find taken"


def test_mounts_that_change_all_the_time_are_not_looked_at_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    readonly = pytest.importorskip("fffs.mount.daemon.readonly", exc_type=MountError)
    events: list[str] = []

    async def sleep(seconds: float) -> None:
        assert 0 < seconds <= 0.1, "nor is it writable for long"
        events.append("pause")

    def wait(*_: int) -> None:
        if events.count("pause") == 3:
            raise TimeoutError

    monkeypatch.setattr(readonly.trio, "sleep", sleep)
    monkeypatch.setattr(readonly, "_wait", wait)
    monkeypatch.setattr(readonly, "is_writable", lambda *_: events.append("look"))
    with pytest.raises(TimeoutError):
        readonly.trio.run(readonly._watch, "/m", -1, "0:52", "x.ffr", False)
    assert events == ["look", "pause"] * 3


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("fuse.fffs x.ffr", "rw", True),
        ("fuse.fffs x.ffr", "ro", False),
        ("fuse.fffs y.ffr", "rw", False),
        ("tmpfs x.ffr", "rw", False),
    ],
)
def test_only_our_own_file_system_is_seen_to_be_writable(
    tmp_path: Path, kind: str, options: str, expected: bool
) -> None:
    """After an unmount, the number of its device may soon belong to any other file system."""
    readonly = pytest.importorskip("fffs.mount.daemon.readonly", exc_type=MountError)
    (tmp_path / "table").write_text(f"36 35 0:52 / /m rw,noatime - {kind} {options}\n")
    with (tmp_path / "table").open("rb") as table:
        assert readonly.is_writable(table.fileno(), "0:52", "x.ffr") is expected


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
    with pytest.raises(UsageError, match="another namespace; run mount in that"):
        fffs.mount.helper(["a", "b", "-N", "/proc/1/ns/mnt"])
    assert fffs.mount.helper(["a", "b", "-f", "-s", "-n", "-v", "-o", "rw,nonsense"]) == 0


def test_the_package_is_imported_without_pyfuse3() -> None:
    code = (
        "import sys; sys.modules['pyfuse3'] = sys.modules['trio'] = None\n"
        "import fffs.mount\n"
        "try:\n    fffs.mount.mount('x', '/nowhere', foreground=True)\n"
        "except fffs.errors.MountError as error:\n    print(error)"
    )
    said = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert said.startswith("mounting needs pyfuse3 and trio, and pyfuse3 is missing: ")
    assert "python3-pyfuse3" in said and "pip install 'fffs[mount]'" in said
    assert said.count("\n") == 1


def test_a_pyfuse3_whose_library_is_gone_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "pyfuse3.py").write_text("raise ImportError('libfuse3.so.3: cannot open shared object file')")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import fffs.mount\n"
        "try:\n    fffs.mount.mount('x', '/nowhere', foreground=True)\n"
        "except fffs.errors.MountError as error:\n    print(error)"
    )
    said = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert said.startswith("mounting needs pyfuse3, which cannot be imported (libfuse3.so.3: cannot open ")
    assert "python3-pyfuse3" in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--help"], ""),
        (["mount", "-o", "threads=1", "/nowhere.ffr", "/nowhere"], "fffs: /nowhere.ffr: no such file\n"),
        (["umount", "/nowhere"], "fffs: /nowhere: no such folder\n"),
        (["mount", "-o", "verify=maybe", "/a", "/b"], "fffs: -o verify=maybe: must be on or off\n"),
    ],
)
def test_mounting_and_unmounting_start_without_numpy(arguments: list[str], error: str) -> None:
    """The daemon imports it; the process that starts the daemon has no use for it."""
    code = "import sys; sys.modules['numpy'] = None\nfrom fffs.cli.program import main\nmain()"
    result = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert result.stderr == error


@pytest.mark.parametrize(("source", "mountpoint", "what"), [("", "m", "a source"), ("x.ffr", "", "the mount point")])
def test_an_empty_name_is_not_the_current_folder(source: str, mountpoint: str, what: str) -> None:
    with pytest.raises(UsageError, match=f"^the name of {what} is empty$"):
        make_job(source, mountpoint, MountOptions())


# ---------------------------------------------------------------- the mount point


def mark(path: Path) -> None:
    """Mark a folder as fffs marks those that it creates for mounts."""
    status = path.stat()
    os.setxattr(path, MARK, b"%d:%d" % (status.st_dev, status.st_ino))


class Others:
    """Other processes that make or remove folders at the moment when fffs makes one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, acts: dict[Path, Callable[[], object]]) -> None:
        self._mkdir, self._acts = os.mkdir, acts
        monkeypatch.setattr(os, "mkdir", self.mkdir)

    def mkdir(self, name: str, mode: int, dir_fd: int) -> None:
        if act := self._acts.pop(Path(os.readlink(f"/proc/self/fd/{dir_fd}"), name), None):
            act()
        self._mkdir(name, mode, dir_fd=dir_fd)

    def make(self, path: Path) -> None:
        """Make a folder as for a mount of another process."""
        self._mkdir(path, 0o755)
        mark(path)


def test_somebody_else_makes_the_folders_above_at_the_same_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    above, theirs = tmp_path / "above", tmp_path / "above" / "theirs"
    others = Others(monkeypatch, {above: lambda: (others.make(above), others.make(theirs))})
    point = MountPoint(str(above / "point"))
    assert (above / "point").is_dir()
    point.remove()
    assert os.listdir(above) == ["theirs"], "theirs is not empty yet"
    remove_left(str(theirs))
    assert not above.exists()


def test_the_last_mount_below_a_folder_that_was_made_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    above, theirs = tmp_path / "above", tmp_path / "above" / "theirs"
    others = Others(monkeypatch, {above: lambda: (others.make(above), others.make(theirs))})
    point = MountPoint(str(above / "point"))
    remove_left(str(theirs))
    assert above.exists()
    point.remove()
    assert not above.exists()


def test_a_folder_of_somebody_else_stays_although_it_was_made_at_the_same_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    above = tmp_path / "above"
    Others(monkeypatch, {above: lambda: subprocess.run(["mkdir", above], check=True)})
    MountPoint(str(above / "point")).remove()
    assert os.listdir(above) == []


def test_a_folder_above_is_removed_before_the_mount_point_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    above = tmp_path / "above"
    Others(monkeypatch, {above / "point": above.rmdir})
    point = MountPoint(str(above / "point"))
    assert (above / "point").is_dir()
    point.remove()
    assert not above.exists()


def test_a_mount_point_that_somebody_else_makes_at_the_same_moment_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "point"
    Others(monkeypatch, {path: lambda: subprocess.run(["mkdir", "-p", path / "content"], check=True)})
    with pytest.raises(MountError, match="not empty"):
        MountPoint(str(path))
    assert os.listdir(path) == ["content"]


def test_a_mount_point_that_another_process_uses_stays(tmp_path: Path) -> None:
    path = tmp_path / "above" / "point"
    first, second = MountPoint(str(path)), MountPoint(str(path))
    remove_left(str(path))
    first.remove()
    assert path.is_dir()
    second.remove()
    assert not path.parent.exists()
    MountPoint(str(path)).remove()


def test_nothing_is_removed_from_a_file_system_that_other_machines_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do not see the locks."""
    path = tmp_path / "above" / "point"
    point = MountPoint(str(path))
    monkeypatch.setattr("fffs.mount.system.mountpoint.is_of_this_machine", lambda _: False)
    point.remove()
    MountPoint(str(path)).remove()
    remove_left(str(path))
    assert path.is_dir()


def test_nothing_is_opened_where_nothing_can_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of autofs, that would mount again what has just been unmounted."""
    opened: list[str] = []
    real = os.open

    def note(path: str, *args: int, **kwargs: int) -> int:
        opened.append(path)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", note)
    remove_left("/proc/self")
    assert "/proc" in opened
    assert "self" not in opened
    remove_left(str(tmp_path))
    assert tmp_path.name in opened


def test_a_copy_of_a_mount_point_that_was_left_is_not_removed(tmp_path: Path) -> None:
    left, copy = tmp_path / "left", tmp_path / "copy"
    left.mkdir()
    mark(left)
    copy.mkdir()
    os.setxattr(copy, MARK, os.getxattr(left, MARK))  # as cp -a does
    for path in (left, copy):
        MountPoint(str(path)).remove()
        remove_left(str(path))
    assert os.listdir(tmp_path) == ["copy"]


def test_a_folder_that_replaced_one_that_was_made_stays(tmp_path: Path) -> None:
    """It often gets the inode number of the folder that was removed."""
    path = tmp_path / "above" / "point"
    point = MountPoint(str(path))
    point.remove()
    path.parent.mkdir()
    point.remove()
    assert path.parent.is_dir()


def test_a_mount_point_that_cannot_be_marked_is_removed_by_the_process_that_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    path = tmp_path / "above" / "point"
    monkeypatch.setattr(os, "setxattr", fail)
    point = MountPoint(str(path))
    remove_left(str(path))
    assert path.is_dir()
    point.remove()
    assert not path.parent.exists()


def test_a_folder_that_somebody_has_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every user may lock a folder, which prevents no mount. A removal by fffs does not take long."""
    monkeypatch.setattr("fffs.mount.system.mountpoint.PAUSE_SECONDS", 0.0)
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        MountPoint(str(tmp_path)).close()
        mark(tmp_path)
        MountPoint(str(tmp_path)).close()
    finally:
        os.close(fd)


def test_only_a_mount_point_that_may_be_removed_is_kept_open(tmp_path: Path) -> None:
    """An open folder would keep its file system busy until the daemon has ended."""

    def is_open() -> bool:
        paths = {os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.exists()}
        return str(tmp_path) in paths

    point = MountPoint(str(tmp_path))
    assert not is_open()
    point.close()
    mark(tmp_path)
    point = MountPoint(str(tmp_path))
    assert is_open()
    point.close()
    assert not is_open()


def test_making_a_mount_point_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str, mode: int, dir_fd: int) -> None:
        raise FileNotFoundError(name)

    monkeypatch.setattr(os, "mkdir", fail)
    with pytest.raises(MountError, match="try again"):
        MountPoint(str(tmp_path / "point"))
